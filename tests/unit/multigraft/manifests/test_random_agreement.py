"""Local validation and the API server agree on manifests that nobody thought of: valid ones with random changes."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from builders.crdcheck import Request, ask
from builders.manifest_table import ROWS
from multigraft.api.updates import find_forbidden_changes
from multigraft.manifests.collection import Manifests
from multigraft.manifests.load import load_manifests
from multigraft.manifests.yaml_reader import read_yaml

VALUES = [
    None, True, False, 0, 1, -1, 2, 8, 512, 513, 8.5, 1e-4, 1e300, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**70,
    "", "0", "1", "8", "0.5", "1.0", "1e-4", "1e99", "-1", "x", "X", "None", "null", "a.b", "a/b", "a b", "a\n", "é",
    "a" * 64, "a" * 254, "a" * 600, "all-linear", "q_proj", "Linear", "linear", "Exists", "In",
    "500m", "4Gi", "4GB", "/a", "a:b", [], {}, [None],
    ["a"], ["a", "a"], ["a"] * 65, [1], [{}], [{"name": "a"}], {"name": "a"},
    {"a": None}, {"a": "b"}, {"a b": "c"},
]  # fmt: skip
KEYS = [
    "name",
    "namespace",
    "r",
    "lora",
    "spec",
    "status",
    "extra",
    "maxSteps",
    "storageUri",
    "configMapRef",
    "values",
    "value",
]


def list_places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in list_places(inner, (*path, key)))]


def change(rng: random.Random, manifest: Any) -> Any:
    """Replace, remove, add or move one to three values below the top."""
    changed = copy.deepcopy(manifest)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice([p for p in list_places(changed) if p and p != ("kind",)])
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        match rng.choice(["replace", "replace", "remove", "add"]):
            case "replace":
                parent[path[-1]] = copy.deepcopy(rng.choice(VALUES))
            case "remove":
                del parent[path[-1]]
            case "add" if isinstance(parent, dict):
                parent[rng.choice(KEYS)] = copy.deepcopy(rng.choice(VALUES))
            case _:
                parent.append(copy.deepcopy(rng.choice(VALUES)))
    return changed


def make_pairs(seed: int, count: int) -> list[tuple[str, str]]:
    """Make (valid manifest, changed manifest) pairs, as JSON."""
    rng = random.Random(seed)
    valid = [read_yaml(row.text).value for row in ROWS if row.field is None]
    chosen = [rng.choice(valid) for _ in range(count)]
    return [(json.dumps(manifest), json.dumps(change(rng, manifest))) for manifest in chosen]


def load_text(folder: Path, text: str) -> Manifests:
    file = folder / "manifest.json"
    file.write_text(text, encoding="utf-8")
    return load_manifests([file])


def is_named(field: str, local_fields: set[str]) -> bool:
    """Say whether a field that the server names is named locally: itself, around it, in it, or beside it."""
    plain = field.replace("[", ".").replace("]", "")
    parent = plain.rpartition(".")[0]
    for local in (name.replace("[", ".").replace("]", "") for name in local_fields):
        if f"{local}.".startswith(f"{plain}.") or f"{plain}.".startswith(f"{local}."):
            return True
        if local.rpartition(".")[0] == parent:  # a rule on two fields, one of which is malformed
            return True
    return False


def test_create_is_accepted_by_both_or_by_none_and_the_fields_are_named(tmp_path: Path) -> None:
    pairs = make_pairs(seed=3, count=1000)
    answers = ask([Request(changed) for _, changed in pairs])
    num_accepted = 0
    for (_, text), answer in zip(pairs, answers, strict=True):
        found = load_text(tmp_path, text)
        assert (not found.problems) == answer.accepted, (text, found.problems, answer.problems)
        num_accepted += answer.accepted
        local_fields = {problem.field for problem in found.problems}
        for problem in answer.problems:
            if problem["type"] not in {"Decode", "NotFound"} and problem["field"] not in {"", "<nil>"}:
                assert is_named(problem["field"], local_fields), (text, local_fields, problem)
    assert 30 < num_accepted < 970, "the changes must reach both sides"


def test_update_is_accepted_by_both_or_by_none(tmp_path: Path) -> None:
    pairs = make_pairs(seed=4, count=1000)
    answers = ask([Request(changed, old) for old, changed in pairs])
    num_compared = 0
    for (old_text, new_text), answer in zip(pairs, answers, strict=True):
        old, new = load_text(tmp_path, old_text), load_text(tmp_path, new_text)
        if new.problems or new.origins.keys() != old.origins.keys():  # an invalid or another object: not an update
            continue
        if any(problem["field"].startswith("metadata.") for problem in answer.problems):  # the server's own rules
            continue
        num_compared += 1
        (before,), (after,) = ([*found.jobs, *found.pools] for found in (old, new))
        forbidden = dict(find_forbidden_changes(before.spec, after.spec))
        assert (not forbidden) == answer.accepted, (old_text, new_text, forbidden, answer.problems)
        assert {problem["field"] for problem in answer.problems} <= forbidden.keys()
    assert num_compared > 30
