"""The same images by Docker, for the machines that have it: they reach a registry and run kind."""

import subprocess
from pathlib import Path

from cluster.images.store import SAID_CHARACTERS, ImageError

PYTHON_IMAGE = "python:3.11-slim-bookworm"


def docker(*arguments: str) -> None:
    """Run docker.

    Raises:
        ImageError: If it fails.
    """
    done = subprocess.run(("docker", *arguments), check=False, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-SAID_CHARACTERS:]
        raise ImageError(f"docker {arguments[0]}: status {done.returncode}: {said}")


def save_image(image: str, archive: Path) -> None:
    """Write an image as a docker-archive, pulled from its registry if Docker does not have it."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    try:
        docker("image", "inspect", image)
    except ImageError:
        docker("pull", "--quiet", image)
    docker("save", f"--output={archive}", image)


def build_image_with_docker(dockerfile: Path, context: Path, image: str, arguments: dict[str, str]) -> None:
    """Build a Dockerfile; its base images come from their registries."""
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    docker("build", *options, f"--tag={image}", f"--file={dockerfile}", str(context))
