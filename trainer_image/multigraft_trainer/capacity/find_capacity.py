"""Find the token capacity of a pool at its start: the number that the spec says, or for Auto the first of these.

Resumed     the one that the plans to be resumed were made with, so that they go on as they would have gone on
Cached      one that was measured earlier, under the same circumstances by the same code
Measured    by trial passes on a GPU
Estimated   from free memory on a CPU
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from multigraft.api.base_model_pool import BaseModelPoolSpec
from multigraft.api.reasons import RefusalError
from multigraft.planner.cost import CostModel
from multigraft_trainer.admission.shared_base import SharedBase
from multigraft_trainer.capacity.device_memory import DeviceKind, describe_device, keep_memory_back
from multigraft_trainer.capacity.host_estimate import estimate_capacity, estimate_token_bytes, read_free_bytes
from multigraft_trainer.capacity.measure import MARGIN, Measured, measure_capacity
from multigraft_trainer.capacity.pool_capacity import CapacitySource, PoolCapacity, read_given_capacity
from multigraft_trainer.capacity.record import (
    KEPT_NAME,
    CapacityRecord,
    Circumstances,
    cache_path,
    hash_code,
    load_record,
    save_record,
    write_cost,
)
from multigraft_trainer.capacity.trials import TrialPool, Trials, open_trials


@dataclass(frozen=True)
class CapacityPlaces:
    """Where capacities are kept."""

    plans: Path  # beside the plans that were made with it
    cache: Path  # may be lost


def find_capacity(
    spec: BaseModelPoolSpec,
    base: SharedBase,
    places: CapacityPlaces,
    *,
    resume: bool,
    tile_tokens: int = 1,
    on_phase: Callable[[str], None],
    on_note: Callable[[str], None],
    device: DeviceKind | None = None,
) -> PoolCapacity:
    """Find the capacity. No job may hold a slot yet; afterwards none does, and no random stream has moved.

    Args:
        spec: The pool.
        base: Its base, loaded, with empty slots.
        places: Where capacities are kept.
        resume: Whether the plans of an earlier process are gone on with.
        tile_tokens: Tokens to which the backend pads each adapter.
        on_phase: Hears what is being done.
        on_note: Hears what the user should know.
        device: The device of the base; None: look.

    Raises:
        RefusalError: OUT_OF_MEMORY, with numbers, if the adapters or the smallest microbatch do not fit.
    """
    given = read_given_capacity(spec)
    if given is not None:
        return given
    finder = _Finder(spec, base, places, tile_tokens, on_phase, on_note, device or describe_device(base.backend.device))
    return finder.find(resume=resume)


@dataclass
class _Finder:
    spec: BaseModelPoolSpec
    base: SharedBase
    places: CapacityPlaces
    tile_tokens: int
    on_phase: Callable[[str], None]
    on_note: Callable[[str], None]
    device: DeviceKind
    pool: TrialPool = field(init=False)
    circumstances: Circumstances = field(init=False)

    def __post_init__(self) -> None:
        slots = self.spec.slots
        names = self.base.backend.resolve_targets(list(slots.target_modules)).names
        self.pool = TrialPool(slots.max, slots.max_rank, names, self.tile_tokens, self.base.backend.max_positions)
        self.circumstances = Circumstances(
            base=self.base.fingerprint,
            dtype=str(self.base.backend.dtype),
            device=self.device.name,
            device_bytes=self.device.total_bytes,
            max_slots=slots.max,
            max_rank=slots.max_rank,
            target_names_sha256=hashlib.sha256("\n".join(names).encode()).hexdigest(),
            gradient_checkpointing=self.spec.batching.gradient_checkpointing,
            tile_tokens=self.tile_tokens,
        )

    def find(self, *, resume: bool) -> PoolCapacity:
        kept = self._load(self.places.plans / KEPT_NAME) if resume else None
        if kept is not None and self._still_holds(kept):
            return self._build(kept, CapacitySource.RESUMED)
        cached = self._load(self._cache_path())
        if cached is not None and cached.circumstances == self.circumstances:
            return self._build(self._keep(cached), CapacitySource.CACHED)
        record = self._measure() if self.device.is_gpu else self._estimate()
        return self._build(self._keep(record), CapacitySource(record.how))

    def _still_holds(self, kept: CapacityRecord) -> bool:
        """Tell whether to go on with a kept capacity; code that is new since must show that it fits."""
        if kept.circumstances != self.circumstances:
            self._note("the base, its device or its slots are not those of the plans to be resumed", kept)
            return False
        if kept.code == hash_code() or not self.device.is_gpu:
            return True
        with self._trials() as trials:
            fits = trials.fits(kept.tokens)
        if fits:
            return True
        self._note("it no longer fits with this version", kept)
        return False

    def _note(self, why: str, kept: CapacityRecord) -> None:
        self.on_note(f"the capacity of {kept.tokens} tokens is found anew: {why}; losses stay equal to rounding")

    @contextmanager
    def _trials(self) -> Iterator[Trials]:
        backend = self.base.backend
        with keep_memory_back(backend.device), open_trials(backend, self.base.slots, self.pool) as trials:
            yield trials

    def _measure(self) -> CapacityRecord:
        self.on_phase(f"measuring how many tokens fit on {self.device}")
        with self._trials() as trials:
            measured = measure_capacity(
                trials,
                max_slots=self.pool.max_slots,
                tile_tokens=self.tile_tokens,
                longest_sample=self.pool.longest_sample,
            )
        record = self._record(measured.tokens, "Measured", self._describe(measured), measured.cost)
        self._save(record, self._cache_path())
        return record

    def _describe(self, measured: Measured) -> str:
        return (
            f"{measured.largest_fit:,} ran on {self.device} with {self.pool.max_slots} adapters of rank "
            f"{self.pool.max_rank}, {MARGIN:.0%} kept back; {measured.num_passes} passes, times fit to "
            f"{measured.cost_error:.0%}"
        )

    def _estimate(self) -> CapacityRecord:
        free = read_free_bytes()
        per_token = estimate_token_bytes(self.base.backend.linears, itemsize=self.base.backend.dtype.itemsize)
        tokens = estimate_capacity(free_bytes=free, token_bytes=per_token, tile_tokens=self.tile_tokens)
        detail = f"from {free / 2**30:.1f} GiB of free memory and about {per_token / 2**20:.2f} MiB a token on a CPU"
        return self._record(tokens, "Estimated", detail, CostModel())

    def _record(self, tokens: int, how: str, detail: str, cost: CostModel) -> CapacityRecord:
        return CapacityRecord.model_validate(
            {
                "circumstances": self.circumstances,
                "code": hash_code(),
                "tokens": tokens,
                "how": how,
                "detail": detail,
                "cost": write_cost(cost),
            }
        )

    def _build(self, record: CapacityRecord, source: CapacitySource) -> PoolCapacity:
        return PoolCapacity(record.tokens, source, record.detail, record.build_cost())

    def _cache_path(self) -> Path:
        return cache_path(self.places.cache, self.circumstances, hash_code())

    def _load(self, path: Path) -> CapacityRecord | None:
        try:
            return load_record(path)
        except ValueError as error:
            self.on_note(f"{path.name} is passed over: {error}")
            return None

    def _keep(self, record: CapacityRecord) -> CapacityRecord:
        self._save(record, self.places.plans / KEPT_NAME)
        return record

    def _save(self, record: CapacityRecord, path: Path) -> None:
        try:
            save_record(record, path)
        except (OSError, RefusalError) as error:  # found again at the next start; then equal to rounding
            self.on_note(f"{path.name} could not be written, a resumed run may find another capacity: {error}")
