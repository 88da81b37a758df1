"""Whole lives of jobs and pools, decided pass by pass."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders.operator_world import World, conditions_of, make_job, make_pool
from multigraft.api.adapter_job_status import JobPhase
from multigraft.api.conditions import ConditionStatus, JobCondition, PoolCondition
from multigraft.api.control import BasePhase, TrainerJobPhase
from multigraft_operator.decide import decide
from multigraft_operator.observed import Key, PodProblem

UID = "uid-team-a-a"
DONE: dict[str, Any] = {
    "step": 10,
    "output_uri": "/output/adapters/team-a/a",
    "output_digest": "sha256:0",
    "output_bytes": 9,
}


def make_world(*jobs: Any, pods: int = 1, slots: int = 2, **pool: Any) -> World:
    pool.setdefault("replicas", pods)
    world = World().add(make_pool(**pool), *(jobs or (make_job(),)))
    for number in range(pods):
        world.add_pod(number=number, slots=slots)
    return world


def only_trainer(world: World) -> Any:
    return next(iter(world.trainers.values()))


def test_every_condition_is_set_on_the_first_visit() -> None:
    world = World().add(make_job())
    world.step()
    assert [c.type for c in world.job().status.conditions] == [str(kind) for kind in JobCondition]


def test_a_job_is_admitted_told_to_its_trainer_and_runs_only_once_that_says_so() -> None:
    world = make_world()
    world.step()
    job = world.job()
    assert conditions_of(job)["Admitted"].status is ConditionStatus.TRUE
    assert conditions_of(job)["Running"].status is ConditionStatus.FALSE
    assert job.has_finalizer
    assert not only_trainer(world).jobs  # not before status and finalizer are written
    world.settle(steps=3)
    assert conditions_of(world.job())["Running"].status is ConditionStatus.TRUE
    assert world.job().status.phase is JobPhase.RUNNING
    assert world.job().status.assignment is not None
    assert world.job().status.assignment.slot == 0


def test_a_trainer_that_does_not_load_the_job_leaves_it_not_running() -> None:
    world = make_world()
    world.settle(steps=2)
    only_trainer(world).say(UID, TrainerJobPhase.WAITING, reason="NoFreeSlot", message="2 of 2 slots are in use")
    world.settle(steps=2)
    got = conditions_of(world.job())["Running"]
    assert (got.status, got.reason) == (ConditionStatus.FALSE, "NoFreeSlot")


def test_success_is_written_before_the_trainer_may_forget_the_job() -> None:
    world = make_world().settle(steps=4)
    only_trainer(world).say(UID, TrainerJobPhase.SUCCEEDED, **DONE)
    world.step()
    assert world.job().status.phase is JobPhase.SUCCEEDED
    assert UID in only_trainer(world).jobs
    world.settle(steps=3)
    assert UID not in only_trainer(world).jobs
    assert not world.job().has_finalizer
    output = world.job().status.output
    assert output is not None
    assert output.digest == "sha256:0"


def test_a_job_that_ended_stays_as_it_is_whatever_its_trainer_says() -> None:
    world = make_world().settle(steps=4)
    only_trainer(world).say(UID, TrainerJobPhase.FAILED, reason="InvalidDataset", message="row 3")
    world.step()
    before = world.job().status
    only_trainer(world).say(UID, TrainerJobPhase.RUNNING)
    world.settle(steps=5)
    assert world.job().status == before
    assert before.reason == "InvalidDataset"
    assert "row 3" in conditions_of(world.job())["Failed"].message


def test_nothing_is_written_when_nothing_changes() -> None:
    world = make_world(make_job("a"), make_job("b"), make_job("c"), slots=2).settle(steps=8)
    before = world.num_writes
    world.settle(steps=20, seconds=60)
    assert world.num_writes == before


def test_progress_is_written_at_most_every_thirty_seconds() -> None:
    world = make_world().settle(steps=6)
    world.settle(steps=1, seconds=60)
    before = world.num_writes
    for step in range(60):
        only_trainer(world).say(UID, TrainerJobPhase.RUNNING, step=min(9, step // 6), loss=1.0 / (step + 1))
        world.step()
    assert 1 <= world.num_writes - before <= 3


@pytest.mark.parametrize(
    "job, pool, reason, words",
    [
        pytest.param(make_job(poolRef={"name": "nope"}), {}, "PoolNotFound", "nope", id="the pool is not there"),
        pytest.param(
            make_job(lora={"r": 128}), {}, "RankExceedsPool", "128 is over slots.maxRank 64", id="the rank is too high"
        ),
        pytest.param(
            make_job(training={"maxSeqLength": 8192}), {}, "SequenceExceedsCapacity", "4096", id="samples are too long"
        ),
        pytest.param(make_job(poolSelector={"matchLabels": {"x": "y"}}), {}, "PoolNotFound", "0 of 1", id="no labels"),
    ],
)
def test_a_job_that_no_pool_can_take_says_why(job: Any, pool: Any, reason: str, words: str) -> None:
    world = make_world(job, **pool).settle(steps=2)
    got = conditions_of(world.job())["Admitted"]
    assert (got.status, got.reason) == (ConditionStatus.FALSE, reason)
    assert words in got.message
    assert conditions_of(world.job())["Validated"].status is ConditionStatus.FALSE
    assert world.job().status.phase is JobPhase.PENDING


def test_a_job_without_a_slot_says_how_many_there_are_who_holds_them_and_its_position() -> None:
    jobs = [make_job(name, created=number) for number, name in enumerate("abcd")]
    world = make_world(*jobs).settle(steps=4)
    got = conditions_of(world.job("d"))["Admitted"]
    assert got.reason == "NoFreeSlot"
    assert got.message == (
        "needs 1 slot, 0 of 2 are free on 1 pods; held by team-a/a, team-a/b; position 2 in the queue of pool tiny"
    )
    assert world.job("d").status.queue_position == 2
    assert world.job("d").status.phase is JobPhase.QUEUED


def test_a_job_of_a_pool_that_is_not_ready_hears_what_ails_its_pods() -> None:
    world = make_world()
    uid = next(iter(world.pods))
    problem = PodProblem("ImagePullFailed", "Back-off pulling image registry.invalid/x:1")
    world.pods[uid] = replace(world.pods[uid], address="", problem=problem)
    world.trainers.clear()
    world.step()
    got = conditions_of(world.job())["Admitted"]
    assert got.reason == "PoolNotReady"
    assert "0 of 1 trainer pods" in got.message
    assert "registry.invalid/x:1" in got.message
    degraded = conditions_of(world.pools[Key("team-a", "tiny")])["Degraded"]
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, "ImagePullFailed")


def test_a_base_model_that_cannot_be_loaded_is_told_by_pool_and_job() -> None:
    world = make_world()
    only_trainer(world).base = BasePhase.FAILED
    world.step()
    assert conditions_of(world.job())["Admitted"].reason == "PoolNotReady"
    got = conditions_of(world.pools[Key("team-a", "tiny")])["ModelLoaded"]
    assert got.status is ConditionStatus.FALSE


def test_suspend_checkpoints_and_frees_the_slot_and_resume_goes_on() -> None:
    world = make_world().settle(steps=4)
    only_trainer(world).is_slow_to_leave = True
    world.change("a", suspend=True)
    world.settle(steps=3)
    assert world.job().status.phase is JobPhase.CHECKPOINTING
    assert world.job().status.assignment is not None
    only_trainer(world).jobs.clear()
    world.settle(steps=3)
    assert world.job().status.phase is JobPhase.SUSPENDED
    assert world.job().status.assignment is None
    assert not world.job().has_finalizer
    world.change("a", suspend=False)
    world.settle(steps=4)
    assert world.job().status.phase is JobPhase.RUNNING
    assert world.job().status.attempts == 1


def test_a_job_created_suspended_is_never_told_to_a_trainer() -> None:
    world = make_world(make_job(suspend=True)).settle()
    assert not only_trainer(world).jobs
    assert world.job().status.phase is JobPhase.SUSPENDED


def test_the_deadline_fails_the_job_and_frees_the_slot() -> None:
    world = make_world(make_job(activeDeadlineSeconds=30)).settle(steps=4)
    world.settle(steps=4, seconds=20)
    assert world.job().status.reason == "DeadlineExceeded"
    assert not only_trainer(world).jobs
    assert not world.job().has_finalizer


def test_a_retryable_failure_is_tried_again_after_a_pause_until_the_limit() -> None:
    world = make_world(make_job(backoffLimit=1)).settle(steps=4)
    only_trainer(world).say(UID, TrainerJobPhase.FAILED, reason="InternalError", message="lost a thread")
    world.settle(steps=3)
    got = conditions_of(world.job())["Admitted"]
    assert got.reason == "BackOff"
    assert "retry 1 of 1" in got.message
    assert not only_trainer(world).jobs
    world.settle(steps=6, seconds=5)
    assert world.job().status.phase is JobPhase.RUNNING
    assert world.job().status.attempts == 2
    only_trainer(world).say(UID, TrainerJobPhase.FAILED, reason="InternalError", message="lost a thread")
    world.settle(steps=4)
    assert world.job().status.phase is JobPhase.FAILED
    assert "try 2" in conditions_of(world.job())["Failed"].message


def test_a_failure_of_an_earlier_try_is_not_counted_twice() -> None:
    world = make_world(make_job(backoffLimit=3)).settle(steps=4)
    trainer = only_trainer(world)
    trainer.say(UID, TrainerJobPhase.FAILED, reason="InternalError", message="x")
    trainer.is_slow_to_leave = True
    world.settle(steps=5)
    assert world.job().status.attempts == 2


def test_a_finished_job_is_deleted_after_its_ttl() -> None:
    world = make_world(make_job(ttlSecondsAfterFinished=60)).settle(steps=4)
    only_trainer(world).say(UID, TrainerJobPhase.SUCCEEDED, **DONE)
    world.settle(steps=5)
    assert Key("team-a", "a") in world.jobs
    world.settle(steps=2, seconds=60)
    assert Key("team-a", "a") not in world.jobs


def test_a_lost_pod_sends_its_jobs_to_another_one() -> None:
    world = make_world(pods=2).settle(steps=4)
    assert world.job().status.assignment is not None
    first = world.job().status.assignment.pod_uid or ""
    world.remove_pod(first)
    world.settle(steps=4)
    assert world.job().status.assignment is not None
    assert world.job().status.assignment.pod_uid != first
    assert world.job().status.phase is JobPhase.RUNNING
    assert world.job().status.attempts == 1


def test_a_pod_of_the_same_name_with_another_uid_is_a_new_pod() -> None:
    world = make_world().settle(steps=4)
    world.remove_pod("pod-team-a-tiny-cpu-0")
    world.step()
    got = conditions_of(world.job())["Admitted"]
    assert (got.status, got.reason) == (ConditionStatus.FALSE, "TrainerLost")
    world.add_pod(uid="second")
    world.settle(steps=4)
    assert world.job().status.assignment is not None
    assert world.job().status.assignment.pod_uid == "second"
    assert conditions_of(world.job())["Running"].status is ConditionStatus.TRUE


def test_a_silent_trainer_makes_running_unknown_and_keeps_its_jobs() -> None:
    world = make_world(pods=2).settle(steps=4)
    assert world.job().status.assignment is not None
    uid = world.job().status.assignment.pod_uid or ""
    world.trainers[uid].is_reachable = False
    world.settle(steps=5, seconds=10)
    got = conditions_of(world.job())["Running"]
    assert (got.status, got.reason) == (ConditionStatus.UNKNOWN, "TrainerUnreachable")
    assert world.job().status.assignment.pod_uid == uid
    world.trainers[uid].is_reachable = True
    world.settle(steps=2)
    assert conditions_of(world.job())["Running"].status is ConditionStatus.TRUE


def test_a_more_important_job_gets_the_slot_only_after_the_other_has_left_it() -> None:
    low = make_job("low", priority=0)
    world = make_world(low, slots=1, scheduling={"preemptMinRuntimeSeconds": 0}).settle(steps=4)
    trainer = only_trainer(world)
    trainer.is_slow_to_leave = True
    world.add(make_job("high", priority=10))
    world.settle(steps=4)
    assert conditions_of(world.job("low"))["Preempted"].status is ConditionStatus.TRUE
    assert conditions_of(world.job("high"))["Admitted"].reason == "WaitingForPreemptedJobs"
    assert "uid-team-a-high" not in trainer.jobs
    trainer.jobs.clear()
    world.settle(steps=4)
    assert world.job("high").status.phase is JobPhase.RUNNING
    assert world.job("low").status.phase is JobPhase.PREEMPTED
    assert world.job("low").status.preemptions == 1


def test_a_job_is_not_preempted_before_its_least_runtime() -> None:
    world = make_world(make_job("low"), slots=1).settle(steps=4)
    world.add(make_job("high", priority=10))
    world.settle(steps=4)
    assert world.job("low").status.phase is JobPhase.RUNNING
    assert conditions_of(world.job("high"))["Admitted"].reason == "NoFreeSlot"


@pytest.mark.parametrize("steps", range(6))
def test_a_job_deleted_in_any_phase_goes(steps: int) -> None:
    world = make_world().settle(steps=steps)
    world.change("a", deleted_at=world.now)
    world.settle(steps=4)
    assert not world.jobs
    assert not only_trainer(world).jobs


def test_a_deleted_job_goes_in_the_end_though_its_trainer_is_silent() -> None:
    world = make_world(drainTimeoutSeconds=60).settle(steps=4)
    only_trainer(world).is_reachable = False
    world.change("a", deleted_at=world.now)
    world.settle(steps=5)
    assert world.jobs
    world.settle(steps=4, seconds=30)
    assert not world.jobs


def test_a_job_deleted_while_the_operator_was_down_is_not_trained_again() -> None:
    world = make_world().settle(steps=4)
    world.change("a", deleted_at=world.now)
    world.forget()
    world.settle(steps=4)
    assert not world.jobs


@pytest.mark.parametrize("policy", ["Drain", "Block", "Force"])
def test_a_deleted_pool_does_as_its_policy_says(policy: str) -> None:
    world = make_world(deletionPolicy=policy).settle(steps=5)
    key = Key("team-a", "tiny")
    assert world.pools[key].has_finalizer
    world.pools[key] = replace(world.pools[key], deleted_at=world.now)
    world.settle(steps=5)
    if policy == "Block":
        assert conditions_of(world.pools[key])["Draining"].reason == "DeletionBlocked"
        assert world.job().status.phase is JobPhase.RUNNING
        only_trainer(world).say(UID, TrainerJobPhase.SUCCEEDED, **DONE)
        world.settle(steps=4)
    assert key not in world.pools


def test_a_deleted_pool_takes_no_new_jobs() -> None:
    world = make_world(deletionPolicy="Block").settle(steps=5)
    key = Key("team-a", "tiny")
    world.pools[key] = replace(world.pools[key], deleted_at=world.now)
    world.add(make_job("late"))
    world.settle(steps=2)
    assert conditions_of(world.job("late"))["Admitted"].reason == "PoolDraining"


def test_a_pool_says_how_many_trainers_and_slots_there_are() -> None:
    world = make_world(pods=2).settle(steps=6)
    pool = world.pools[Key("team-a", "tiny")]
    assert pool.status.ready == "2/2"
    assert pool.status.slots is not None
    assert pool.status.slots.display == "1/4"
    assert [str(kind) for kind in PoolCondition] == [c.type for c in pool.status.conditions]
    assert conditions_of(pool)["Ready"].status is ConditionStatus.TRUE


def test_the_same_is_decided_from_the_same() -> None:
    world = make_world(*(make_job(name) for name in "abcdef"), pods=2).settle(steps=2)
    assert decide(world.seen()) == decide(world.seen())


def test_one_event_is_told_for_each_changed_condition_and_none_twice() -> None:
    world = make_world().settle(steps=6)
    before = len(world.events)
    world.settle(steps=10)
    assert len(world.events) == before
    told = [event.reason for event in world.events if event.kind == "AdapterJob"]
    assert len(told) == len(set(told))
    assert {"SlotAssigned", "Training"} <= set(told)


def test_a_selector_takes_the_pool_with_most_room() -> None:
    labels = {"tier": "small"}
    world = World().add(make_pool("one", labels=labels), make_pool("two", labels=labels))
    world.add_pod("one", slots=1)
    world.add_pod("two", 1, slots=4)
    world.settle(steps=2)
    world.add(make_job(poolSelector={"matchLabels": labels}))
    world.settle(steps=2)
    assert world.job().status.assignment is not None
    assert world.job().status.assignment.pool == "two"


def test_K07_a_pool_of_another_namespace_is_never_used() -> None:
    world = World().add(make_pool(namespace="other-team"), make_job())
    world.add_pod(namespace="other-team")
    world.settle(steps=3)
    assert conditions_of(world.job())["Admitted"].reason == "PoolNotFound"


@pytest.mark.parametrize("first", range(1, 12))
@pytest.mark.parametrize("second", [0, 1, 2, 5])
def test_H08_a_crash_between_any_two_writes_changes_nothing_in_the_end(first: int, second: int) -> None:
    jobs = [make_job(name, created=number) for number, name in enumerate("abc")]
    world = make_world(*jobs, pods=2, slots=1)
    for most in (first, second):
        world.step(most_actions=most)
        world.forget()
        world.step(most_actions=most)
    world.settle(steps=6)
    for uid in [f"uid-team-a-{name}" for name in "abc"]:
        for trainer in world.trainers.values():
            if uid in trainer.jobs:
                trainer.say(uid, TrainerJobPhase.SUCCEEDED, **DONE)
                world.step(most_actions=first)
                world.forget()
        world.settle(steps=6)
    assert [job.status.phase for job in world.jobs.values()] == [JobPhase.SUCCEEDED] * 3
    assert not any(job.has_finalizer for job in world.jobs.values())
    assert world.most_holders == 1


def test_a_trainer_that_may_have_the_job_keeps_it_from_being_placed_elsewhere() -> None:
    world = make_world(pods=2, slots=1, scheduling={"preemptMinRuntimeSeconds": 0}).settle(steps=4)
    assert world.job().status.assignment is not None
    uid = world.job().status.assignment.pod_uid or ""
    world.change("a", suspend=True)
    world.step()
    world.trainers[uid].is_reachable = False
    world.change("a", suspend=False)
    world.settle(steps=6, seconds=10)
    assert world.most_holders == 1
    assert world.job().status.phase is JobPhase.CHECKPOINTING
    world.trainers[uid].is_reachable = True
    world.settle(steps=4)
    assert world.job().status.phase is JobPhase.RUNNING


def test_decide_takes_long_lists() -> None:
    jobs = [make_job(f"j{number:04d}", created=number) for number in range(300)]
    world = make_world(*jobs, pods=4, slots=8)
    world.settle(steps=3)
    assert sum(job.status.phase is JobPhase.RUNNING for job in world.jobs.values()) == 32
    assert world.job("j0299").status.queue_position == 200


def test_jobs_lost_with_their_pod_are_served_in_their_old_order() -> None:
    world = make_world(make_job("a"), make_job("b", created=1), slots=1).settle(steps=4)
    world.remove_pod("pod-team-a-tiny-cpu-0")
    world.step(seconds=timedelta(minutes=5).total_seconds())
    world.add_pod(uid="second", slots=1)
    world.settle(steps=4)
    assert world.job("a").status.phase is JobPhase.RUNNING


def test_a_job_that_asks_for_credentials_of_its_own_is_refused_and_says_whose_there_are() -> None:
    world = World().add(make_pool(), make_job(dataset={"storageUri": "a.jsonl", "secretRef": {"name": "mine"}}))
    trainer = world.add_pod()
    world.settle()
    admitted = conditions_of(world.job())["Admitted"]
    assert (admitted.status, admitted.reason) == ("False", "NotSupported")
    assert "got mine; credentials are the pool's" in admitted.message
    assert not trainer.jobs


def test_R8_a_job_that_failed_twice_on_a_pod_is_put_on_another_one() -> None:
    world = World().add(make_pool(replicas=2), make_job())
    pods = {f"pod-team-a-tiny-cpu-{number}": world.add_pod(number=number) for number in (0, 1)}
    world.settle()
    (first,) = [uid for uid, trainer in pods.items() if trainer.jobs]
    world.failures[world.job().uid, first] = 2
    pods[first].say(world.job().uid, TrainerJobPhase.FAILED, reason="InternalError", message="device lost")
    world.settle(steps=40)
    assert world.job().status.phase is JobPhase.RUNNING
    assert not pods[first].jobs


def test_R8_a_pod_on_which_many_jobs_failed_gets_no_more_while_there_is_another() -> None:
    world = World().add(make_pool(replicas=2))
    bad, good = world.add_pod(number=0, slots=4), world.add_pod(number=1, slots=4)
    world.failures = {(f"job-{number}", "pod-team-a-tiny-cpu-0"): 1 for number in range(3)}
    world.add(*(make_job(name) for name in "abc")).settle()
    assert (len(bad.jobs), len(good.jobs)) == (0, 3)
    degraded = conditions_of(world.pools[Key("team-a", "tiny")])["Degraded"]
    assert (degraded.status, degraded.reason) == ("True", "PodFailing")
    world.remove_pod("pod-team-a-tiny-cpu-1")
    world.settle()
    assert len(bad.jobs) == 3, "better a bad pod than none"


def test_R1_a_new_leader_writes_nothing_before_it_has_heard_of_the_trainers() -> None:
    world = World().add(make_pool(), make_job())
    trainer = world.add_pod()
    world.settle()
    world.forget()
    trainer.is_reachable = False
    seen = replace(world.seen(), began_at=world.now)
    assert not decide(seen).statuses
    assert decide(replace(seen, now=world.now + timedelta(seconds=21))).statuses


def test_H14_a_pool_whose_pods_exceed_the_quota_says_so_to_the_jobs_that_wait() -> None:
    world = World().add(make_pool(), make_job())
    refusal = PodProblem("QuotaExceeded", "pods is forbidden: exceeded quota: small, requested: cpu=4")
    seen = replace(world.seen(), refusals={Key("team-a", "tiny"): refusal})
    written = {write.target.key.name: write.status for write in decide(seen).statuses}
    degraded = {c["type"]: c for c in written["tiny"]["conditions"]}["Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "QuotaExceeded")
    admitted = {c["type"]: c for c in written["a"]["conditions"]}["Admitted"]
    assert "exceeded quota: small" in admitted["message"]


def test_C22_progress_of_many_jobs_is_told_ten_times_a_second_in_all_and_each_gets_its_turn() -> None:
    world = World().add(make_pool(slots={"max": 64}), *(make_job(f"job-{number}") for number in range(50)))
    trainer = world.add_pod(slots=64)
    world.settle()
    world.now += timedelta(seconds=60)
    told: set[str] = set()
    for step in range(2, 8):
        for uid in trainer.jobs:
            trainer.say(uid, TrainerJobPhase.RUNNING, step=step)
        written = [write.target.uid for write in world.step(seconds=3.1).statuses if write.is_quiet]
        assert len(written) <= 30
        told |= set(written)
    assert len(told & set(trainer.jobs)) == 50
