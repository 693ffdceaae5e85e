"""What an evaluation is asked for, and its data sets opened and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.open import open_dataset
from raytriever.data.processes import in_processes
from raytriever.errors import ConfigError, DataError
from raytriever.metrics.threshold import Aim
from raytriever.retrieval.answer_accuracy import check_answers
from raytriever.retrieval.beir_suite import beir_suite
from raytriever.retrieval.evaluated_models import BM25, EvaluatedModel
from raytriever.retrieval.evaluation_sets import EvaluationSet
from raytriever.retrieval.protocol import Protocol, judged_queries

Say = Callable[[str], None]


@dataclass(frozen=True)
class EvaluationJob:
    """What is to be measured, all of it checked by those who made it.

    Args:
        models: at least one.
        sets: the data sets.
        baselines: names of the models that the others are compared with.
        protocol: what is measured.
        aims: wanted precisions and recalls, for which thresholds are chosen on `calibration_split`.
        calibration_split: another split of the data sets.
        precision: arithmetic of encoding, `fp32` or `bf16`; None for what suits the device.
        max_bad_rows: the share of each file's rows, 0 to 1, that may be bad.
        missing: lines on data sets of a suite that are not there.
    """

    models: Sequence[EvaluatedModel]
    sets: Sequence[EvaluationSet]
    baselines: Sequence[str]
    protocol: Protocol = field(default_factory=Protocol)
    aims: Sequence[tuple[Aim, float]] = ()
    calibration_split: str = "dev"
    precision: str | None = None
    max_bad_rows: float = 0.01
    missing: Sequence[str] = field(default_factory=tuple)

    def asked(self, precision: str) -> dict[str, Any]:
        """What decides the results, as `results.json` keeps it."""
        return {
            "models": {model.name: asdict(model.config) if model.config else BM25 for model in self.models},
            "data sets": {one.name: {"split": one.split, "parts": one.parts} for one in self.sets},
            "baselines": list(self.baselines),
            **asdict(self.protocol),
            "metrics": list(self.protocol.metrics),
            "calibrate": [f"{aim}={wanted:g}" for aim, wanted in self.aims],
            "calibration_split": self.calibration_split if self.aims else None,
            "precision": precision,
        }

    def splits(self, one: EvaluationSet) -> list[str]:
        """The splits of a data set that are opened.

        Raises:
            ConfigError: thresholds would be checked on the split on which they are chosen.
        """
        if self.aims and one.split == self.calibration_split:
            raise ConfigError(
                f"{one.name} is measured on {one.split!r} itself", "--calibration-split", "choose thresholds on another"
            )
        return [one.split, *([self.calibration_split] if self.aims else [])]


def open_set(
    one: EvaluationSet, splits: Sequence[str], protocol: Protocol, max_bad_rows: float
) -> list[RetrievalDataset]:
    """The parts of a data set, each with queries to be measured in each split.

    Raises:
        DataError: a part or a split is not there, or no query of it has a relevant document.
    """
    found = []
    for place in one.parts.values():
        dataset = open_dataset(place, splits, max_bad_rows=max_bad_rows, run=in_processes)
        for split in splits:
            queries, _ = judged_queries(dataset, split, protocol)
            if split == one.split and protocol.wants_answers:
                check_answers(dataset, split, queries)
        found.append(dataset)
    return found


def with_suite(job: EvaluationJob, root: Path | None, say: Say) -> EvaluationJob:
    """The job over the data sets of BEIR too, those that are there; what is missing is said, and told in the results.

    Raises:
        DataError: none is there.
    """

    def opens(one: EvaluationSet) -> None:
        open_set(one, job.splits(one), job.protocol, job.max_bad_rows)

    found, missing = beir_suite(root, opens)
    for line in missing:
        say(f"MISSING: {line}")
    if not found:
        where = f"--data-root {root}" if root else "--suite beir"
        raise DataError("no data set of the suite is there", where, "give --data-root, the folder that holds them")
    return replace(job, sets=[*job.sets, *found], missing=missing)
