"""MeasurementStore of an evaluation: the models' results on one data set, and the store that keeps them until the end.

Each model on each data set is written to `OUTPUT.unfinished` as soon as it is measured. The same command continues
after the last of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import StorageError
from raytriever.evaluation.datasets import EvaluationDataset
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.names import safe_name
from raytriever.evaluation.significance import testable_values
from raytriever.metrics.calibration import ScoredPools
from raytriever.reading.arrays import read_arrays
from raytriever.storage import committed_directory, disk_errors, read_manifest, write_atomically


@dataclass(frozen=True)
class PartMeasurement:
    """A data set that is one whole, or a part of one.

    Args:
        name: of the part.
        dataset: opened with the splits measured.
        evaluations: of the judged split, by model.
        choosing: of the split on which thresholds are chosen, by model, where any are asked for.
    """

    name: str
    dataset: RetrievalDataset
    evaluations: dict[str, Evaluation]
    choosing: dict[str, Evaluation] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetMeasurement:
    """One row of an evaluation, measured."""

    about: EvaluationDataset
    parts: list[PartMeasurement]

    def label(self, part: PartMeasurement) -> str:
        """The part's name in file names: the data set's own where it is one whole."""
        return self.about.label(part.name)

    def metrics(self, model: str) -> dict[str, float]:
        """Each metric's mean over the parts, whatever their sizes."""
        rows = [part.evaluations[model].metrics for part in self.parts]
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}

    def tested(self, model: str) -> dict[str, Float64[ndarray, " queries"]]:
        """Values of all queries, part by part, each weighed so that their mean is that of the parts' means.

        Tests of significance are of these: differences keep their signs, and add up to those of the table.
        """
        counts = [len(part.evaluations[model].queries) for part in self.parts]
        weights = np.repeat([sum(counts) / (len(counts) * count) for count in counts], counts)
        rows = [testable_values(part.evaluations[model]) for part in self.parts]
        return {name: weights * np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def pools(self, model: str) -> ScoredPools:
        """The scores of all parts' queries in one pool."""
        return pooled([part.evaluations[model] for part in self.parts])

    def choosing_pools(self, model: str) -> ScoredPools:
        """Those of the split on which thresholds are chosen."""
        return pooled([part.choosing[model] for part in self.parts])


def pooled(evaluations: Sequence[Evaluation]) -> ScoredPools:
    """Evaluations' scores in one pool, their queries counted on."""
    firsts = np.cumsum([0, *(len(one.queries) for one in evaluations)])
    return ScoredPools(
        np.concatenate([one.positive_scores for one in evaluations]),
        np.concatenate([one.negative_scores for one in evaluations]),
        np.concatenate([one.positive_queries + first for one, first in zip(evaluations, firsts, strict=False)]),
        np.concatenate([one.negative_queries + first for one, first in zip(evaluations, firsts, strict=False)]),
    )


UNFINISHED, FORMAT = ".unfinished", 1
ARRAYS, MEASURED = "evaluation.npz", "measured.json"
_AGAIN = "remove it; it is measured again"
_INTEGERS, _SCORES, _TABLE = (["int64"], (None,)), (["float32"], (None,)), (None, None)
_EXPECTED: dict[str, Any] = {
    "queries": _INTEGERS,
    "ranking": (["int64"], _TABLE),
    "scores": (["float32"], _TABLE),
    "positive_scores": _SCORES,
    "negative_scores": _SCORES,
    "positive_queries": _INTEGERS,
    "negative_queries": _INTEGERS,
    "per_query_names": (["str"], (None,)),
    "per_query": (["float64"], _TABLE),
    "metric_names": (["str"], (None,)),
    "metrics": (["float64"], (None,)),
    "seconds": (["float64"], ()),
}


@dataclass(frozen=True)
class MeasurementStore:
    """The measurements of one evaluation.

    Args:
        folder: `OUTPUT.unfinished`.
        log: is called with a line for each measurement that an earlier call made.
    """

    folder: Path
    log: Callable[[str], None]

    @classmethod
    def of(cls, output: Path, log: Callable[[str], None]) -> MeasurementStore:
        """The measurements next to an evaluation's directory."""
        return cls(output.with_name(output.name + UNFINISHED), log)

    def get(
        self,
        model: str,
        dataset: str,
        split: str,
        key: Mapping[str, Any],
        measure: Callable[[], tuple[Evaluation, float]],
    ) -> tuple[Evaluation, float]:
        """Return a measurement that was kept, or make and keep it.

        Args:
            model, dataset, split: their names, for the folder.
            key: all that decides the figures.
            measure: returns the evaluation and the seconds it took.

        Raises:
            StorageError: the disk is full or forbidden.
        """
        digest = hashlib.sha256(json.dumps([FORMAT, key], sort_keys=True).encode()).hexdigest()
        place = self.folder / safe_name(f"{model}.{dataset}.{split}")
        if (kept := _read(place, digest)) is not None:
            self.log(f"{dataset}, {split}: {model} was measured before, see {place}")
            return kept
        evaluation, seconds = measure()
        about = {"model": model, "data set": dataset, "split": split, "seconds": seconds}
        values = {name: value if np.isfinite(value) else None for name, value in evaluation.metrics.items()}
        with committed_directory(place, {"kind": "measurement", "key": digest}, replace=True) as aside:
            _write(aside / ARRAYS, evaluation, seconds)
            write_atomically(aside / MEASURED, json.dumps({**about, "metrics": values}, indent=1) + "\n")
        return evaluation, seconds

    def remove(self) -> None:
        """Remove all of them, when the evaluation's own directory is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(place: Path, key: str) -> tuple[Evaluation, float] | None:
    """The measurement of a key; None where there is none, another one or a damaged one."""
    try:
        if read_manifest(place)["meta"].get("key") != key:
            return None
        with disk_errors(place, reading=True):
            found = read_arrays(place / ARRAYS, _EXPECTED, _AGAIN)
    except StorageError:
        return None
    columns = (
        "queries",
        "ranking",
        "scores",
        *(name for name in _EXPECTED if name.startswith(("positive", "negative"))),
    )
    evaluation = Evaluation(
        **{name: found[name] for name in columns},
        per_query=dict(zip(found["per_query_names"].tolist(), found["per_query"], strict=True)),
        metrics=dict(zip(found["metric_names"].tolist(), found["metrics"].tolist(), strict=True)),
    )
    return evaluation, float(found["seconds"])


def _write(file: Path, evaluation: Evaluation, seconds: float) -> None:
    arrays = {name: value for name, value in vars(evaluation).items() if name not in ("per_query", "metrics")}
    count = len(evaluation.queries)
    with disk_errors(file):
        np.savez(
            file,
            **arrays,
            per_query_names=np.array(list(evaluation.per_query), np.str_),
            per_query=np.array(list(evaluation.per_query.values()), np.float64).reshape(-1, count),
            metric_names=np.array(list(evaluation.metrics), np.str_),
            metrics=np.array(list(evaluation.metrics.values()), np.float64),
            seconds=np.float64(seconds),
        )
