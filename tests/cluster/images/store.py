"""Build images without a daemon and without a registry: buildah, with its own store in the cache.

Every image leaves as a docker-archive, a file that containerd, kind and Docker all read.
"""

import subprocess
from pathlib import Path

from cluster.folders import cache_root


class ImageError(RuntimeError):
    """An image could not be built; the text has the end of what buildah said."""


SAID_CHARACTERS = 4000


def images_folder() -> Path:
    """Return the folder of image archives, and of buildah's store."""
    return cache_root() / "images"


def buildah(*arguments: str) -> str:
    """Run buildah as root and return what it prints.

    It runs in its own mount namespace: it keeps its store mounted between calls, and nothing here may.

    Raises:
        ImageError: If it fails.
    """
    folder = images_folder()
    store = (f"--root={folder / 'store'}", f"--runroot={folder / 'store-run'}", "--storage-driver=overlay")
    command = ("unshare", "--mount", "--propagation", "private", "buildah", *store, *arguments)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-SAID_CHARACTERS:]
        raise ImageError(f"buildah {arguments[0]}: status {done.returncode}: {said}")
    return done.stdout.strip()


def export_archive(image: str, archive: Path) -> None:
    """Write an image of the store as a docker-archive."""
    unfinished = archive.with_name(f".{archive.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    buildah("push", "--quiet", image, f"docker-archive:{unfinished}:{image}")
    unfinished.replace(archive)
