"""Definition of a study: the trainings behind one table of a paper, their evaluation data, and the paper's claims.

A recipe of `studies.recipes` builds it, or a file of a user (`studies.own`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raytriever.config.curriculum import Curriculum
from raytriever.errors import UserError
from raytriever.evaluation.differences.seeds import Cell, SeededResults
from raytriever.studies.claims import Claim

SMOKE, SMALL, FULL = "smoke", "small", "full"
# Metrics that do not come from a ranking: of the training, and of the query-document gap.
STEPS_TO_BEST, OOD = "steps_to_best", "ood"
UNANSWERABLE = "unanswerable"  # of a data set: judged documents of many queries are not in the corpus
LINES, GAINS, CURVES, ROC, SCORES = "lines", "gains", "curves", "roc", "scores"  # kinds of figures


@dataclass(frozen=True)
class MeasuredDataset:
    """Data set that an arm is measured on, and may be trained on.

    Args:
        name: name in tables; in one study, one name means one data set and split.
        dataset: path, URI or name.
        metrics: metrics as `evaluate --metrics` names them: `auc`, `mrr_at_10`, `ndcg_at_10`, `accuracy_at_20` ...
        level: lowest grade of a relevant document.
        drop_own: whether a document with the id of the query is left out.
        extras: further metrics: `steps_to_best` of the training; `ood` for `mmd2`, `query_positive_l2` and
            `candidates_ratio` of `studies.ood`. `unanswerable` is no metric: any share of the judged documents may be
            missing from the corpus.
        bm25_language: language of BM25's analyser; None to detect it.
        about: size of a subset, as text; empty for a whole data set.
        queries: number of training queries, if the data set is not opened.
    """

    name: str
    dataset: str
    split: str = "test"
    metrics: tuple[str, ...] = ()
    level: int = 1
    drop_own: bool = True
    extras: tuple[str, ...] = ()
    bm25_language: str | None = None
    about: str = ""
    queries: int | None = None

    def with_metrics(self, metrics: tuple[str, ...], extras: tuple[str, ...] = ()) -> MeasuredDataset:
        """Return the data set with the metrics to measure on it."""
        return replace(self, metrics=metrics, extras=extras)


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
        block: group of rows among which the best is printed bold, for example the size of the encoder.
        coordinates: position in figures: numbers (x of a curve) and words (name of a curve or a panel).
        paper: results of the paper by `(data set, metric)`, in the units of ours (mostly fractions).
        queries: number of training queries at `full`, where the data is not opened.
    """

    name: str
    row: str
    datasets: tuple[MeasuredDataset, ...]
    curriculum: Curriculum | None
    model: str = ""
    lengths: tuple[int | None, int | None] | None = None
    block: str = ""
    coordinates: Mapping[str, float | str] = field(default_factory=dict)
    paper: Mapping[tuple[str, str], float] = field(default_factory=dict)
    queries: int | None = None

    @property
    def label(self) -> str:
        """Name of the row in claims and results: `BLOCK ROW`."""
        return f"{self.block} {self.row}".strip()


@dataclass(frozen=True)
class PaperFigures:
    """Table of a paper, or the points of a figure, as printed there; the first column has the names of the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Drawing:
    """Figure of the page.

    Args:
        kind: kind of figure. `lines`: a metric over `coordinates[x]`, with a curve for each `coordinates[by]` and a
            panel for each `coordinates[panel]`. `gains`: each row minus the first baseline, by data set. `curves`: dev
            loss or `metric` by step, with a curve for each arm. `roc`: ROC curves. `scores`: histograms of positives
            and best non-positives, of the first seed of each row.
        x, by, panel: keys of `Arm.coordinates`.
    """

    kind: str
    name: str
    metric: str = ""
    x: str = ""
    by: str = ""
    panel: str = ""


@dataclass(frozen=True)
class Evaluated:
    """Evaluation of an arm on one data set, by their names in its folder; the seed is None if nothing is trained."""

    seed: int | None
    folder: Path
    model: str
    dataset: str


@dataclass(frozen=True)
class StudyAnalysis:
    """Results that a study computes from the evaluations of its arms.

    Args:
        results: metrics of the tables and claims, in place of those of the evaluations; its rows are those of the
            tables.
        tables: further tables of the page by title: a row of titles, then the other rows.
        content: all numbers of these tables and of the figures, as JSON values.
        draw: draws figures into a folder, and returns their captions by file name.
    """

    results: SeededResults
    tables: Mapping[str, Sequence[Sequence[str]]]
    content: Mapping[str, Any]
    draw: Callable[[Path], Mapping[str, str]]


Analyse = Callable[[Mapping[Cell, Sequence[Evaluated]]], StudyAnalysis]


@dataclass(frozen=True)
class Study:
    """Arms, claims and figures of one table of a paper.

    Args:
        name: name on the command line.
        seeds: default number of trainings of each arm; their seeds are 0 to seeds - 1.
        baselines: one or two rows that the others are compared with. In each block that has them, marks are `+` and
            `-` against the first, `◆` and `◇` against the second.
        heading: lines about the training and the data, printed above the table.
        analyse: computes what the study reports from its evaluations, by row and data set; None to report their
            metrics.
    """

    name: str
    title: str
    source: str
    arms: tuple[Arm, ...]
    seeds: int
    baselines: tuple[str, ...]
    heading: tuple[str, ...] = ()
    paper: tuple[PaperFigures, ...] = ()
    claims: tuple[Claim, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    analyse: Analyse | None = None


@contextmanager
def errors_within(where: str) -> Iterator[None]:
    """Add a place to a user error: an arm, or a part of a file."""
    try:
        yield
    except UserError as error:
        raise error.within(where) from error
