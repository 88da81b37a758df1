"""What a cluster that was killed may leave on the machine, and its removal."""

from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")


def mounts_below(folder: Path, table: str) -> list[str]:
    """Return the mount points in `folder`, from the text of a mountinfo table.

    Source: field 5 of proc_pid_mountinfo(5), where blanks and backslashes are written in octal.
    """
    points = [line.split()[4].encode().decode("unicode_escape") for line in table.splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


def check_no_mounts(folder: Path) -> None:
    """Make sure that deleting `folder` deletes nothing that is only mounted there.

    Raises:
        OSError: If something is mounted in it.
    """
    if found := mounts_below(folder, MOUNTS.read_text()):
        raise OSError(f"{folder} is not removed: mounted in it are {', '.join(found)}")
