"""What a write checks of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from builders.operator_world import make_job
from multigraft_operator.apply import PrunedStatusError, check_kept
from multigraft_operator.decision import StatusWrite

STATUS = {"phase": "Running", "assignment": {"pod": "p", "podUid": "u"}, "conditions": [{"type": "A", "reason": "B"}]}
PRUNED = {
    "a field": ({**STATUS, "assignment": {"pod": "p"}}, "status.assignment.podUid"),
    "a field of a list": ({**STATUS, "conditions": [{"type": "A"}]}, "status.conditions.reason"),
    "all": ({}, "status.assignment, status.conditions, status.phase"),
}


@pytest.mark.parametrize("kept, fields", PRUNED.values(), ids=PRUNED.keys())
def test_H07_an_old_crd_that_drops_fields_is_noticed_at_the_first_write(kept: dict[str, Any], fields: str) -> None:
    with pytest.raises(PrunedStatusError, match=f"the CRD of AdapterJob drops {fields}; update the CRDs"):
        check_kept(StatusWrite(make_job(), STATUS), {"status": kept})


def test_a_status_that_was_kept_is_fine() -> None:
    check_kept(StatusWrite(make_job(), STATUS), {"status": {**STATUS, "more": 1}})
