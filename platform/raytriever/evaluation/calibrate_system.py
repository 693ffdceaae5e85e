"""Calibration of a system for a corpus, from the ranked questions of two splits. It is written into the directory of
the evaluation, and into that of the model if there is one.

Thresholds and maps are fitted on one split and tested on the other. If there are few questions, they are fitted and
tested on both splits, and the errors of the maps are cross-validated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import numpy as np
from numpy import ndarray

from raytriever.core.errors import DataError, StorageError
from raytriever.core.paths import expanded
from raytriever.core.progress import activity
from raytriever.core.store.commit import write_atomically
from raytriever.core.store.disk import check_writable
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.dataset_statistics import MOST_SHARED, overlaps
from raytriever.evaluation.answer_decisions import ModelDecision
from raytriever.evaluation.dataset_evaluation import DatasetEvaluation
from raytriever.evaluation.evaluated_datasets import distinct_names
from raytriever.evaluation.kept_passages import PassageDecision
from raytriever.evaluation.protocol import is_missed, target_text
from raytriever.evaluation.requested_models import EvaluatedModel, EvaluationJob
from raytriever.metrics.answer_confidence import FOLDS, RankedQuestions, folds_of
from raytriever.metrics.answer_threshold import AnswerDecision, AnswerTarget
from raytriever.metrics.passage_threshold import DEPTH, KEPT
from raytriever.metrics.score_to_probability import (
    CalibrationError,
    IsotonicMap,
    PlattMap,
    calibration_error,
    fit_isotonic,
    fit_platt,
)
from raytriever.models.directory.hub_or_local import has_files
from raytriever.models.model_settings import ModelConfig
from raytriever.models.resolve_model import resolve_model
from raytriever.retrieval.search.calibration_file import (
    FILE,
    FORMAT,
    AnswerThreshold,
    Calibration,
    PassageThreshold,
    read_calibration,
    sample_of,
)

# Folder of the calibrations in an evaluation directory.
FOLDER = "calibration"
# A system, its calibration, and the file of the calibration within the evaluation directory.
Calibrated = tuple[EvaluatedModel, Calibration, Path]
# Smallest number of relevant pairs, and of other pairs, for isotonic regression: it can fit any monotone curve.
FEWEST_FOR_ISOTONIC = 500
LATER = slice(1, 10)  # ranks 2 to 10
_NO_ERROR = CalibrationError(0, 0, 0)


def check_apart(dataset: RetrievalDataset, chosen_on: str, checked_on: str) -> None:
    """Raise `DataError` if more than 5 % of the queries of one split have the same text as a query of the other."""
    [overlap] = overlaps([(dataset, chosen_on)], [(dataset, checked_on)])
    if overlap.fraction > MOST_SHARED:
        shared = (
            f"{overlap.shared:,} of {overlap.queries:,} queries of split {checked_on!r} are queries of {chosen_on!r}"
        )
        what = f"{shared} too, more than {MOST_SHARED:.0%}, so thresholds chosen there cannot be checked"
        raise DataError(what, dataset.name, "choose them on another split, or remove these queries from a split")


@activity("calibrating the scores")
def make_calibration(
    dataset: RetrievalDataset,
    system: tuple[str, str],
    splits: tuple[str, str],
    answers: AnswerDecision,
    passages: PassageDecision | None = None,
) -> Calibration:
    """Fit maps from confidence and from score to probability, and combine them with the thresholds.

    Args:
        system: name and digest of the system (see `DenseSystem.digest`).
        splits: the split that was requested for choosing thresholds, and the one for testing them.
        passages: thresholds of the passages to keep; the first whose target is reached is used.
    """
    (chosen, values), (checked, seen) = answers.chosen, answers.checked
    first = _fit(*_finite(values, chosen.right))
    later = _fit(*_later(chosen)[:2])
    if not answers.is_checked_apart:
        both = " and ".join(dict.fromkeys(splits))
        splits = both, both
        errors = [_held_out_error(*_finite(values, chosen.right)), _held_out_error(*_later(chosen))]
    else:
        scores, relevant, queries = _later(checked)
        best, right = _finite(seen, checked.right)
        errors = [
            calibration_error(first.probability(best), right),
            calibration_error(later.probability(scores), relevant, queries) if len(scores) else _NO_ERROR,
        ]
    reached = [
        PassageThreshold(**vars(kept), wanted=cast("float", threshold.wanted), score=threshold.score, depth=DEPTH)
        for threshold, kept in (passages.thresholds if passages else ())
        if kept is not None
    ]
    return Calibration(
        format=FORMAT,
        date=datetime.now(UTC).date().isoformat(),
        system=system[0],
        digest=system[1],
        dataset=dataset.name,
        data=dataset.digest,
        corpus=dataset.documents.digest,
        passages=len(dataset.documents),
        sample=sample_of(dataset.documents),
        chosen_on=splits[0],
        chosen_queries=len(chosen),
        checked_on=splits[1],
        checked_queries=len(checked),
        confidence=answers.confidence,
        thresholds=[
            AnswerThreshold(
                **vars(achieved),
                target=cast("AnswerTarget", threshold.target),
                wanted=threshold.wanted,
                score=threshold.score,
            )
            for threshold, achieved in answers.thresholds
            if achieved is not None
        ],
        kept=reached[0] if reached else None,
        first=first,
        later=later,
        first_error=errors[0],
        later_error=errors[1],
    )


def _finite(values: ndarray, right: ndarray) -> tuple[ndarray, ndarray]:
    """Return the confidence of each question for which a document was found, and whether that document is relevant."""
    found = np.isfinite(values)
    return values[found], right[found]


def _later(questions: RankedQuestions) -> tuple[ndarray, ndarray, ndarray]:
    scores = questions.scores[:, LATER]
    rows, columns = np.nonzero(np.isfinite(scores))
    return scores[rows, columns], questions.relevant[:, LATER][rows, columns], rows


def _held_out_error(scores: ndarray, relevant: ndarray, queries: ndarray | None = None) -> CalibrationError:
    """Return the cross-validated calibration error with folds of queries. None: each pair has a query of its own."""
    if len(scores) < FOLDS:
        return _NO_ERROR
    queries = np.arange(len(scores)) if queries is None else queries
    fold = folds_of(int(queries.max()) + 1)[queries]
    probabilities = np.empty(len(scores))
    for number in range(FOLDS):
        curve = _fit(scores[fold != number], relevant[fold != number])
        probabilities[fold == number] = curve.probability(scores[fold == number])
    return calibration_error(probabilities, relevant, queries)


def write_calibrations(
    folder: Path,
    evaluated: DatasetEvaluation,
    decisions: Sequence[ModelDecision],
    job: EvaluationJob,
    log: Callable[[str], None],
) -> list[Calibrated]:
    """Write the calibration of each system for a data set into the directory of an evaluation.

    `log` gets a line for each system without a calibration, for example because no target concerns answers."""
    source, written = evaluated.source, []
    by_name = {decision.model: decision for decision in decisions}
    for model in job.models if job.targets else ():
        decided = by_name.get(model.name)
        if decided is None:
            continue
        if decided.answers is None:
            log(f"{model.name} gets no {FILE}: all targets are about pairs; add a target about answers, such as f1")
            continue
        if source.is_divided:
            log(f"{source.name}: {FILE} is not written for several corpora; evaluate a single part")
            break
        splits = job.calibration_split, source.split
        name = model.name if model.variant else distinct_names([model.location or model.name])[0]
        system = name, evaluated.digests[model.name]
        made = make_calibration(evaluated.parts[0].dataset, system, splits, decided.answers, decided.passages)
        file = Path(FOLDER, model.name, f"{source.name}.json")
        write_atomically(folder / file, made.to_json())
        written.append((model, made, file))
    return written


def save_calibrations(calibrations: Sequence[Calibrated], output: Path, log: Callable[[str], None]) -> None:
    """Write the calibrations of an evaluation into the directories of their models.

    A model directory holds one calibration. For several data sets they are written only to the evaluation directory."""
    datasets = {file.name for _, _, file in calibrations}
    if len(datasets) > 1:
        log(f"a model has only one {FILE}, so those of {len(datasets)} data sets are in {output / FOLDER}")
        return
    for model, made, file in calibrations:
        if model.config is None or model.variant is not None or not _is_own(model.config):
            log(f"{output / file}: {describe_calibration(made)}")
        else:
            log(save_calibration(made, model.config))


def _is_own(config: ModelConfig) -> bool:
    path = expanded(config.model)
    return has_files(config.model) and resolve_model(config.model, config.revision) in (path, path / "model")


def save_calibration(calibration: Calibration, config: ModelConfig) -> str:
    """Write a calibration into the directory of its model, if this directory is writable.

    Return a line that names the file, or the reason why it was not written."""
    file = resolve_model(config.model, config.revision) / FILE
    try:
        earlier = _earlier_threshold(file, calibration)
        before = f"{earlier.score:.4f}, chosen for {target_text(earlier.target, earlier.wanted)}" if earlier else ""
        if earlier and calibration.threshold is None and calibration.kept is None:
            return f"{file}: no target was reached; the earlier threshold {before}, is kept"
        check_writable(file.parent)
        write_atomically(file, calibration.to_json())
    except StorageError as error:
        return f"{FILE} is only in the results: {error}"
    replaces = f"; replaces {before}" if earlier and earlier != calibration.threshold else ""
    return f"{file}: {describe_calibration(calibration)}{replaces}"


def _earlier_threshold(file: Path, calibration: Calibration) -> AnswerThreshold | None:
    with suppress(StorageError):  # a damaged file has no threshold
        earlier = read_calibration(file)
        if earlier and (earlier.digest, earlier.corpus) == (calibration.digest, calibration.corpus):
            return earlier.threshold
    return None


def describe_calibration(calibration: Calibration) -> str:
    """Describe two thresholds of a calibration in one line: that for answers, and that of the passages to keep."""
    threshold, kept = calibration.threshold, calibration.kept
    keeps = kept and (
        f"keep passages of score {kept.score:.4f} or more ({target_text(KEPT, kept.wanted)}): {kept.passages:.1f} for "
        f"each question, with {kept.fraction:.3f} of the relevant ones (95 %: {kept.low:.3f} to {kept.high:.3f})"
    )
    if threshold is None:
        return keeps or "probabilities, but no threshold, because no target was reached"
    shown, right = threshold.answered, threshold.top_precision
    precision = f" ({right.value:.2f}, 95 %: {right.low:.2f} to {right.high:.2f})" if right.total else ""
    checked = f"on {'the same questions of ' * (not calibration.is_checked_apart)}{calibration.checked_on}"
    kinds = "".join(
        f", and {fraction.count:,} of {fraction.total:,} without ({kind})"
        for kind, fraction in threshold.unanswerable.items()
    )
    target, achieved = target_text(threshold.target, threshold.wanted), threshold.of(threshold.target)
    missed = is_missed(threshold.target, threshold.wanted, achieved.low, achieved.high)
    return (
        f"threshold {threshold.score:.4f} of {calibration.confidence.name}, chosen for {target}"
        f"{', which it misses' * missed}; {checked} "
        f"{shown.count:,} of {shown.total:,} queries with an answer are shown one{kinds}, and {right.count:,} of the "
        f"{right.total:,} shown are relevant{precision}{f'; {keeps}' if keeps else ''}"
    )


def _fit(scores: ndarray, relevant: ndarray) -> IsotonicMap | PlattMap:
    """Fit a map from score to probability: isotonic if there are many pairs, otherwise a logistic curve.

    Laplace's rule of succession bounds the probabilities: with n pairs, none is nearer to 0 or 1 than about 1 / n."""
    if not len(scores):  # in a corpus of one passage, no hit has a rank above 1
        return PlattMap(0.0, 0.0)
    if min(int(relevant.sum()), int((~relevant).sum())) < FEWEST_FOR_ISOTONIC:
        return fit_platt(scores, relevant)
    curve, least = fit_isotonic(scores, relevant), 1 / (len(scores) + 2)
    return replace(curve, probabilities=np.clip(curve.probabilities, least, 1 - least).tolist())
