"""Talk to a trainer over real HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from builders.fake_trainer import FakeTrainer
from builders.operator_world import START, make_job
from multigraft.api.control import AssignedJob, Assignments, ObjectId
from multigraft_operator.decision import DesiredTrainer
from multigraft_operator.metrics import OperatorMetrics
from multigraft_operator.observed import PodView, Talk
from multigraft_operator.trainer_talk import StaleEpochError, TrainerTalk

KEY = b"k" * 32


@pytest.fixture
def trainer() -> Iterator[FakeTrainer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with FakeTrainer("127.0.0.1", port, pod="p-0", pool="team-a/p") as trainer:
        yield trainer


def make_wanted(*names: str, epoch: int = 1, talk: Talk | None = None) -> DesiredTrainer:
    pod = PodView("p-0", "team-a", "pod-uid", "p", created_at=START, address="127.0.0.1", talk=talk or Talk())
    jobs = []
    for name in names:
        job = make_job(name)
        assert job.spec is not None
        id_ = ObjectId(namespace="team-a", name=name, uid=job.uid)
        jobs.append(AssignedJob(id=id_, generation=1, attempt=1, spec=job.spec))
    pool = ObjectId(namespace="team-a", name="p", uid="pool-uid")
    return DesiredTrainer(pod, Assignments(epoch=epoch, pool=pool, pod="p-0", jobs=jobs))


async def talk_in_turn(trainer: FakeTrainer, *turns: DesiredTrainer) -> list[dict[str, Talk]]:
    talk = TrainerTalk(KEY, trainer.port, OperatorMetrics(), poll_seconds=0.0)
    try:
        return [await talk.talk_to_all((turn,)) for turn in turns]
    finally:
        await talk.close()


def test_a_set_is_sent_once_and_then_only_asked_for(trainer: FakeTrainer) -> None:
    got = asyncio.run(talk_in_turn(trainer, make_wanted("a"), make_wanted("a"), make_wanted("a", "b")))
    assert trainer.puts == 2
    assert got[0]["pod-uid"].confirmed == frozenset({"uid-team-a-a"})
    assert got[1]["pod-uid"].confirmed == frozenset({"uid-team-a-a"})
    assert got[2]["pod-uid"].confirmed == frozenset({"uid-team-a-a", "uid-team-a-b"})


def test_R18_after_a_lost_answer_nothing_is_known_until_the_set_is_sent_again(trainer: FakeTrainer) -> None:
    known = Talk(confirmed=frozenset({"uid-team-a-a"}))

    async def lose_then_repeat() -> tuple[Talk, Talk]:
        talk = TrainerTalk(KEY, trainer.port, OperatorMetrics(), poll_seconds=0.0)
        try:
            trainer.drop_answers = 1_000  # aiohttp itself sends once more what it may
            lost = (await talk.talk_to_all((make_wanted(talk=known),)))["pod-uid"]
            trainer.drop_answers = 0
            await asyncio.sleep(1.1)
            return lost, (await talk.talk_to_all((make_wanted(talk=lost),)))["pod-uid"]
        finally:
            await talk.close()

    lost, repeated = asyncio.run(lose_then_repeat())
    assert lost.confirmed is None
    assert repeated.confirmed == frozenset()


def test_a_trainer_that_does_not_answer_keeps_what_was_known(trainer: FakeTrainer) -> None:
    first = make_wanted("a")
    got = asyncio.run(talk_in_turn(trainer, first))[0]["pod-uid"]
    trainer.trainer.is_reachable = False
    again = replace(first, pod=replace(first.pod, talk=got))
    silent = asyncio.run(talk_in_turn(trainer, again))[0]["pod-uid"]
    assert (silent.state, silent.heard_at, silent.confirmed) == (got.state, got.heard_at, None)


def test_a_later_epoch_of_a_trainer_is_told(trainer: FakeTrainer) -> None:
    trainer.trainer.epoch = 7
    with pytest.raises(StaleEpochError, match="obeyed epoch 7"):
        asyncio.run(talk_in_turn(trainer, make_wanted("a", epoch=3)))
