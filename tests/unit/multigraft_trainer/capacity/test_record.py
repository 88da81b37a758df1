from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multigraft.dry_run.cost_file import load_cost_model
from multigraft.planner.cost import CostModel
from multigraft_trainer.capacity.record import (
    CapacityRecord,
    Circumstances,
    cache_path,
    hash_code,
    load_record,
    save_record,
    write_cost,
)

COST = CostModel(1.5, 0.25, 1e-7, 2.5, 0.5, 2e-7)


def make_circumstances(**changes: Any) -> Circumstances:
    fields: dict[str, Any] = {
        "base": "b" * 64,
        "dtype": "torch.bfloat16",
        "device": "NVIDIA H200",
        "device_bytes": 150_000_000_000,
        "max_slots": 8,
        "max_rank": 64,
        "target_names_sha256": "a" * 64,
        "gradient_checkpointing": False,
        "tile_tokens": 1,
    }
    return Circumstances(**{**fields, **changes})


def make_record(**changes: Any) -> CapacityRecord:
    fields: dict[str, Any] = {
        "circumstances": make_circumstances(),
        "code": "c" * 64,
        "tokens": 19_456,
        "how": "Measured",
        "detail": "as measured",
        "cost": write_cost(COST),
    }
    return CapacityRecord(**{**fields, **changes})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "capacity.json"
    save_record(make_record(), path)
    got = load_record(path)
    assert got == make_record()
    assert got.build_cost() == COST
    save_record(make_record(tokens=128), path)
    assert load_record(path) == make_record(tokens=128)
    assert [file.name for file in path.parent.iterdir()] == ["capacity.json"], "no leftovers"


def test_nothing_there_is_no_fault(tmp_path: Path) -> None:
    assert load_record(tmp_path / "capacity.json") is None
    assert load_record(tmp_path / "no" / "folder" / "capacity.json") is None


def _damage(**changes: Any) -> bytes:
    return json.dumps({**json.loads(make_record().encode()), **changes}).encode()


@pytest.mark.parametrize(
    "data, says",
    [
        pytest.param(b"", "is no JSON", id="an empty file"),
        pytest.param(make_record().encode()[:-40], "is no JSON", id="half a file"),
        pytest.param(b"[]", "should be an object", id="a list"),
        pytest.param(_damage(format=2), "format 2, this version reads 1", id="a newer format"),
        pytest.param(_damage(tokens=0), "tokens", id="no token"),
        pytest.param(_damage(tokens="many"), "tokens", id="text for a number"),
        pytest.param(_damage(how="Guessed"), "how", id="found in an unknown way"),
        pytest.param(_damage(cost={"forwardFixedMs": -1.0}), "cost.forwardFixedMs", id="a time below 0"),
        pytest.param(_damage(extra=1), "extra", id="an unknown key"),
        pytest.param(b" " * 100_000, "at most", id="a file of another kind"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "capacity.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=says):
        load_record(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    save_record(make_record(), tmp_path / "elsewhere.json")
    (tmp_path / "capacity.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match=r"capacity\.json"):
        load_record(tmp_path / "capacity.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "d" * 64},
        {"dtype": "torch.float16"},
        {"device": "NVIDIA L40S"},
        {"device_bytes": 1},
        {"max_slots": 9},
        {"max_rank": 65},
        {"target_names_sha256": "e" * 64},
        {"gradient_checkpointing": True},
        {"tile_tokens": 16},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_the_capacity_depends_on_has_a_file_of_its_own(tmp_path: Path, changes: dict[str, Any]) -> None:
    same = cache_path(tmp_path, make_circumstances(), "code")
    assert cache_path(tmp_path, make_circumstances(), "code") == same
    assert cache_path(tmp_path, make_circumstances(**changes), "code") != same
    assert cache_path(tmp_path, make_circumstances(), "other code") != same


def test_the_code_has_a_hash() -> None:
    assert len(hash_code()) == 64
    assert hash_code() == hash_code()


def test_the_measured_times_are_what_plan_takes_as_cost(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(make_record().cost))
    assert load_cost_model(path) == COST
