"""The settings of the loss. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import option

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
)


@dataclass(frozen=True)
class LossConfig:
    """Which loss reduces the score matrix, and its constants."""

    loss: str = option("mw", "the loss over the batch's score matrix", choices=LOSS_NAMES)
    temperature: float = option(0.01, "tau: scores are divided by it (not by triplet)", above=0)
    learn_temperature: bool = option(False, "train tau with the encoder, as a log-parameter")
    margin: float = option(0.1, "by how much triplet wants a positive above a negative", minimum=0)
    reduction: str = option(
        "mean", "of mw: the mean over pairs, or their sum divided by the queries", choices=("mean", "sum")
    )
    distribution_weight: float = option(0.0, "lambda: weight of the query-document distribution regulariser", minimum=0)
