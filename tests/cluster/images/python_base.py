"""A stand-in for the image python:3.11-slim-bookworm where no registry can be reached, from Debian's packages.

Give it to a Dockerfile as BASE_IMAGE: the same Debian release, the same Python, with pip that may install.
"""

import hashlib
import subprocess
import tempfile
from pathlib import Path

from cluster.choice import Choice, chosen_cluster
from cluster.images.docker import PYTHON_IMAGE, save_image
from cluster.images.store import ImageError, buildah, export_archive, images_folder
from cluster.locks import exclusive

RELEASE = "bookworm"
PACKAGES = ("ca-certificates", "netbase", "python3", "python3-pip", "python3-venv", "tzdata")
CUSTOMISE = (
    'ln -s python3 "$1/usr/bin/python"',
    # Debian's pip refuses to install beside Debian's packages; the image it stands in for has no such rule.
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
    'rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/var/lib/apt/lists/*',
)
SAID_CHARACTERS = 4000


def recipe_digest() -> str:
    """Return a short digest of what the image is made of."""
    return hashlib.sha256(repr((RELEASE, PACKAGES, CUSTOMISE)).encode()).hexdigest()[:12]


def python_base_image() -> str:
    """Return the name of the image that a Dockerfile of this project is built on."""
    if chosen_cluster() is Choice.KIND:
        return PYTHON_IMAGE
    return f"localhost/multigraft/python-base:{recipe_digest()}"


def python_base_archive() -> Path:
    """Return the archive of the image, built at the first call from Debian's archive (220 MB, about half a minute).

    With kind it is the image from the registry.

    Raises:
        ImageError: If it cannot be built.
    """
    if chosen_cluster() is Choice.KIND:
        save_image(PYTHON_IMAGE, images_folder() / "python-from-registry.tar")
        return images_folder() / "python-from-registry.tar"
    archive = images_folder() / f"python-base-{recipe_digest()}.tar"
    with exclusive(images_folder() / f".{archive.name}.lock"):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=images_folder()) as folder:
                root = Path(folder) / "root.tar"
                _make_root(root)
                _commit(root)
            export_archive(python_base_image(), archive)
    return archive


def _make_root(target: Path) -> None:
    hooks = [f"--customize-hook={hook}" for hook in CUSTOMISE]
    command = ("mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", *hooks, RELEASE, str(target))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ImageError(f"mmdebstrap: status {done.returncode}: {done.stderr.strip()[-SAID_CHARACTERS:]}")


def _commit(root: Path) -> None:
    container = buildah("from", "scratch")
    buildah("add", container, str(root), "/")
    buildah("config", "--cmd=python3", "--env=LANG=C.UTF-8", container)
    buildah("commit", "--quiet", "--rm", "--format=docker", container, python_base_image())
