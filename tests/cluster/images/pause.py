"""The image that every pod's namespaces hang on: one static program that waits."""

import hashlib
from pathlib import Path

from cluster.images.store import buildah, export_archive, images_folder
from cluster.locks import exclusive
from cluster.node.containerd import PAUSE_IMAGE
from cluster.programs.locate import Programs

NOBODY = "65535:65535"


def pause_archive(programs: Programs) -> Path:
    """Return the archive of the pause image, built at the first call.

    Raises:
        ImageError: If it cannot be built.
    """
    program = Path(programs.path("pause"))
    digest = hashlib.sha256(program.read_bytes()).hexdigest()[:12]
    archive = images_folder() / f"pause-{digest}.tar"
    with exclusive(images_folder() / f".{archive.name}.lock"):
        if not archive.exists():
            container = buildah("from", "scratch")
            buildah("copy", container, str(program), "/pause")
            buildah("config", '--entrypoint=["/pause"]', f"--user={NOBODY}", container)
            buildah("commit", "--quiet", "--rm", "--format=docker", container, PAUSE_IMAGE)
            export_archive(PAUSE_IMAGE, archive)
    return archive
