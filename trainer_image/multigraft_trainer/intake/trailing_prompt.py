"""Find a generation prompt that a chat template prints whether or not it is asked for one.

The first Llama 3 template does: every text ends with the header of the next answer. Taken for the end of the last turn,
that header would be learnt as part of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence


def find_trailing_prompt(
    *, question: str, prompted: str, answered: str, followed: str, answer: str, end_texts: Sequence[str]
) -> str:
    """Give the prompt at the end of every text, or nothing.

    Args:
        question: A question as rendered.
        prompted: The same, with a generation prompt asked for.
        answered: The question with its answer.
        followed: The same with another question and answer behind.
        answer: What the answer says; it stands once in `answered` and `followed`.
        end_texts: Texts of the special tokens, which may end a turn.
    """
    if question != prompted:
        return ""
    tail, rest = answered.partition(answer)[2], followed.partition(answer)[2]
    if rest.startswith(tail):
        return ""
    ends = [end for end in end_texts if tail.startswith(end)]
    prompt = tail[len(ends[0]) if ends else _count_equal(tail, rest) :]
    return prompt if prompt.strip() and question.endswith(prompt) else ""


def _count_equal(one: str, other: str) -> int:
    """Count the characters that two texts begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
