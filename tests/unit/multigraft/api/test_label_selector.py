"""Label selectors choose as Kubernetes' do."""

from __future__ import annotations

from typing import Any

import pytest

from multigraft.api.label_selector import LabelSelector

LABELS = {"tier": "gold", "zone": "a"}


@pytest.mark.parametrize(
    "selector, want",
    [
        ({}, True),
        ({"matchLabels": {"tier": "gold"}}, True),
        ({"matchLabels": {"tier": "gold", "zone": "b"}}, False),
        ({"matchLabels": {"absent": ""}}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "iron"]}]}, True),
        ({"matchExpressions": [{"key": "absent", "operator": "In", "values": ["gold"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]}, False),
        ({"matchExpressions": [{"key": "absent", "operator": "NotIn", "values": ["gold"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "absent", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "absent", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"tier": "gold"}, "matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_matches(selector: dict[str, Any], want: bool) -> None:
    assert LabelSelector.model_validate(selector).matches(LABELS) == want
