"""Definition of a study: the trainings behind a table, their evaluation data, and claims. `study_file` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from raytriever.core.errors import UserError
from raytriever.evaluation.evaluated_datasets import EvaluationDataset
from raytriever.experiments.study.claims import Claim
from raytriever.training.run_config import Config

STEPS_TO_BEST = "steps_to_best"  # metric of a training, not of a ranking
AFTER = "after"  # name of an arm's model in its evaluation, as in the evaluation of a run


@dataclass(frozen=True)
class Arm:
    """One training, or one encoder that is not trained.

    Args:
        name: unique name of its directory and its run at the tracker.
        row: row of the table. Arms that are evaluated on different data sets may share one.
        datasets: evaluation data sets by their names in tables. In one study, a name means one data set and split.
        curriculum: settings of the training; the study replaces each `training.seed`. None if nothing is trained.
        model: system to evaluate if nothing is trained: `bm25`, or an encoder as `--model` names it.
        lengths: longest query and passage of an untrained encoder, in tokens; None means its own limit.
    """

    name: str
    row: str
    datasets: Mapping[str, EvaluationDataset]
    curriculum: Config | None
    model: str = ""
    lengths: tuple[int | None, int | None] | None = None


@dataclass(frozen=True)
class Study:
    """Arms and claims of one table.

    Args:
        seeds: default number of trainings of each arm; their seeds are 0 to seeds - 1.
        baselines: one or two rows with which the others are compared. The marks are `+` and `-` against the first, `◆`
            and `◇` against the second.
        about: lines about the training and the data, printed above the table.
        paper: published results by row, data set and metric, in the units of ours (mostly fractions).
        steps_to_best: whether the table has the step of the best checkpoint of each training.
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
    steps_to_best: bool = False


@contextmanager
def errors_within(where: str) -> Iterator[None]:
    """Add the location to a user error: an arm, or a part of a file."""
    try:
        yield
    except UserError as error:
        raise error.within(where) from error
