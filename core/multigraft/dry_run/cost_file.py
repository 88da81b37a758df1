"""Read measured stage times: a JSON object with the fields of `CostModel` in camelCase, all of them optional."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from multigraft.api.reasons import Reason, RefusalError
from multigraft.planner.cost import CostModel

_NAMES = {to_camel(field.name): field.name for field in fields(CostModel)}


def load_cost_model(path: Path) -> CostModel:
    """Load a cost model; what the file leaves out keeps its default.

    Raises:
        RefusalError: INVALID_SPEC, naming the field and what is allowed.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RefusalError(Reason.INVALID_SPEC, f"cost file {path}: {error}") from error
    if not isinstance(data, dict):
        raise RefusalError(Reason.INVALID_SPEC, f"cost file {path}: got a {type(data).__name__}, want an object")
    unknown = sorted(set(data) - set(_NAMES))
    if unknown:
        raise RefusalError(
            Reason.INVALID_SPEC, f"cost file {path}: unknown {unknown[0]!r}, allowed {', '.join(_NAMES)}"
        )
    values: dict[str, Any] = {}
    for name, value in data.items():
        numbers = value if name == "stageShares" and isinstance(value, list) else [value]
        if not all(type(one) in (int, float) and one >= 0 for one in numbers):
            raise RefusalError(
                Reason.INVALID_SPEC, f"cost file {path}: {name}: got {value!r:.80}, want numbers of 0 or more"
            )
        values[_NAMES[name]] = tuple(value) if isinstance(value, list) else float(value)
    return CostModel(**values)
