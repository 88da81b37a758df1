"""Read measured stage times: a JSON object with the fields of `CostModel` in camelCase, all of them optional."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from multigraft.api.reasons import Reason, RefusalError
from multigraft.dry_run.json_file import load_json_object
from multigraft.planner.cost import CostModel

MAX_VALUE = 1e9  # ms; eleven days for one microbatch
_SHARES = "stageShares"
_NAMES = {to_camel(field.name): field.name for field in fields(CostModel)}


def load_cost_model(path: Path) -> CostModel:
    """Load a cost model; what the file leaves out keeps its default.

    Raises:
        RefusalError: INVALID_SPEC, naming the field and what is allowed.
    """
    data = load_json_object(path, "cost file", Reason.INVALID_SPEC)
    unknown = sorted(set(data) - set(_NAMES))
    if unknown:
        raise RefusalError(
            Reason.INVALID_SPEC, f"cost file {path}: unknown {unknown[0]!r:.80}, allowed {', '.join(_NAMES)}"
        )
    values: dict[str, Any] = {
        _NAMES[name]: _read_shares(path, value) if name == _SHARES else _read_number(path, name, value)
        for name, value in data.items()
    }
    return CostModel(**values)


def _read_number(path: Path, name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MAX_VALUE:
        text = f"cost file {path}: {name}: got {value!r:.80}, want a number from 0 to {MAX_VALUE:g}"
        raise RefusalError(Reason.INVALID_SPEC, text)
    return float(value)


def _read_shares(path: Path, value: Any) -> tuple[float, ...]:
    is_list = isinstance(value, list) and value
    if not is_list or not all(type(one) in (int, float) and 0 < one <= MAX_VALUE for one in value):
        text = f"cost file {path}: {_SHARES}: got {value!r:.80}, want a list of numbers above 0, one for each stage"
        raise RefusalError(Reason.INVALID_SPEC, text)
    return tuple(float(one) for one in value)
