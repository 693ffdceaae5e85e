"""The settings of the loss. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from raytriever.options import check_changed, option

LOSS_NAMES = (
    "infonce",
    "infonce-symmetric",
    "rand1",
    "joint",
    "summarg",
    "lsepair",
    "lsepair-maxp",
    "lsepair-maxn",
    "lsepair-minp",
    "lsepair-minp-maxn",
    "triplet",
    "mw",
    "kl",
    "margin-mse",
)
# What a teacher's scores are learnt by, and what they may soften the labels of: losses by row.
TAUGHT = ("kl", "margin-mse")
SOFTENED = tuple(name for name in LOSS_NAMES if name not in ("infonce-symmetric", "triplet", "mw", *TAUGHT))


def read_widths(given: Any) -> str:
    """Numbers of components between commas, the largest first, or nothing.

    Raises:
        ValueError: it is neither.
    """
    text = ",".join(map(str, given)) if isinstance(given, list | tuple) else str(given)
    names = [name.strip() for name in text.split(",")] if text else []
    if not all(re.fullmatch(r"[1-9]\d{0,5}", name) for name in names):
        raise ValueError("give whole numbers from 1 on, with commas between, as in 256,128,64")
    widths = [int(name) for name in names]
    falling = sorted(set(widths), reverse=True)
    if widths not in (falling, falling[::-1]):
        raise ValueError(f"give each once, in order: {','.join(map(str, falling))}")
    return ",".join(map(str, falling))


@dataclass(frozen=True)
class LossConfig:
    """Which loss reduces the score matrix, and its constants."""

    loss: str = option("mw", "the loss; docs/reference/losses.md explains each", choices=LOSS_NAMES)
    temperature: float = option(0.01, "tau: scores are divided by it (not by triplet)", above=0, needs="loss!=triplet")
    learn_temperature: bool = option(False, "train tau with the encoder, as a log-parameter", needs="loss!=triplet")
    margin: float = option(
        0.1, "margin of triplet: a positive should score this much above a negative", minimum=0, needs="loss=triplet"
    )
    reduction: str = option(
        "mean",
        "of mw: the mean over pairs, or their sum divided by the queries",
        choices=("mean", "sum"),
        needs="loss=mw",
    )
    distribution_weight: float = option(0.0, "lambda: weight of the query-document distribution regulariser", minimum=0)
    teacher_temperature: float = option(
        1.0, "a teacher's scores are divided by it", above=0, needs=("loss=kl|margin-mse", "soft_labels")
    )
    soft_labels: bool = option(
        False,
        "weight hard negatives by the teacher's scores (losses by row except the symmetric one)",
        needs=f"loss={'|'.join(SOFTENED)}",
    )
    matryoshka_dims: str = option(
        "",
        "Matryoshka: also apply the loss to this many first components of each embedding",
        reads=read_widths,
        form="N,N,...",
    )

    @property
    def needs_teacher(self) -> bool:
        """Whether it is made of a teacher's scores."""
        return self.loss in TAUGHT or self.soft_labels

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths at which the loss counts besides the whole one, or with it; the largest first."""
        return tuple(map(int, read_widths(self.matryoshka_dims).split(","))) if self.matryoshka_dims else ()


def check_loss(config: LossConfig) -> None:
    """Refuse settings that the chosen loss does not have; raises `ConfigError`."""
    check_changed(config, only=["learn_temperature", "reduction", "soft_labels"])
