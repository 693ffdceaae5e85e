"""Settings of the loss, their readers and their checks.

This module imports quickly, because the command line reads it for `--help`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from raytriever.core.errors import ConfigError, setting
from raytriever.core.paths import MODEL
from raytriever.core.setting_declarations import Need, check_changed, option
from raytriever.core.unknown_names import check_known
from raytriever.losses.named_losses import DISTILLATION_LOSSES, LOSS_NAMES, LOSSES, SCORE_LOSSES
from raytriever.losses.user_loss_file import PATTERN, LossFile


def read_dims(value: Any) -> str:
    """Normalize a list of embedding dimensions, separated by commas, to descending order. "" is an empty list.

    Raises:
        ValueError: `value` is not such a list.
    """
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    names = [name.strip() for name in text.split(",")] if text else []
    if not all(re.fullmatch(r"[1-9]\d{0,5}", name) for name in names):
        raise ValueError("give whole numbers of at least 1, separated by commas, as in 256,128,64")
    dims = [int(name) for name in names]
    falling = sorted(set(dims), reverse=True)
    if dims not in (falling, falling[::-1]):
        raise ValueError(f"give each dimension once, in this order: {','.join(map(str, falling))}")
    return ",".join(map(str, falling))


def read_weights(value: Any) -> str:
    """Normalize a list of weights of losses, separated by commas.

    Raises:
        ValueError: `value` is not such a list, has a number below 0, or has no number above 0.
    """
    listed = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        weights = [float(weight) for weight in listed]
    except ValueError:
        weights = []
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise ValueError("give a number of at least 0 for each loss, not all 0, separated by commas, as in 1,0.3")
    return ",".join(f"{weight:.15g}" for weight in weights)


def terms_of(loss: str) -> tuple[str, ...]:
    """Split a sum of losses, such as `mw+infonce`, into its terms. A plus sign inside a path is no separator."""
    for plus in re.finditer(r"\+", loss):
        first = loss[: plus.start()]
        if first in LOSS_NAMES or LossFile.parse(first):
            return first, *terms_of(loss[plus.end() :])
    return (loss,) if LossFile.parse(loss) else tuple(loss.split("+"))


@dataclass(frozen=True)
class LossConfig:
    """Settings of the loss: its name, its hyperparameters, and the false-negative guide."""

    loss: str = option(
        "mw",
        "the loss, FILE.py:NAME of yours, or a sum: mw+infonce",
        choices=LOSS_NAMES,
        pattern=rf"{PATTERN}|.+\+.+",
        metavar="FILE.py:NAME",
    )
    temperature: float = option(
        0.01,
        "tau: scores are divided by it; not used by triplet",
        above=0,
        needs=Need("loss", "triplet", negated=True),
    )
    learn_temperature: bool = option(
        False, "train tau with the encoder, as a log-parameter", needs=Need("loss", "triplet", negated=True)
    )
    margin: float = option(
        0.1,
        "margin of triplet: a positive should score this much above a negative",
        minimum=0,
        needs=Need("loss", "triplet"),
    )
    reduction: str = option(
        "mean",
        "reduction of mw: the mean over pairs, or their sum divided by the number of queries",
        choices=("mean", "sum"),
        needs=Need("loss", "mw"),
        flag=False,
    )
    threshold: float = option(
        0.5,
        "score that means probability 1/2 of relevance for bce when training starts; it is trained too",
        needs=Need("loss", "bce"),
        flag=False,
    )
    positive_weight: float = option(
        1.0, "weight of a positive pair in bce; a negative pair has 1", above=0, needs=Need("loss", "bce"), flag=False
    )
    distribution_weight: float = option(0.0, "lambda: weight of the query-document distribution regularizer", minimum=0)
    teacher_temperature: float = option(
        1.0, "the teacher's scores are divided by it", above=0, needs=Need("loss", *DISTILLATION_LOSSES), flag=False
    )
    loss_precision: str | None = option(
        None,
        "operands of the loss's matrix products: fp32, tf32 (the default on a GPU that encodes in bf16) or bf16; "
        "scores and sums are fp32",
        choices=("fp32", "tf32", "bf16"),
        needs=Need("loss", *SCORE_LOSSES),
    )
    matryoshka_dims: str = option(
        "",
        "Matryoshka: also apply the loss to this many first components of each embedding",
        reads=read_dims,
        metavar="N,N,...",
    )
    guide: str | None = option(
        None,
        "frozen encoder that masks false negatives: passages that it ranks above the positive of the query",
        reads=MODEL,
        metavar="MODEL",
    )
    guide_margin: float | None = option(
        None,
        "also mask negatives whose similarity by the guide is below the positive's by at most this fraction of it "
        "(default: 0)",
        minimum=0,
        maximum=1,
        needs="guide",
        flag=False,
    )
    loss_weights: str | None = option(
        None,
        "weight of each loss of a sum, such as 1,0.3 (default: 1 each)",
        reads=read_weights,
        metavar="W,W,...",
    )

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms of the sum; a single loss is a sum of one term."""
        return terms_of(self.loss)

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each term."""
        if self.loss_weights is None:
            return (1.0,) * len(self.terms)
        return tuple(map(float, read_weights(self.loss_weights).split(",")))

    @property
    def files(self) -> tuple[LossFile, ...]:
        """Terms that name a user's file."""
        return tuple(loss_file for loss_file in map(LossFile.parse, self.terms) if loss_file is not None)

    @property
    def needs_teacher(self) -> bool:
        """True if the loss reads a teacher's scores."""
        asks = any("teacher_scores" in loss_file.arguments() for loss_file in self.files)
        return asks or not set(DISTILLATION_LOSSES).isdisjoint(self.terms)

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the terms, without paths: a loss of a file has its name in that file."""
        return tuple(
            term if loss_file is None else loss_file.name for term in self.terms for loss_file in [LossFile.parse(term)]
        )

    @property
    def title(self) -> str:
        """Name of the loss, without paths."""
        return "+".join(self.titles)

    @property
    def symmetric(self) -> bool:
        """True if the loss also uses the other direction, where passages search for queries."""
        return any(term in LOSSES and LOSSES[term].symmetric for term in self.terms)

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions of the nested (Matryoshka) embeddings, the largest first.

        The loss always includes the full embedding, even if its dimension is not listed here."""
        return tuple(map(int, read_dims(self.matryoshka_dims).split(","))) if self.matryoshka_dims else ()

    def pinned(self) -> LossConfig:
        """Return the settings with a digest added to the name of each user's file.

        Raises:
            ConfigError: see `LossFile.read`.
        """
        pinned = (
            term if loss_file is None else loss_file.pinned()
            for term in self.terms
            for loss_file in [LossFile.parse(term)]
        )
        return replace(self, loss="+".join(pinned))


def check_loss(config: LossConfig) -> None:
    """Raise `ConfigError` for an unknown loss, a setting that the chosen loss does not use, or an unusable file."""
    for term, title in zip(config.terms, config.titles, strict=True):
        if LossFile.parse(term) is None:
            check_known("loss", term, LOSS_NAMES, setting("loss"))
        if config.titles.count(title) > 1:
            raise ConfigError(f"{config.loss!r} has {title!r} twice", setting("loss"), "give each loss once")
    if config.loss_weights is not None:
        given, terms = len(config.weights), len(config.terms)
        if terms == 1:
            raise ConfigError(
                f"has no effect with {setting('loss')} {config.title}",
                setting("loss_weights"),
                f"leave it out, or give a sum of losses, such as {setting('loss')} mw+infonce",
            )
        if given != terms:
            raise ConfigError(
                f"has {given} weights, but {config.title} has {terms} losses", setting("loss_weights"), f"give {terms}"
            )
    for loss_file in config.files:
        loss_file.arguments()
    only = ["learn_temperature", "reduction", "threshold", "positive_weight", "loss_precision", "guide_margin"]
    check_changed(config, only=only)
