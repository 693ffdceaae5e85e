"""Coefficients of the formulas, with the machine, the day and the command of their measurement.

`benchmarks/coefficients.py` writes them into `coefficients.json`. Those of a GPU are computed from the operations of
the encoder, because nothing has been measured on one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("coefficients.json")


@dataclass(frozen=True)
class Measurement:
    """Coefficients of one command.

    Args:
        kind: `measured` or `computed`.
        machine: processor with its vector instructions, or what was computed.
        date: Date of the measurement, YYYY-MM-DD.
        command: that wrote the values.
        values: coefficients by name; seconds are those of one core.
    """

    kind: str
    machine: str
    date: str
    command: str
    values: dict[str, float]


@cache
def measurements() -> tuple[Measurement, ...]:
    """Return all coefficients, grouped by the command that measured them."""
    return tuple(Measurement(**group) for group in json.loads(FILE.read_text(encoding="utf-8")))


def rates() -> dict[str, float]:
    """Return the value of each coefficient by name."""
    return {name: value for group in measurements() for name, value in group.values.items()}
