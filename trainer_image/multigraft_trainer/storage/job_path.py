"""Where a job's files lie: `<namespace>/<name>`, path parts that are safe as they are, and in a cluster `/<uid>`.

The first two are DNS names (63 and 253 characters at most, lower case, first character no dot), so a part fits the
255 bytes of a file name, never climbs out of its parent, and no two jobs share a path.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from multigraft.api.schema import DNS_LABEL_PATTERN, DNS_SUBDOMAIN_PATTERN

MAX_NAMESPACE = 63
MAX_NAME = 253
UID_PATTERN = r"[0-9A-Za-z][0-9A-Za-z-]{0,63}"


def build_job_path(job: str) -> PurePosixPath:
    """Build the relative path of a job.

    Raises:
        ValueError: If `job` is not `namespace/name` or `namespace/name/uid` of a Kubernetes object.
    """
    namespace, name, *uids = job.split("/", 2) if "/" in job else (job, "")
    is_valid = (
        len(namespace) <= MAX_NAMESPACE
        and len(name) <= MAX_NAME
        and re.fullmatch(DNS_LABEL_PATTERN.rstrip("$"), namespace)
        and re.fullmatch(DNS_SUBDOMAIN_PATTERN.rstrip("$"), name)
        and all(re.fullmatch(UID_PATTERN, uid) for uid in uids)
    )
    if not is_valid:
        raise ValueError(f"job: got {job!r}, want namespace/name, both DNS names of at most 63 and 253 characters")
    return PurePosixPath(namespace, name, *uids)
