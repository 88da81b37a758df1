"""Whether this machine has the memory to keep a node's images in it.

An image is 10,000 files and more, written twice (as it came and unpacked) and deleted with the cluster. On a
slow disk that takes longer than all the rest. Volumes of pods stay on disk: what a pod writes into memory counts
against its limit and cannot be written out.
"""

from pathlib import Path

MEMORY_INFO = Path("/proc/meminfo")
ENOUGH_BYTES = 10 * 2**30  # twice a trainer image of 2 GiB, some trainers, and a developer's own programs


def available_bytes(table: str) -> int:
    """Return the memory that programs can still get, from the text of /proc/meminfo (proc_meminfo(5))."""
    fields = dict(line.split(":", 1) for line in table.splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def images_fit_in_memory() -> bool:
    """Tell whether to keep a node's images in memory."""
    return available_bytes(MEMORY_INFO.read_text()) >= ENOUGH_BYTES
