"""Definition of a study: the trainings behind a table, their evaluation data, and claims. `studies.file` reads one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from raytriever.config import Config
from raytriever.errors import UserError
from raytriever.studies.claims import Claim

STEPS_TO_BEST = "steps_to_best"  # metric of a training, not of a ranking


@dataclass(frozen=True)
class MeasuredDataset:
    """Data set that an arm is measured on, and may be trained on.

    Args:
        name: name in tables; in one study, one name means one data set and split.
        dataset: path, URI or name.
        metrics: metrics as `evaluate --metrics` names them: `auc`, `mrr_at_10`, ...; or `steps_to_best`.
        level: lowest grade of a relevant document.
        drop_own: whether a document with the id of the query is left out.
        bm25_language: language of BM25's analyser; None to detect it.
        max_bad_rows: share of bad rows that each file may have, 0 to 1.
    """

    name: str
    dataset: str
    split: str = "test"
    metrics: tuple[str, ...] = ()
    level: int = 1
    drop_own: bool = True
    bm25_language: str | None = None
    max_bad_rows: float = 0.01


@dataclass(frozen=True)
class Arm:
    """One training, or one encoder that is not trained.

    Args:
        name: unique name of its directory and its run at the tracker.
        row: row of the table; arms that are measured on different data sets may share one.
        curriculum: settings of the training; the study replaces each `training.seed`. None if nothing is trained.
        model: system to measure if nothing is trained: `bm25`, or an encoder as `--model` names it.
        lengths: longest query and passage of an untrained encoder, in tokens; None, also for one of them, for its own
            limit.
    """

    name: str
    row: str
    datasets: tuple[MeasuredDataset, ...]
    curriculum: Config | None
    model: str = ""
    lengths: tuple[int | None, int | None] | None = None


@dataclass(frozen=True)
class Evaluated:
    """Evaluation of an arm on one data set, by their names in its folder; the seed is None if nothing is trained."""

    seed: int | None
    folder: Path
    model: str
    dataset: str


@dataclass(frozen=True)
class Study:
    """Arms and claims of one table.

    Args:
        seeds: default number of trainings of each arm; their seeds are 0 to seeds - 1.
        baselines: one or two rows that the others are compared with: marks are `+` and `-` against the first, `◆` and
            `◇` against the second.
        about: lines about the training and the data, printed above the table.
        paper: published results by row, data set and metric, in the units of ours (mostly fractions).
    """

    name: str
    title: str
    source: str
    arms: tuple[Arm, ...]
    seeds: int
    baselines: tuple[str, ...]
    about: str = ""
    claims: tuple[Claim, ...] = ()
    paper: Mapping[tuple[str, str, str], float] = field(default_factory=dict)


@contextmanager
def errors_within(where: str) -> Iterator[None]:
    """Add a place to a user error: an arm, or a part of a file."""
    try:
        yield
    except UserError as error:
        raise error.within(where) from error
