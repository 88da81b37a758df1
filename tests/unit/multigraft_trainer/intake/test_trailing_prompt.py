from __future__ import annotations

import pytest

from multigraft_trainer.intake.trailing_prompt import find_trailing_prompt

END = "<end>"


def find(*, prompt: str = "", always: str = "", user: str = "<u>", turn_end: str = END) -> str:
    """Ask with a made-up template: marks of a turn, a prompt when asked for, and one that is always there."""
    question = f"{user}q{turn_end}"
    answered = f"{question}<a>yes{turn_end}"
    followed = f"{answered}{user}q2{turn_end}<a>no{turn_end}"
    return find_trailing_prompt(
        question=question + always,
        prompted=question + (prompt or always),
        answered=answered + always,
        followed=followed + always,
        answer="yes",
        end_texts=(END,),
    )


@pytest.mark.parametrize(
    "given, want",
    [
        pytest.param({"prompt": "<a>"}, "", id="a template that obeys"),
        pytest.param({}, "", id="no prompt at all"),
        pytest.param({"always": "<a>"}, "<a>", id="always there"),
        pytest.param({"always": "\n<a>\n"}, "\n<a>\n", id="white space around it"),
        pytest.param({"always": "<a>", "turn_end": "\n", "user": "[u]"}, "<a>", id="no special token ends a turn"),
        pytest.param({"always": "\n"}, "", id="white space alone is no prompt"),
    ],
)
def test_a_prompt_that_is_always_there_is_found(given: dict[str, str], want: str) -> None:
    assert find(**given) == want


def test_a_last_turn_that_ends_in_another_way_is_not_a_prompt() -> None:
    got = find_trailing_prompt(
        question="<u>q<end>",
        prompted="<u>q<end>",
        answered="<u>q<end><a>yes<return>",
        followed="<u>q<end><a>yes<end><u>q<end><a>no<return>",
        answer="yes",
        end_texts=(END,),
    )
    assert got == ""
