"""Calibration of a model for a corpus: made from the pooled scores of two splits, and written into the model directory.

Thresholds and maps are fitted on one split. All figures are measured on the other one, because a threshold looks better
on the split on which it was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.statistics import MOST_SHARED, overlaps
from raytriever.errors import DataError, StorageError
from raytriever.evaluation.measurements import DatasetMeasurement
from raytriever.evaluation.request import EvaluationJob
from raytriever.metrics.calibration import ScoredPools, WantedAim, calibrate, ranked_pairs
from raytriever.metrics.probability import (
    CalibrationError,
    IsotonicMap,
    PlattMap,
    calibration_error,
    fit_isotonic,
    fit_platt,
)
from raytriever.models.config import ModelConfig
from raytriever.models.resolution import resolve_model
from raytriever.models.source import MINILM
from raytriever.paths import expanded
from raytriever.search.calibration import FILE, FORMAT, AnswerThreshold, Calibration, encoder_digest
from raytriever.store.commit import write_atomically
from raytriever.store.disk import check_writable

# Folder of the calibrations in an evaluation directory, and a calibration with its model.
FOLDER = "calibration"
Calibrated = tuple[ModelConfig, Calibration]
# Wilson's interval of a precision of 0.9 is 0.79 to 0.96 for 50 queries.
FEWEST_QUERIES = 50
# A curve of any shape needs as many relevant pairs, and as many others.
FEWEST_FOR_ISOTONIC = 500
FIRST, LATER = range(1), range(1, 10)


def check_apart(dataset: RetrievalDataset, chosen_on: str, checked_on: str) -> None:
    """Raise `DataError` if more than 5 % of the queries of a split have the text of a query of the other one."""
    [overlap] = overlaps([(dataset, chosen_on)], [(dataset, checked_on)])
    if overlap.share > MOST_SHARED:
        raise DataError(
            f"{overlap.shared:,} of {overlap.queries:,} queries of split {checked_on!r} are queries of {chosen_on!r} "
            f"too, more than {MOST_SHARED:.0%}, so thresholds chosen there cannot be checked",
            dataset.name,
            "choose them on another split, or remove these queries from one",
        )


@activity("calibrating the scores")
def make_calibration(
    dataset: RetrievalDataset,
    config: ModelConfig,
    splits: tuple[str, str],
    choosing: ScoredPools,
    checking: ScoredPools,
    aims: Sequence[WantedAim],
    *,
    int8: bool,
) -> Calibration:
    """Fit thresholds and maps from score to probability on one split, and measure them on another.

    Thresholds are chosen and maps are fitted on the first of `splits`, and checked on the second. With `int8` the texts
    were encoded in 8-bit integers.

    Raises:
        DataError: a split has too few queries.
    """
    pairs = [[ranked_pairs(pools, ranks) for ranks in (FIRST, LATER)] for pools in (choosing, checking)]
    for split, ((scores, *_), _) in zip(splits, pairs, strict=True):
        if len(scores) < FEWEST_QUERIES:
            raise too_few_queries(dataset.name, split, len(scores))
    maps = [_fit(scores, relevant) for scores, relevant, _ in pairs[0]]
    errors = [
        calibration_error(curve.probability(scores), relevant, queries) if len(scores) else CalibrationError(0, 0, 0)
        for curve, (scores, relevant, queries) in zip(maps, pairs[1], strict=True)
    ]
    thresholds = []
    for row in calibrate(choosing, checking, aims):
        if row.achieved is not None:
            shares = row.achieved.coverage, row.achieved.top_precision
            thresholds.append(AnswerThreshold(row.threshold.aim, row.threshold.wanted, row.threshold.score, *shares))
    return Calibration(
        format=FORMAT,
        date=datetime.now(UTC).date().isoformat(),
        dataset=dataset.name,
        data=dataset.digest,
        corpus=dataset.documents.digest,
        model=encoder_digest(config, dataset.name),
        chosen_on=splits[0],
        chosen_queries=len(pairs[0][0][0]),
        checked_on=splits[1],
        checked_queries=len(pairs[1][0][0]),
        thresholds=thresholds,
        first=maps[0],
        later=maps[1],
        first_error=errors[0].value,
        later_error=errors[1].value,
        first_error_interval=(errors[0].low, errors[0].high),
        later_error_interval=(errors[1].low, errors[1].high),
        int8=int8,
    )


def too_few_queries(dataset: str, split: str, queries: int) -> DataError:
    """Return the error of a split with too few queries for a calibration."""
    reason = "with fewer the 95 % interval of a precision of 0.9 is wider than 0.17"
    what = f"has {queries:,} judged queries, and a calibration needs {FEWEST_QUERIES}: {reason}"
    return DataError(what, f"{dataset}, split {split!r}", "name a larger split")


def write_calibrations(
    folder: Path, measured: DatasetMeasurement, job: EvaluationJob, log: Callable[[str], None], *, int8: bool
) -> list[Calibrated]:
    """Write the calibration of each dense model for a data set into the directory of an evaluation.

    `log` gets a line where there is none. Return the calibrations with their models.
    """
    source, written = measured.source, []
    for model in job.models if job.aims else ():
        if model.config is None or model.form is not None:
            continue
        if source.is_divided:
            log(f"{source.name}: there is no {FILE} of several corpora; evaluate one part")
            break
        splits = job.calibration_split, source.split
        pools = measured.calibration_pools(model.name), measured.pools(model.name)
        try:
            made = make_calibration(measured.parts[0].dataset, model.config, splits, *pools, job.aims, int8=int8)
        except DataError as error:
            log(f"{model.name} gets no {FILE}: {error}")
            continue
        write_atomically(folder / FOLDER / f"{model.name}.{source.name}.json", made.to_json())
        written.append((model.config, made))
    return written


def save_calibrations(calibrations: Sequence[Calibrated], output: Path, log: Callable[[str], None]) -> None:
    """Write the calibrations of an evaluation into the directories of their models.

    A model has one calibration. With several data sets they are only in the directory of the evaluation.
    """
    datasets = {made.dataset for _, made in calibrations}
    if len(datasets) > 1:
        log(f"a model has one {FILE}: those of {len(datasets)} data sets are only in {output / FOLDER}")
        return
    for config, made in calibrations:
        log(save_calibration(made, config))


def save_calibration(calibration: Calibration, config: ModelConfig) -> str:
    """Write a calibration into the directory of its model, if the directory is the user's and writable.

    Return a line with the file, or with the reason why there is none.
    """
    if config.model == MINILM or not expanded(config.model).is_dir():
        remedy = "`raytriever export` makes one"
        return f"{FILE} is only in the results, because {config.model} is no model directory of yours; {remedy}"
    directory = resolve_model(config.model, config.revision)
    try:
        check_writable(directory)
        write_atomically(directory / FILE, calibration.to_json())
    except StorageError as error:
        return f"{FILE} is only in the results: {error}"
    return f"{directory / FILE}: {describe_calibration(calibration)}"


def describe_calibration(calibration: Calibration) -> str:
    """Describe the deciding threshold of a calibration in one line."""
    threshold = calibration.threshold
    if threshold is None:
        return "probabilities, but no threshold, because no aim was reached"
    shown, right = threshold.answered, threshold.top_precision
    precision = f" ({right.value:.2f}, 95 %: {right.low:.2f} to {right.high:.2f})" if right.whole else ""
    return (
        f"threshold {threshold.score:.4f}; on {calibration.checked_on} {shown.part:,} of {shown.whole:,} queries have "
        f"an answer, and {right.part:,} of these answers are relevant{precision}"
    )


def _fit(scores: ndarray, relevant: ndarray) -> IsotonicMap | PlattMap:
    """Fit a map: of any monotone shape if there are many pairs, otherwise a logistic curve.

    No probability is nearer to 0 or 1 than the rule of succession allows for the number of pairs.
    """
    if not len(scores):  # a corpus of one passage has no later hits
        return PlattMap(0.0, 0.0)
    if min(int(relevant.sum()), int((~relevant).sum())) < FEWEST_FOR_ISOTONIC:
        return fit_platt(scores, relevant)
    curve, least = fit_isotonic(scores, relevant), 1 / (len(scores) + 2)
    return replace(curve, probabilities=np.clip(curve.probabilities, least, 1 - least).tolist())
