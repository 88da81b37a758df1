"""Build an image from a Dockerfile of this project."""

from pathlib import Path

from cluster.choice import Choice, chosen_cluster
from cluster.images.docker import build_image_with_docker, save_image
from cluster.images.python_base import python_base_archive, python_base_image
from cluster.images.store import buildah, export_archive, images_folder
from cluster.locks import exclusive

CERTIFICATES = Path("/etc/ssl/certs")


def archive_of(image: str) -> Path:
    """Return where the docker-archive of an image is put."""
    return images_folder() / f"{image.replace('/', '_').replace(':', '_')}.tar"


def build_image(dockerfile: Path, context: Path, image: str, arguments: dict[str, str] | None = None) -> Path:
    """Build a Dockerfile whose `ARG BASE_IMAGE` is this project's Python base, and return its docker-archive.

    Args:
        dockerfile: The file.
        context: The folder that its COPY lines start from.
        image: Full name of the image, such as localhost/multigraft/operator:test.
        arguments: Further build arguments.

    Raises:
        ImageError: If a step fails; the text has the end of what it said.
    """
    archive = archive_of(image)
    given = {"BASE_IMAGE": python_base_image(), **(arguments or {})}
    if chosen_cluster() is Choice.KIND:
        build_image_with_docker(dockerfile, context, image, given)
        save_image(image, archive)
        return archive
    python_base_archive()
    options = [f"--build-arg={name}={value}" for name, value in given.items()]
    # What this machine trusts, its own proxy included, the build trusts too; nothing of it stays in the image.
    options.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
    with exclusive(images_folder() / f".{archive.name}.lock"):
        # chroot: run steps need neither a network of their own nor a control group.
        build = ("build", "--isolation=chroot", "--pull-never", "--layers", "--format=docker")
        buildah(*build, *options, f"--tag={image}", f"--file={dockerfile}", str(context))
        export_archive(image, archive)
    return archive
