"""The settings of the loss. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import option

LOSS_NAMES = ("infonce", "mw")


@dataclass(frozen=True)
class LossConfig:
    """Which loss reduces the score matrix, and its constants."""

    loss: str = option("mw", "the loss over the batch's score matrix", choices=LOSS_NAMES)
    temperature: float = option(0.01, "tau: scores are divided by it", above=0)
    learn_temperature: bool = option(False, "train tau with the encoder, as a log-parameter")
    distribution_weight: float = option(
        0.0, "lambda: weight of the query-document distribution regulariser", minimum=0
    )
