"""What the loss-curve benchmark leaves behind for people: a page and a picture."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from loss_curve_compare import Comparison, CurveSet

_PAGE = """\
# Loss curves together, alone and by PEFT ({date})

**Question.** Do four adapters trained together follow the loss curves that each has alone and under PEFT, to within
what another seed changes in PEFT itself?

**Setup.** {device}, Python {python}, torch {torch}, transformers {transformers}, peft {peft}, {dtype}; base: {base}.
{steps} steps of global batch 8, four jobs of mixed rank, dropout, targets and schedule
(`tests/benchmark/gpu/loss_curve_jobs.py`). A job has the same batches in every run. Same seed: same initial weights;
dropout masks differ between PEFT and us in any case. PEFT keeps its adapters in fp32, our compute copies are in the
base's dtype.

**Command.** `{command}`; {seconds} s.

Distances are root mean squares over the steps, in nats; the share is of the spread, 100 % or less is within. The drift
is the mean of together - PEFT over the last quarter of the steps.

| job | spread of PEFT | together - alone | share | together - PEFT | share | drift (other seed's) | loss | within |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
"""

_LOOKS = {
    "peft_other_seed": ("PEFT, another seed", "#999999", 1.0),
    "peft": ("PEFT", "#E69F00", 1.4),
    "solo": ("alone", "#009E73", 1.4),
    "shared": ("together", "#0072B2", 1.0),
}


def write_markdown(path: Path, results: list[Comparison], facts: dict[str, Any]) -> None:
    """Write the table with what it was measured on."""
    rows = "\n".join(map(_write_row, results))
    path.write_text(_PAGE.format(date=time.strftime("%Y-%m-%d"), rows=rows, **facts), encoding="utf-8")


def _write_row(one: Comparison) -> str:
    cells = [
        one.job,
        f"{one.spread:.4f}",
        f"{one.shared_solo:.4f}",
        f"{one.shared_solo_share:.0%}",
        f"{one.shared_peft:.4f}",
        f"{one.shared_peft_share:.0%}",
        f"{one.tail_shift:+.4f} ({one.tail_shift_other_seed:+.4f})",
        f"{one.final_loss:.3f}",
        "yes" if one.is_within else "NO",
    ]
    return f"| {' | '.join(cells)} |"


def draw_curves(path: Path, curves: list[CurveSet]) -> bool:
    """Draw one panel per job; False where there is no matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, one in zip(figure.subplots(2, 2).flat, curves, strict=True):
        for field, (label, colour, width) in _LOOKS.items():
            values = getattr(one, field)
            panel.plot(range(1, len(values) + 1), values, color=colour, linewidth=width, label=label)
        panel.set_title(one.job, loc="left", fontsize=10)
        panel.set_xlabel("optimizer step")
        panel.set_ylabel("loss, nats per supervised token")
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    return True
