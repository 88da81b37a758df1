from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multigraft.api.adapter_job import BadRowPolicy, LongSamplePolicy
from multigraft.api.reasons import RefusalError
from multigraft_trainer.intake.account import Account, OutOfRange
from multigraft_trainer.intake.codes import RowCode
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.samples import DroppedRow

DROPPED = st.lists(
    st.builds(
        DroppedRow,
        row=st.integers(1, 10**7),
        code=st.sampled_from([code.value for code in RowCode]),
        message=st.text(max_size=200),
    ),
    min_size=1,
    max_size=200,
)


@given(
    dropped=DROPPED,
    num_trained=st.sampled_from([0, 5]),
    long_sample_policy=st.sampled_from(list(LongSamplePolicy)),
    name=st.text(max_size=80),
)
def test_G13_no_refusal_is_longer_than_500_characters(
    dropped: list[DroppedRow], num_trained: int, long_sample_policy: LongSamplePolicy, name: str
) -> None:
    account = Account(name, num_trained=num_trained, dropped=dropped)
    options = IntakeOptions(bad_row_policy=BadRowPolicy.FAIL, long_sample_policy=long_sample_policy)
    try:
        account.conclude(options, embedding_rows=512)
    except RefusalError as error:
        text = str(error)
    else:
        assert {row.code for row in dropped} == {RowCode.SAMPLE_TOO_LONG}
        return
    assert len(text) < 500
    assert any(row.code in text for row in dropped)


def test_first_row_numbers_of_each_code_and_then_a_count() -> None:
    dropped = [DroppedRow(row, RowCode.EMPTY_TEXT, "`text` is empty") for row in range(9, 0, -1)]
    dropped.append(DroppedRow(4, RowCode.NOT_UTF8, "not UTF-8 at byte 7"))
    with pytest.raises(RefusalError) as caught:
        Account("'f'", num_trained=1, dropped=dropped).conclude(IntakeOptions(), embedding_rows=1)
    assert "EmptyText 9 (rows 1, 2, 3, ...), NotUtf8 1 (row 4)" in caught.value.message
    assert "row 4: not UTF-8 at byte 7" in caught.value.message


def test_a_strange_token_is_shown_escaped_and_short() -> None:
    account = Account("'f'", out_of_range=[OutOfRange(9, "x", 600), OutOfRange(3, "\n\u202e" * 200, 513)])
    with pytest.raises(RefusalError) as caught:
        account.conclude(IntakeOptions(), embedding_rows=512)
    assert "row 3" in caught.value.message
    assert "\\u202e" in caught.value.message
    assert len(str(caught.value)) < 500
