"""A job's own Secret: a trainer has no rights on the API server and serves many jobs, so it holds none of them."""

from __future__ import annotations

from multigraft.api.adapter_job import AdapterJobSpec
from multigraft.api.reasons import Reason, RefusalError


def refuse_secret(spec: AdapterJobSpec) -> None:
    """Refuse `dataset.secretRef`, which would else be passed over.

    Raises:
        RefusalError: NOT_SUPPORTED, naming the way that works.
    """
    reference = spec.dataset.secret_ref
    if reference is not None:
        raise RefusalError(
            Reason.NOT_SUPPORTED,
            f"spec.dataset.secretRef: got {reference.name}; storage credentials are the pool's, from spec.template of "
            "the BaseModelPool (env, volumes, serviceAccountName). Leave the field out",
        )
