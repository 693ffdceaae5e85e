"""How every picture looks: colours that colour-blind readers tell apart, sizes that stay readable on a telephone.

A picture is written twice: as PNG for documents and the tracker, as SVG for pages, where text stays text. Both are a
function of what is drawn alone: no date, no random ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from raytriever.storage import disk_errors

# Okabe and Ito, Color Universal Design (2008), the yellow left out: too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
WIDTH, HEIGHT = 4.8, 3.6  # inches
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "text.parse_math": False,  # a dollar in the name of a model is a dollar
    "svg.fonttype": "none",
    "svg.hashsalt": "raytriever",
}
Line = tuple[str, Any]


@contextmanager
def picture(path: Path, width: float = WIDTH, height: float = HEIGHT) -> Iterator[Figure]:
    """An empty figure of so many inches; what the block draws is written to `path` as PNG, and beside it as SVG.

    Raises:
        StorageError: the disk is full or forbidden.
    """
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Names in scripts that matplotlib's font lacks: the SVG has the text, whatever the PNG shows.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path.with_suffix(".png"), dpi=120)
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def lines() -> Iterator[Line]:
    """Colours, and a dash for each round of colours: seven curves differ by colour, more by both."""
    for dash in cycle(DASHES):
        for colour in COLOURS:
            yield colour, dash


def label(name: str, characters: int = 34) -> str:
    """A name as a legend can hold it: cut in the middle where long; matplotlib would hide one that begins with `_`."""
    if len(name) > characters:
        half = (characters - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return f" {name}" if name.startswith("_") else name


def plain_log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 of each power, in plain numbers; by itself it would tell formulas."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, place: f"{value:,.6g}")
    axis.set_minor_formatter(NullFormatter())
