"""Settings of the loss. This module imports nothing heavy, because the command line reads it for `--help`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from raytriever.losses.own.source import PATTERN, LossFile
from raytriever.options import check_changed, option
from raytriever.paths import MODEL

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
# Losses that learn a teacher's scores, and losses by row whose labels a teacher's scores may soften.
DISTILLATION_LOSSES = ("kl", "margin-mse")
SCORE_LOSSES = tuple(name for name in LOSS_NAMES if name not in DISTILLATION_LOSSES)
SOFT_LABEL_LOSSES = tuple(
    name for name in LOSS_NAMES if name not in ("infonce-symmetric", "triplet", "mw", *DISTILLATION_LOSSES)
)


def read_widths(value: Any) -> str:
    """Return numbers of components, separated by commas, the largest first; "" stays "".

    Raises:
        ValueError: `value` contains anything else.
    """
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    names = [name.strip() for name in text.split(",")] if text else []
    if not all(re.fullmatch(r"[1-9]\d{0,5}", name) for name in names):
        raise ValueError("give whole numbers from 1, separated by commas, as in 256,128,64")
    widths = [int(name) for name in names]
    falling = sorted(set(widths), reverse=True)
    if widths not in (falling, falling[::-1]):
        raise ValueError(f"give each once, in order: {','.join(map(str, falling))}")
    return ",".join(map(str, falling))


@dataclass(frozen=True)
class LossConfig:
    """Name of the loss, and its constants."""

    loss: str = option(
        "mw",
        "the loss, or FILE.py:NAME of your own",
        choices=LOSS_NAMES,
        pattern=PATTERN,
        form="FILE.py:NAME",
    )
    temperature: float = option(
        0.01, "tau: scores are divided by it; not used by triplet", above=0, needs="loss!=triplet"
    )
    learn_temperature: bool = option(False, "train tau with the encoder, as a log-parameter", needs="loss!=triplet")
    margin: float = option(
        0.1, "margin of triplet: a positive should score this much above a negative", minimum=0, needs="loss=triplet"
    )
    reduction: str = option(
        "mean",
        "reduction of mw: the mean over pairs, or their sum divided by the number of queries",
        choices=("mean", "sum"),
        needs="loss=mw",
    )
    distribution_weight: float = option(0.0, "lambda: weight of the query-document distribution regulariser", minimum=0)
    teacher_temperature: float = option(
        1.0, "the teacher's scores are divided by it", above=0, needs=("loss=kl|margin-mse", "soft_labels")
    )
    soft_labels: bool = option(
        False,
        "weight hard negatives by the teacher's scores (losses by row except the symmetric one)",
        needs=f"loss={'|'.join(SOFT_LABEL_LOSSES)}",
    )
    loss_precision: str | None = option(
        None,
        "operands of the loss's matrix products: fp32, tf32 (the default on a GPU that encodes in bf16) or bf16; "
        "scores and sums are fp32",
        choices=("fp32", "tf32", "bf16"),
        needs=f"loss={'|'.join(SCORE_LOSSES)}",
    )
    gather_precision: str | None = option(
        None,
        "embeddings that workers send each other, and their gradients: fp32 (the default) or bf16, half the bytes",
        choices=("fp32", "bf16"),
    )
    matryoshka_dims: str = option(
        "",
        "Matryoshka: also apply the loss to this many first components of each embedding",
        reads=read_widths,
        form="N,N,...",
    )
    guide: str | None = option(
        None,
        "frozen encoder that masks false negatives: those that it finds more similar to the query than its positive",
        reads=MODEL,
        form="MODEL",
    )
    guide_margin: float | None = option(
        None,
        "also mask negatives that are at most this share of its similarity below the positive, by the guide "
        "(default: 0)",
        minimum=0,
        maximum=1,
        needs="guide",
    )

    @property
    def needs_teacher(self) -> bool:
        """True if the loss reads a teacher's scores."""
        own = LossFile.parse(self.loss)
        asks = own is not None and "teacher_scores" in own.arguments()
        return asks or self.loss in DISTILLATION_LOSSES or self.soft_labels

    @property
    def title(self) -> str:
        """Name of the loss; for one of a file, its name there."""
        own = LossFile.parse(self.loss)
        return self.loss if own is None else own.name

    @property
    def both_ways(self) -> bool:
        """True if passages search for queries too."""
        return self.loss == "infonce-symmetric"

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the nested embeddings, the largest first. The whole width always counts and may be missing here."""
        return tuple(map(int, read_widths(self.matryoshka_dims).split(","))) if self.matryoshka_dims else ()


def check_loss(config: LossConfig) -> None:
    """Raise `ConfigError` for a setting that the chosen loss does not have, or a file that holds no such loss."""
    if own := LossFile.parse(config.loss):
        own.arguments()
    check_changed(config, only=["learn_temperature", "reduction", "soft_labels", "loss_precision", "guide_margin"])
