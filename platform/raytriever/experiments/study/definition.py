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

    The unique name is that of its directory and of its run at the tracker. Arms that are evaluated on different data
    sets may share a row of the table. In one study, the name of a data set means one data set and split. The study
    replaces each `training.seed` of the curriculum. Without one, the system `model` is evaluated (`bm25`, or an encoder
    as `--model` names it), with the longest query and passage `lengths` in tokens (None for its own limit)."""

    name: str
    row: str
    datasets: Mapping[str, EvaluationDataset]
    curriculum: Config | None
    model: str = ""
    lengths: tuple[int | None, int | None] | None = None


@dataclass(frozen=True)
class Study:
    """Arms and claims of one table. The default seeds are 0 to `seeds` - 1.

    One or two rows are `baselines`: the marks are `+` and `-` against the first, `◆` and `◇` against the second.
    `about` is printed above the table. `paper` has published results by row, data set and metric, in the units of ours
    (mostly fractions). `steps_to_best` adds the step of the best checkpoint of each training to the table."""

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
