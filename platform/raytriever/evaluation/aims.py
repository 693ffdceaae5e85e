"""Aims of thresholds, as users write them: `top-precision=0.9`, `wrong-answers=0.05`, `f1`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from raytriever.errors import ConfigError, setting
from raytriever.metrics.answering import CONFORMAL, AnswerAim
from raytriever.metrics.calibration import PairAim

CALIBRATE = setting("calibrate")
ANSWER_AIMS: tuple[AnswerAim, ...] = get_args(AnswerAim)
PAIR_AIMS: tuple[PairAim, ...] = get_args(PairAim)
# Aim and wanted value; None for `f1`.
WantedAim = tuple[AnswerAim | PairAim, float | None]


def parse_aims(words: Sequence[str]) -> list[WantedAim]:
    """Read aims such as `top-precision=0.9`, `answered=0.8`, `f1`, `wrong-answers=0.05` and `precision=0.9`."""
    aims: list[WantedAim] = []
    for word in words:
        name, _, number = word.strip().lower().replace("-", "_").partition("=")
        aim = next((one for one in (*ANSWER_AIMS, *PAIR_AIMS) if one == name.strip()), None)
        try:
            wanted = float(number)
        except ValueError:
            wanted = float("nan")
        if aim is None or (number if aim == "f1" else not 0 < wanted <= 1):
            remedy = (
                "write top-precision=0.9, wrong-answers=0.05, missed=0.1, answered=0.8, f1, precision=0.9 or "
                "recall=0.8, above 0 and at most 1"
            )
            raise ConfigError(f"{word!r} is no aim", CALIBRATE, remedy)
        if aim in CONFORMAL and wanted == 1:
            raise ConfigError(f"{word!r} allows everything", CALIBRATE, "give a share below 1")
        aims.append((aim, None if aim == "f1" else wanted))
    return aims


def aim_text(aim: str, wanted: float | None) -> str:
    """Return an aim as text, such as `top-precision 0.9`."""
    return aim.replace("_", "-") + ("" if wanted is None else f" {wanted:g}")
