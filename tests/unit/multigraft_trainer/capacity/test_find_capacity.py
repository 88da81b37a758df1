"""Auto from a pool's start to its resume, on a base whose memory ends at a known size."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from builders.bounded_backend import BoundedBackend
from builders.tiny_base import make_tiny_base
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.planner.cost import CostModel
from multigraft_trainer.admission.shared_base import SharedBase, open_shared_base
from multigraft_trainer.backends.transformers_backend import TransformersBackend
from multigraft_trainer.capacity import find_capacity as module
from multigraft_trainer.capacity.device_memory import DeviceKind
from multigraft_trainer.capacity.find_capacity import CapacityPlaces, find_capacity
from multigraft_trainer.capacity.pool_capacity import CapacitySource, PoolCapacity

GPU = DeviceKind("NVIDIA Test", 64 * 2**30, is_gpu=True)
FITS = 700  # five units of 128 with the margin: 512


def make_pool(folder: Path, *, tokens: int | str = "Auto", **slots: Any) -> BaseModelPool:
    return BaseModelPool.model_validate(
        {
            "apiVersion": "multigraft.dev/v1alpha1",
            "kind": "BaseModelPool",
            "metadata": {"name": "tiny"},
            "spec": {
                "baseModel": {"storageUri": str(folder), "dtype": "FP32"},
                "gpu": {"accelerators": [{"name": "CPU"}]},
                "slots": {"max": 2, "maxRank": 4, **slots},
                "batching": {"maxTokensPerMicrobatch": tokens},
            },
        }
    )


@dataclass
class Start:
    """One start of a trainer after another on the same places."""

    folder: Path
    base_folder: Path
    most_tokens: int = FITS
    phases: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    base: SharedBase | None = None

    def find(self, *, resume: bool = False, device: DeviceKind | None = GPU, **pool: Any) -> PoolCapacity:
        """Open the base anew and find its capacity; `seen` has the sizes that were tried."""
        parsed = make_pool(self.base_folder, **pool)
        opened = open_shared_base(parsed, self.folder, self.folder / "downloads")
        bounded = BoundedBackend(opened.backend, self.most_tokens)
        self.base = replace(opened, backend=cast("TransformersBackend", bounded))
        places = CapacityPlaces(self.folder / "plans", self.folder / "cache")
        got = find_capacity(
            parsed.spec,
            self.base,
            places,
            resume=resume,
            on_phase=self.phases.append,
            on_note=self.notes.append,
            device=device,
        )
        self.seen = bounded.seen
        assert self.base.slots.occupied == ()
        return got


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), layers=1)


@pytest.fixture
def start(tmp_path: Path, base_folder: Path) -> Start:
    return Start(tmp_path, base_folder)


def test_a_number_in_the_spec_is_taken_and_nothing_is_tried_or_written(start: Start) -> None:
    assert start.find(tokens=300) == PoolCapacity(300, CapacitySource.SPEC)
    assert start.seen == []
    assert not (start.folder / "plans").exists()
    assert not (start.folder / "cache").exists()


def test_auto_measures_once_and_says_how(start: Start) -> None:
    state = torch.random.get_rng_state()
    got = start.find()
    assert (got.tokens, got.source) == (512, CapacitySource.MEASURED)
    assert "640 ran on NVIDIA Test (64 GiB) with 2 adapters of rank 4, 5% kept back" in got.detail
    assert got.cost not in (None, CostModel())
    assert start.phases == ["measuring how many tokens fit on NVIDIA Test (64 GiB)"]
    assert start.notes == []
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_restart_takes_the_cached_one_and_a_resume_the_kept_one(start: Start) -> None:
    first = start.find()
    again = start.find()
    assert again == replace(first, source=CapacitySource.CACHED)
    resumed = start.find(resume=True)
    assert resumed == replace(first, source=CapacitySource.RESUMED)
    assert start.seen == [], "not a pass was run"


def test_a_resume_without_its_cache_keeps_capacity_and_times(start: Start) -> None:
    first = start.find()
    (entry,) = (start.folder / "cache" / "capacity").iterdir()
    entry.unlink()
    start.most_tokens = 10_000  # a measurement would find another one now
    assert start.find(resume=True) == replace(first, source=CapacitySource.RESUMED)
    assert start.seen == []


def test_another_number_of_slots_measures_anew_and_a_resume_says_so(start: Start) -> None:
    start.find()
    start.most_tokens = 1200
    got = start.find(resume=True, max=3)
    assert (got.tokens, got.source) == (1024, CapacitySource.MEASURED)
    (note,) = start.notes
    assert note.startswith("the capacity of 512 tokens is found anew: the base, its device or its slots are not those")
    assert note.endswith("of the plans to be resumed; losses stay equal to rounding")


def test_another_kind_of_device_measures_anew(start: Start) -> None:
    start.find()
    start.most_tokens = 300
    got = start.find(resume=True, device=DeviceKind("NVIDIA Other", 2**30, is_gpu=True))
    assert (got.tokens, got.source) == (128, CapacitySource.MEASURED)


@pytest.fixture
def new_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(module, "hash_code", lambda: "f" * 64)


def test_new_code_keeps_a_resumed_capacity_after_one_trial_of_it(start: Start, new_code: Callable[[], None]) -> None:
    first = start.find()
    new_code()
    assert start.find(resume=True) == replace(first, source=CapacitySource.RESUMED)
    assert start.seen == [512]


def test_new_code_that_takes_more_memory_measures_anew(start: Start, new_code: Callable[[], None]) -> None:
    start.find()
    new_code()
    start.most_tokens = 500
    got = start.find(resume=True)
    assert (got.tokens, got.source) == (256, CapacitySource.MEASURED)
    assert start.notes == [
        "the capacity of 512 tokens is found anew: it no longer fits with this version; losses stay equal to rounding"
    ]


def test_new_code_does_not_take_the_cached_one_of_the_old(start: Start, new_code: Callable[[], None]) -> None:
    start.find()
    new_code()
    assert start.find().source is CapacitySource.MEASURED


@pytest.mark.parametrize("place", ["plans/capacity.json", "cache/capacity/*.json"])
def test_a_damaged_file_is_passed_over_with_a_note(start: Start, place: str) -> None:
    start.find()
    (path,) = start.folder.glob(place)
    path.write_text("{")
    got = start.find(resume=place.startswith("plans"))
    assert got.tokens == 512
    assert got.source is (CapacitySource.CACHED if place.startswith("plans") else CapacitySource.MEASURED)
    assert start.notes[0].startswith(f"{path.name} is passed over: is no JSON")
    assert json.loads(path.read_text())["tokens"] == 512, "whole again"


def test_a_cache_entry_of_other_circumstances_under_this_name_is_not_taken(start: Start) -> None:
    start.find()
    (path,) = (start.folder / "cache" / "capacity").iterdir()
    data = json.loads(path.read_text())
    data["circumstances"]["maxSlots"] = 99
    path.write_text(json.dumps(data))
    assert start.find().source is CapacitySource.MEASURED


def test_places_that_cannot_be_written_are_a_note_not_an_end(start: Start) -> None:
    for place in ("plans", "cache"):
        (start.folder / place).write_text("a file in the folder's place")
    got = start.find()
    assert got.tokens == 512
    assert len(start.notes) == 3  # the cache could not be read, and neither could be written
    assert all("capacity" in note or ".json" in note for note in start.notes)


def test_on_a_cpu_the_capacity_is_estimated_without_a_pass_and_kept(start: Start) -> None:
    got = start.find(device=None)
    assert got.source is CapacitySource.ESTIMATED
    assert 256 <= got.tokens <= 4096
    assert "GiB of free memory" in got.detail
    assert got.cost == CostModel()
    assert start.seen == []
    assert not (start.folder / "cache").exists(), "free memory is another one each time"
    data = json.loads((start.folder / "plans" / "capacity.json").read_text())
    (start.folder / "plans" / "capacity.json").write_text(json.dumps({**data, "tokens": 333}))
    assert start.find(device=None, resume=True).tokens == 333


def test_a_base_with_few_positions_is_tried_with_samples_it_has_positions_for(tmp_path: Path) -> None:
    folder = make_tiny_base(tmp_path / "base", layers=1, max_position_embeddings=64)
    got = Start(tmp_path, folder).find()
    assert got.tokens == 512
