"""A study: the trainings behind one table of a paper, what each is measured on, and what the paper says of it.

A recipe of `recipes/studies/` makes one: a function of `(scale, data_root, folder)` that may write the data sets it
cuts below `folder`, whole or not at all, and finds them there when called again. At `full` it writes and reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raytriever.config.curriculum import NAME, Curriculum
from raytriever.studies.claims import Claim

SMOKE, SMALL, FULL = "smoke", "small", "full"
SCALES = (SMOKE, SMALL, FULL)
# Figures that no ranking decides: of a training (told of a data set it was for), and of the query-document gap.
STEPS_TO_BEST, OOD = "steps_to_best", "ood"
LINES, GAINS, CURVES, ROC, SCORES = "lines", "gains", "curves", "roc", "scores"  # kinds of figures


@dataclass(frozen=True)
class MeasuredDataset:
    """A data set that a training is measured on.

    Args:
        name: in tables; one name means one data set and split throughout a study.
        dataset: path, URI or name.
        split: the judged split.
        metrics: as `evaluate --metrics` names them: `auc`, `mrr_at_10`, `ndcg_at_10`, `accuracy_at_20` ...
        level: the grade from which on a document is relevant.
        drop_own: whether a document with the query's own id is left out.
        extras: figures of another kind: `steps_to_best`, of the training; `ood`, for `mmd2`,
            `query_positive_l2` and `candidates_ratio` of `retrieval/ood_*`.
    """

    name: str
    dataset: str
    split: str
    metrics: tuple[str, ...]
    level: int = 1
    drop_own: bool = True
    extras: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arm:
    """One training, or an encoder as it is.

    Args:
        name: of its directory and its run at the tracker; each its own.
        row: the row of the table that it fills, alone or with others on other data sets.
        datasets: the data sets it is measured on.
        curriculum: how it is trained; the seed of the study takes the place of each `training.seed`. None for what is
            not trained.
        model: what is measured where nothing is trained: `bm25`, or an encoder as `--model` names it.
        lengths: longest query and passage, in tokens, that such an encoder reads; its own where none are named.
        block: of rows among which the best is printed bold, as the sizes of an encoder.
        at: where it stands in figures: numbers (the x of curves) and words (the name of a curve, or of a panel).
        paper: the paper's figures by `(data set, metric)`, as fractions where ours are.
        queries: training queries of its data, at `full`, where the data itself is not opened to be counted.
    """

    name: str
    row: str
    datasets: tuple[MeasuredDataset, ...]
    curriculum: Curriculum | None
    model: str = ""
    lengths: tuple[int, int] | None = None
    block: str = ""
    at: Mapping[str, float | str] = field(default_factory=dict)
    paper: Mapping[tuple[str, str], float] = field(default_factory=dict)
    queries: int | None = None

    @property
    def label(self) -> str:
        """The row as claims and results call it: `BLOCK ROW`."""
        return f"{self.block} {self.row}".strip()


@dataclass(frozen=True)
class PaperFigures:
    """A table or the points of a figure as the paper prints them, shown whole beside ours.

    Args:
        title: `Table 1 of Optimizing What Matters`.
        columns: the first over the rows' names.
        rows: as printed.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Drawing:
    """A figure of the page.

    Args:
        kind: `lines` (a metric over `at[x]`, a curve for each `at[by]`, a panel for each `at[panel]`), `gains` (each
            row minus the first baseline, by data set), `curves` (dev loss or `metric` by step, a curve an arm), `roc`,
            or `scores` (histograms of positives and best non-positives; the first seed of each row).
        name: of its file.
        metric: that is drawn.
        datasets: those drawn; all where none is named.
        x, by, panel: names of `Arm.at`.
    """

    kind: str
    name: str
    metric: str = ""
    datasets: tuple[str, ...] = ()
    x: str = ""
    by: str = ""
    panel: str = ""


@dataclass(frozen=True)
class Study:
    """All of it; a recipe that contradicts itself raises `ValueError`.

    Args:
        name: on the command line.
        title: of the page.
        source: the table of the paper that it is about.
        arms: in the order of the table.
        seeds: of each training, 0 to seeds - 1, where the command names no other number.
        baselines: names of one row or two; in each block that has them, marks are `+` and `-` against the first, `◆`
            and `◇` against the second.
        heading: what is to be known of the data: what was cut, and how.
        paper: the paper's own tables.
        claims: what it says of them.
        drawings: figures.
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

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names) or not all(NAME.fullmatch(name) for name in names):
            raise ValueError(
                f"{self.name}: arms want names of their own, of letters, digits, '.', '_' and '-': {names}"
            )
        cells = [(arm.label, one.name) for arm in self.arms for one in arm.datasets]
        if len(set(cells)) < len(cells):
            raise ValueError(f"{self.name}: two arms fill the same row on the same data set")
        for arm in self.arms:
            if not arm.datasets or (arm.curriculum is None) != bool(arm.model):
                raise ValueError(f"{self.name}: {arm.name} is measured on nothing, or lacks a curriculum or a model")
        rows = {arm.row for arm in self.arms}
        if not set(self.baselines) <= rows:
            raise ValueError(f"{self.name}: baselines {self.baselines} are not among the rows {sorted(rows)}")
