from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multigraft.planner.place_jobs import place_jobs
from multigraft.planner.placement import (
    Demand,
    Eviction,
    Placement,
    PlacementPolicy,
    RefusalKind,
    Replica,
    find_placement_faults,
)
from multigraft.planner.solver_pool import SolverPool

GIB = 1 << 30


def replica(
    name: str = "r0", slots: int = 2, rank: int = 64, gib: int = 10, speed: float = 1000.0, *, takes_jobs: bool = True
) -> Replica:
    return Replica(name, slots, rank, gib * GIB, speed, takes_jobs)


def job(name: str, rank: int = 8, gib: int = 1, tokens: int = 1000, **more: object) -> Demand:
    return Demand(name, rank, gib * GIB, tokens, **more)  # type: ignore[arg-type]


def place(replicas: Sequence[Replica], demands: Sequence[Demand], policy: PlacementPolicy | None = None) -> Placement:
    placement = place_jobs(replicas, demands, policy or PlacementPolicy())
    assert find_placement_faults(placement, replicas, demands) == []
    return placement


def test_jobs_go_where_they_leave_least_load() -> None:
    got = place([replica("r0"), replica("r1", speed=3000)], [job("a"), job("b"), job("c")])
    assert got.replica_of == {"a": "r1", "b": "r1", "c": "r0"}


def test_running_jobs_stay_even_where_another_place_is_better() -> None:
    got = place([replica("r0"), replica("r1")], [job("a", running_on="r0"), job("b", running_on="r0")])
    assert got.replica_of == {"a": "r0", "b": "r0"}
    assert got.moves == ()


def test_a_move_needs_its_stated_gain_and_there_is_at_most_one() -> None:
    demands = [job(name, running_on="r0", may_be_moved=True) for name in "abcd"]
    replicas = [replica("r0", slots=4), replica("r1", slots=4)]
    (move,) = place(replicas, demands).moves
    assert (move.job, move.source, move.target, move.gain) == ("a", "r0", "r1", 0.25)
    assert place(replicas, demands, PlacementPolicy(min_move_gain=0.26)).moves == ()


def test_higher_priority_then_first_come_then_name() -> None:
    demands = [job("a", queued_at=5), job("b", queued_at=1), job("c", priority=1, queued_at=9), job("d", queued_at=1)]
    got = place([replica(slots=2)], demands)
    assert set(got.replica_of) == {"c", "b"}
    assert [(name, refusal.position) for name, refusal in got.refusals.items()] == [("d", 1), ("a", 2)]


@pytest.mark.parametrize(
    "replicas, demands, want",
    [
        ([], [job("x")], (RefusalKind.NO_REPLICA, 1, 0, ())),
        ([replica(takes_jobs=False)], [job("x")], (RefusalKind.NO_REPLICA, 1, 0, ())),
        ([replica(slots=0)], [job("x")], (RefusalKind.NO_REPLICA, 1, 0, ())),
        ([replica(rank=16), replica("r1", rank=32)], [job("x", rank=64)], (RefusalKind.RANK_TOO_HIGH, 64, 32, ())),
        ([replica(gib=10)], [job("x", gib=11)], (RefusalKind.ADAPTER_TOO_LARGE, 11 * GIB, 10 * GIB, ())),
        (
            [replica(rank=64, gib=1), replica("r1", rank=8, gib=99)],
            [job("x", rank=64, gib=2)],
            (RefusalKind.ADAPTER_TOO_LARGE, 2 * GIB, GIB, ()),
        ),
        (
            [replica(slots=1)],
            [job("a", running_on="r0"), job("x")],
            (RefusalKind.NO_FREE_SLOT, 1, 0, ("a",)),
        ),
        (
            [replica(slots=3, gib=10)],
            [job("a", gib=7, running_on="r0"), job("x", gib=4)],
            (RefusalKind.NO_FREE_MEMORY, 4 * GIB, 3 * GIB, ("a",)),
        ),
    ],
    ids=[
        "no replica",
        "only a draining one",
        "a replica without slots",
        "rank above every replica's",
        "adapter larger than any memory",
        "larger than that of those that take its rank",
        "all slots taken",
        "memory taken",
    ],
)
def test_every_refusal_has_a_kind_and_numbers(replicas: list[Replica], demands: list[Demand], want: tuple) -> None:
    refusal = place(replicas, demands).refusals["x"]
    assert (refusal.kind, refusal.needed, refusal.free, refusal.held_by) == want
    assert refusal.position == 1


@pytest.mark.parametrize(
    "policy, victim, want",
    [
        (PlacementPolicy(), job("low", running_on="r0", may_be_moved=True), "high"),
        (PlacementPolicy(), job("low", running_on="r0"), "low"),
        (PlacementPolicy(), job("low", running_on="r0", may_be_moved=True, priority=5), "low"),
        (PlacementPolicy(preempt_lower_priority=False), job("low", running_on="r0", may_be_moved=True), "low"),
    ],
    ids=["lower priority gives way", "not before its minimum run time", "equal priority stays", "preemption is off"],
)
def test_preemption(policy: PlacementPolicy, victim: Demand, want: str) -> None:
    got = place([replica(slots=1)], [victim, job("high", priority=5)], policy)
    assert set(got.replica_of) == {want}
    assert got.evictions == ((Eviction("low", "r0", "high"),) if want == "high" else ())


def test_the_fewest_lowest_and_youngest_give_way_and_go_elsewhere_if_they_can() -> None:
    demands = [
        job("old", running_on="r0", may_be_moved=True, queued_at=1),
        job("young", running_on="r0", may_be_moved=True, queued_at=2),
        job("big", rank=64, priority=1, queued_at=3),
    ]
    got = place([replica("r0", rank=64), replica("r1", slots=1, rank=8)], demands)
    assert got.replica_of == {"old": "r0", "young": "r1", "big": "r0"}
    assert got.evictions == (Eviction("young", "r0", "big"),)


def test_jobs_of_a_draining_or_vanished_replica_find_another() -> None:
    demands = [job("a", running_on="r0"), job("b", running_on="gone")]
    got = place([replica("r0", takes_jobs=False), replica("r1")], demands)
    assert got.replica_of == {"a": "r1", "b": "r1"}


def test_a_replica_that_lost_slots_keeps_the_jobs_first_in_the_queue() -> None:
    demands = [job("a", running_on="r0", queued_at=2), job("b", running_on="r0", queued_at=1)]
    got = place([replica(slots=1)], demands)
    assert got.replica_of == {"b": "r0"}


def test_a_solver_finds_room_that_greedy_missed_and_moves_nothing_that_runs() -> None:
    replicas = [replica("r0", slots=4, gib=10), replica("r1", slots=4, gib=10, speed=500)]
    demands = [
        job("run", gib=1, running_on="r0"),
        job("a", gib=5, queued_at=1),
        job("b", gib=4, queued_at=2),
        job("c", gib=5, queued_at=3),
        job("d", gib=5, queued_at=4),
    ]
    greedy = place(replicas, demands)
    assert set(greedy.refusals) == {"d"}
    with SolverPool(num_workers=1) as solver:
        got = place_jobs(replicas, demands, PlacementPolicy(), solver=solver, solver_timeout_seconds=60)
    assert find_placement_faults(got, replicas, demands) == []
    assert got.refusals == {}
    assert got.replica_of["run"] == "r0"


@pytest.mark.parametrize("rooms", ["[0] * 99", "[0, 0, 0, 0]", "[None] * 4", "'r0'", "[9, 9, 9, 9]", "[True] * 4"])
def test_a_lying_solver_leaves_the_greedy_placement(rooms: str, tmp_path: Path) -> None:
    program = tmp_path / "stub.py"
    program.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        f"    print(json.dumps(dict(id=json.loads(line)['id'], roomOf={rooms})), flush=True)\n"
    )
    replicas = [replica("r0", gib=9), replica("r1", gib=9, speed=500)]
    demands = [job("a", gib=5), job("b", gib=4), job("c", gib=5), job("d", gib=5)]
    greedy = place_jobs(replicas, demands, PlacementPolicy())
    with SolverPool(num_workers=1, command=(sys.executable, str(program))) as solver:
        got = place_jobs(replicas, demands, PlacementPolicy(), solver=solver, solver_timeout_seconds=5)
    assert got == greedy


@pytest.mark.parametrize(
    "replicas, demands, words",
    [
        ([replica(), replica()], [], "replica r0: listed 2 times"),
        ([], [job("a"), job("a")], "job a: listed 2 times"),
        ([replica(speed=0)], [], "tokens_per_second must be above 0"),
        ([], [job("a", rank=0)], "rank must be 1 or more"),
    ],
)
def test_impossible_input_is_refused(replicas: list[Replica], demands: list[Demand], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        place_jobs(replicas, demands, PlacementPolicy())


@pytest.mark.parametrize(
    "placement, words",
    [
        (Placement({}, {}), "job a is neither placed nor refused"),
        (Placement({"a": "r0", "z": "r0"}, {}), "job z was not asked for"),
        (Placement({"a": "r9"}, {}), "job a is on r9, which is no replica"),
    ],
)
def test_a_wrong_placement_is_seen(placement: Placement, words: str) -> None:
    assert words in find_placement_faults(placement, [replica()], [job("a")])


def test_too_much_on_a_replica_is_seen() -> None:
    demands = [job("a"), job("b"), job("c")]
    placement = Placement(dict.fromkeys("abc", "r0"), {})
    assert find_placement_faults(placement, [replica(slots=2)], demands) == ["job c does not fit on r0"]


@st.composite
def draw_pool(draw: st.DrawFn) -> tuple[list[Replica], list[Demand]]:
    replicas = [
        Replica(
            f"r{i}",
            draw(st.integers(0, 4)),
            draw(st.sampled_from([8, 64])),
            draw(st.integers(0, 20)),
            100.0,
            draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, 4)))
    ]
    hosts = st.sampled_from([None, "gone", *(r.name for r in replicas)])
    demands = [
        Demand(
            f"j{i}",
            draw(st.sampled_from([1, 16, 65])),
            draw(st.integers(0, 12)),
            draw(st.integers(0, 500)),
            draw(st.integers(0, 3)),
            draw(st.integers(-1, 2)),
            draw(hosts),
            draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, 12)))
    ]
    return replicas, demands


@settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(draw_pool())
def test_any_pool_is_placed_without_fault_and_a_second_pass_changes_nothing_by_priority(
    pool: tuple[list[Replica], list[Demand]],
) -> None:
    replicas, demands = pool
    policy = PlacementPolicy(min_move_gain=2.0)  # no moves: they are tested above
    first = place(replicas, demands, policy)
    assert place(replicas, list(reversed(demands)), policy) == first
    settled = [
        Demand(
            d.job,
            d.rank,
            d.adapter_bytes,
            d.step_tokens,
            d.queued_at,
            d.priority,
            first.replica_of.get(d.job),
            d.may_be_moved,
        )
        for d in demands
    ]
    second = place(replicas, settled, policy)
    assert second.replica_of == first.replica_of
    assert second.evictions == ()
