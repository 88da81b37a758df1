"""The control group that all pods of a cluster are in, in every hierarchy of the machine."""

import time
from pathlib import Path

HIERARCHIES = Path("/sys/fs/cgroup")
EMPTY_TIMEOUT_SECONDS = 10.0


def cgroup_roots(hierarchies: Path = HIERARCHIES) -> list[Path]:
    """Return the root of each hierarchy: one with version 2, one for each controller with version 1."""
    if (hierarchies / "cgroup.controllers").is_file():
        return [hierarchies]
    return sorted({root.resolve() for root in hierarchies.iterdir() if (root / "cgroup.procs").is_file()})


def create_cgroup(name: str, hierarchies: Path = HIERARCHIES) -> None:
    """Create the group `name` (it starts with a slash) with all controllers that the machine has."""
    for root in cgroup_roots(hierarchies):
        folder = root / name.lstrip("/")
        if (root / "cgroup.controllers").is_file():
            _delegate(root)
        folder.mkdir(exist_ok=True)
        if (root / "cpuset.cpus").is_file():
            # Version 1 gives a new group no cores and no memory nodes; no process could enter it.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                (folder / setting).write_text((root / setting).read_text())
        if (root / "cgroup.controllers").is_file():
            _delegate(folder)


def _delegate(folder: Path) -> None:
    """Let groups below `folder` have each controller that it has itself (version 2)."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def remove_cgroup(name: str, hierarchies: Path = HIERARCHIES) -> None:
    """Remove the group with all below it, once the kernel has taken the last dead process out.

    Raises:
        OSError: If a process is still in it after ten seconds.
    """
    deadline = time.monotonic() + EMPTY_TIMEOUT_SECONDS
    for root in cgroup_roots(hierarchies):
        folder = root / name.lstrip("/")
        while folder.is_dir():
            try:
                _remove_tree(folder)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def _remove_tree(folder: Path) -> None:
    for child in [entry for entry in folder.iterdir() if entry.is_dir()]:
        _remove_tree(child)
    folder.rmdir()  # its files are the kernel's and go with it
