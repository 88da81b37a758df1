"""One look per job, the same in every picture."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito's palette, told apart with any kind of colour vision (jfly.uni-koeln.de/color); black is left for text.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "xx")


@dataclass(frozen=True)
class Look:
    """How one job is drawn."""

    colour: str
    line: str
    hatch: str


def choose_looks(jobs: list[str]) -> dict[str, Look]:
    """Give each job a colour; once the palette is used up, another line style and hatch with it."""
    looks = {}
    for index, job in enumerate(jobs):
        turn = index // len(PALETTE) % len(LINES)
        looks[job] = Look(PALETTE[index % len(PALETTE)], LINES[turn], HATCHES[turn])
    return looks
