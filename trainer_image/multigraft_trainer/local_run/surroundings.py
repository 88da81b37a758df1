"""What a run says of the process and the libraries around it."""

from __future__ import annotations

import resource
import sys
from importlib.metadata import PackageNotFoundError, version


def measure_peak_rss() -> int:
    """Measure the most memory that this process has held, in bytes."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes if sys.platform == "darwin" else kibibytes * 1024


def list_versions() -> dict[str, str]:
    """List the versions that results depend on."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("multigraft", "torch", "transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions
