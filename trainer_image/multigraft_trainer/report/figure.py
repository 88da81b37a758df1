"""Matplotlib without a display and without global state: the Agg canvas, imported when a picture is wanted."""

from __future__ import annotations

import io
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from multigraft_trainer.report.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 130


def new_figure(*, width: float, height: float) -> tuple[Figure, Axes]:
    """Give an empty figure of this size in inches and its only axes."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def literal(text: str) -> str:
    """Give a text that matplotlib draws as it stands; a bare `$` would start a formula."""
    return text.replace("$", r"\$")


def save_figure(figure: Figure, path: Path) -> None:
    """Write the PNG whole or not at all; a job name in a script that the font lacks is drawn as boxes."""
    picture = io.BytesIO()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
    write_whole(path, picture.getvalue())
