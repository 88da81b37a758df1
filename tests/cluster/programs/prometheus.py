"""Prometheus and promtool: those on the search path, or Debian's package unpacked into the cache."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster.folders import cache_root
from cluster.programs.build import ProgramsMissingError


def prometheus_folder() -> Path:
    """Return the folder that has `prometheus` and `promtool`.

    Raises:
        ProgramsMissingError: If they are neither installed nor unpacked; the text says what to do.
    """
    installed = shutil.which("prometheus")
    if installed and shutil.which("promtool"):
        return Path(installed).parent
    unpacked = _unpacked()
    if not (unpacked / "promtool").is_file():
        raise ProgramsMissingError("prometheus: not there; run `python -m cluster build` in tests/")
    return unpacked


def unpack_prometheus() -> Path:
    """Fetch Debian's package, unpack it into the cache where nothing is there yet, and return the folder of programs.

    It is not installed: that would start a service where the machine runs an init.

    Raises:
        ProgramsMissingError: If it cannot be fetched.
    """
    try:
        return prometheus_folder()
    except ProgramsMissingError:
        pass
    target = cache_root() / "prometheus"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        fetched = subprocess.run(
            ("apt-get", "download", "--quiet", "prometheus"), cwd=folder, check=False, capture_output=True, text=True
        )
        packages = list(Path(folder).glob("*.deb"))
        if fetched.returncode != 0 or not packages:
            raise ProgramsMissingError(f"prometheus: apt-get download: {fetched.stderr.strip()}")
        subprocess.run(("dpkg-deb", "--extract", str(packages[0]), str(target)), check=True)
    return _unpacked()


def _unpacked() -> Path:
    return cache_root() / "prometheus" / "usr" / "bin"
