"""Which cluster the tests run on: this project's own, one of kind's, or one that is there already."""

import os
from enum import StrEnum
from pathlib import Path

from cluster.access import ClusterAccess
from cluster.folders import cache_root
from cluster.programs.build import built_folder
from cluster.programs.locate import Programs


class Choice(StrEnum):
    """Value of E2E_CLUSTER."""

    OWN = "own"
    KIND = "kind"
    EXISTING = "existing"  # the one of KUBECONFIG


def chosen_cluster() -> Choice:
    """Return what E2E_CLUSTER says; `own` if it says nothing.

    Raises:
        ValueError: If it says something else.
    """
    value = os.environ.get("E2E_CLUSTER", "") or Choice.OWN.value
    try:
        return Choice(value)
    except ValueError:
        allowed = ", ".join(choice.value for choice in Choice)
        raise ValueError(f"E2E_CLUSTER={value}: must be one of {allowed}") from None


def existing_cluster() -> ClusterAccess:
    """Return the cluster of KUBECONFIG. The tests install CRDs into it and make namespaces in it.

    KUBECONFIG alone is not enough to choose it: many a shell has that set to a cluster that is no test cluster.

    Raises:
        ValueError: If KUBECONFIG names no file.
    """
    kubeconfig = Path(os.environ.get("KUBECONFIG", ""))
    if not kubeconfig.is_file():
        raise ValueError(f"E2E_CLUSTER=existing: KUBECONFIG={kubeconfig} must name a file")
    scratch = cache_root() / "existing"
    scratch.mkdir(parents=True, exist_ok=True)
    return ClusterAccess("existing", kubeconfig.resolve(), Programs(built_folder()), scratch)
