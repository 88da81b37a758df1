"""Of two live trainers on one storage, only the later one writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.checkpoints.owner_claim import FILE, Claim, OwnerClaims


def make_claims(owner: str, epoch: int = 1, sequence: int = 1) -> OwnerClaims:
    return OwnerClaims(lambda: Claim(epoch, sequence, owner))


def test_the_later_trainer_takes_the_job_and_the_first_one_writes_no_more(tmp_path: Path) -> None:
    first, second = make_claims("pod-0/a", sequence=5), make_claims("pod-1/b", sequence=6)
    first.take(tmp_path / "job")
    first.check(tmp_path / "job")
    second.take(tmp_path / "job")
    with pytest.raises(RefusalError, match=r"job: trained by pod-1/b, of epoch 1, now") as caught:
        first.check(tmp_path / "job")
    assert caught.value.reason is Reason.CLAIM_LOST
    second.check(tmp_path / "job")


@pytest.mark.parametrize("epoch, sequence", [(1, 5), (0, 9)])
def test_a_trainer_that_is_cut_off_cannot_take_the_job_back(tmp_path: Path, epoch: int, sequence: int) -> None:
    make_claims("pod-1/b", epoch=1, sequence=6).take(tmp_path)
    with pytest.raises(RefusalError, match="trained by pod-1/b"):
        make_claims("pod-0/a", epoch=epoch, sequence=sequence).take(tmp_path)


def test_a_restarted_process_of_the_pod_goes_on_with_the_same_set(tmp_path: Path) -> None:
    make_claims("pod-0/a", sequence=5).take(tmp_path)
    again = make_claims("pod-0/b", sequence=5)
    again.take(tmp_path)
    again.check(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"epoch": 1}', b"[]"])
def test_a_claim_that_cannot_be_read_is_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    make_claims("pod-0/a").check(tmp_path)
    make_claims("pod-0/a").take(tmp_path)
