"""Build the programs of a cluster once, into the cache."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from cluster.folders import cache_root
from cluster.locks import exclusive
from cluster.programs import versions
from cluster.programs.builds import BUILDS, Build


class ProgramsMissingError(RuntimeError):
    """A program is neither there nor can it be built; the text says what to do."""


def built_folder() -> Path:
    """Return the folder of the built programs, keyed by the Kubernetes version."""
    return cache_root() / f"kube-{versions.KUBERNETES}"


def is_built(build: Build, folder: Path) -> bool:
    """Tell whether `folder` has this very binary: built from the sources and sums that are there now."""
    stamp = folder / f".{build.program}.inputs"
    return stamp.is_file() and stamp.read_text() == build.inputs_digest()


def unbuilt(folder: Path) -> list[Build]:
    """Return what has still to be built into `folder`."""
    return [build for build in BUILDS if not is_built(build, folder)]


def unbuilt_programs(folder: Path, wanted: tuple[str, ...]) -> list[str]:
    """Return which of the programs `wanted` have still to be built into `folder`."""
    missing = {name for build in unbuilt(folder) for name in (build.program, *build.links)}
    return [name for name in wanted if name in missing]


def build_programs(say: Callable[[str], None]) -> Path:
    """Build whatever is not in the cache yet. From nothing this takes minutes of all cores and 6 GB of Go cache.

    Args:
        say: Told what is being done, one line at a time.

    Returns:
        The folder of the programs.

    Raises:
        ProgramsMissingError: If there is something to build and no Go toolchain.
        subprocess.CalledProcessError: If the Go toolchain fails; it has said why on standard error.
    """
    folder = built_folder()
    with exclusive(folder / ".lock"):
        todo = unbuilt(folder)
        if todo and shutil.which("go") is None:
            names = ", ".join(build.program for build in todo)
            raise ProgramsMissingError(f"{names}: not built yet, and there is no Go toolchain (go 1.24 or newer)")
        for build in todo:
            say(f"building {build.program} into {folder}")
            _build_one(build, folder)
    return folder


def _build_one(build: Build, folder: Path) -> None:
    unfinished = folder / f".{build.program}.unfinished"
    subprocess.run(build.command(unfinished), cwd=build.folder, env=_go_environment(), check=True)
    unfinished.replace(folder / build.program)
    _link(folder, build.program, build.links)
    (folder / f".{build.program}.inputs").write_text(build.inputs_digest())


def _link(folder: Path, program: str, names: Iterable[str]) -> None:
    for name in names:
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(program)


def _go_environment() -> dict[str, str]:
    # Static: the binaries must run in a bare image too. No workspace: one around this checkout must not matter.
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
