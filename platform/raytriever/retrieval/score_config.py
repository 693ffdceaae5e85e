"""The settings of scoring by a teacher. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import option
from raytriever.paths import NEGATIVES, RANKING, TEACHER


@dataclass(frozen=True)
class ScoreConfig:
    """Which cross-encoder scores, and which candidates of each query beside its positives."""

    model: str = option("", "the cross-encoder: a local directory, or a hub name", reads=TEACHER, form="MODEL")
    revision: str | None = option(None, "commit or tag of a hub model")
    max_length: int | None = option(
        None, "tokens of a query and a passage together; by default all that the model can read", minimum=8
    )
    negatives: str = option("", "a negatives table, as jobs/mine.py writes it", reads=NEGATIVES, form="PATH")
    run: str = option("", "a TREC run whose best documents of each query are scored", reads=RANKING, form="PATH")
    depth: int = option(100, "documents of a query in the run that are scored", minimum=1, needs="run")
