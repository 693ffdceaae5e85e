"""`calibration.json` of a model directory: what a score means for one corpus.

It holds thresholds below which the best answer of a query is no answer, and maps from a score to the probability that
the passage is relevant. It belongs to the weights, the settings, the corpus and the arithmetic (int8 or not) with which
it was made. With others it is stale: then hits have no probability, and no query is said to have an answer or none.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float64
from numpy import ndarray

from raytriever.data.dataset import Documents
from raytriever.data.digests import content_digest
from raytriever.data.sources import SourceFile
from raytriever.errors import StorageError, flag_of
from raytriever.metrics.calibration import Aim, Proportion
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.probability import IsotonicMap, PlattMap
from raytriever.models.config import ModelConfig
from raytriever.models.description import describe, prompt_table
from raytriever.models.resolution import resolve_model
from raytriever.reading.structured import conform, read_json
from raytriever.store.commit import MANIFEST
from raytriever.store.disk import disk_errors, files_below
from raytriever.terminal import one_line

FILE, FORMAT = "calibration.json", 1
AGAIN = f"run `raytriever evaluate {flag_of('calibrate')}` again"
_MOST_BYTES = 16 << 20  # two maps of the most knots
_MOST_THRESHOLDS, _MOST_CHARACTERS = 100, 1_000
# Files that decide the embeddings of a model.
_MODEL_FILES = (".safetensors", ".json", ".txt", ".model")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class AnswerThreshold:
    """Lowest score of an answer, and what it achieves on the split on which it was checked.

    Args:
        aim, wanted: how it was chosen; see `metrics.calibration`.
        answered: queries whose best passage scores at least this, of all queries.
        top_precision: queries whose best passage is relevant, of those.
    """

    aim: Aim
    wanted: float | None
    score: float
    answered: Proportion
    top_precision: Proportion


@dataclass(frozen=True)
class Calibration:
    """Content of `calibration.json`.

    Args:
        format: version of the format.
        date: day on which it was made, in UTC.
        dataset, data: name and digest of the data set.
        corpus: digest of its passages.
        model: digest of the weights and of the settings that decide embeddings; see `encoder_digest`.
        chosen_on, chosen_queries: split on which thresholds and maps were fitted, and its number of queries.
        checked_on, checked_queries: split on which the figures were measured, and its number of queries.
        thresholds: thresholds in the order of the aims; the first one decides. Aims out of reach have none.
        first: map from the score of a query's best passage to the probability that it is relevant.
        later: the same for the passages at ranks 2 to 10.
        first_error, later_error: calibration error of both maps on the checked split (`metrics.probability`).
        first_error_interval, later_error_interval: their 95 % intervals. None in files of earlier versions, which
            overstate the errors.
        int8: whether the texts were encoded in 8-bit integers.
    """

    format: int
    date: str
    dataset: str
    data: str
    corpus: str
    model: str
    chosen_on: str
    chosen_queries: int
    checked_on: str
    checked_queries: int
    thresholds: list[AnswerThreshold]
    first: IsotonicMap | PlattMap
    later: IsotonicMap | PlattMap
    first_error: float
    later_error: float
    first_error_interval: tuple[float, float] | None = None
    later_error_interval: tuple[float, float] | None = None
    int8: bool = False

    @property
    def threshold(self) -> AnswerThreshold | None:
        """The threshold that decides whether a query has an answer; None if no aim was reached."""
        return self.thresholds[0] if self.thresholds else None

    def probabilities(self, scores: Float[ndarray, "queries hits"]) -> Float64[ndarray, "queries hits"]:
        """Return the probability that each hit is relevant; the first column are the best passages."""
        columns = np.asarray(scores, np.float64).T
        curves = [self.first, *[self.later] * (len(columns) - 1)]
        rows = [curve.probability(column) for curve, column in zip(curves, columns, strict=False)]
        return np.stack(rows, axis=1) if rows else np.empty(scores.shape)

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self), indent=1) + "\n"


def read_calibration(file: Path) -> Calibration | None:
    """Read a `calibration.json`; return None if there is none.

    Raises:
        StorageError: the file is damaged, of another format, or holds values that no calibration has.
    """
    try:
        with disk_errors(file, reading=True):
            content = read_json(file, dict[str, Any], AGAIN, most=_MOST_BYTES)
    except FileNotFoundError:
        return None
    if content.get("format") != FORMAT:
        raise StorageError(f"is of another format than {FORMAT}", str(file), AGAIN)
    try:
        calibration = conform(content, str(file), Calibration, AGAIN)
    except MetricInputError as error:
        raise StorageError(f"is damaged or changed: a map has {error.what}", str(file), AGAIN) from error
    if reason := _implausible(calibration):
        raise StorageError(f"is damaged or changed: {reason}", str(file), AGAIN)
    return calibration


def current_calibration(
    config: ModelConfig, dataset: str, documents: Documents, report: Callable[[str], None], *, int8: bool
) -> Calibration | None:
    """Return the calibration of a model for a corpus.

    Args:
        config: the model and how it reads texts.
        report: called with a line if the calibration is damaged or stale.
        int8: whether the texts are encoded in 8-bit integers.

    Returns:
        The calibration; None if there is none, or if it is damaged or stale.
    """
    file = resolve_model(config.model, config.revision) / FILE
    try:
        calibration = read_calibration(file)
    except StorageError as error:
        report(f"{error}. Until then hits have no probability")
        return None
    if calibration is None:
        return None
    if calibration.model != encoder_digest(config, calibration.dataset):
        reason = "is of other weights, prompts or lengths than this model has"
    elif calibration.corpus != documents.digest:
        is_same = calibration.dataset == dataset
        reason = "the passages have changed since" if is_same else f"is of another corpus than {dataset}"
    elif calibration.int8 != int8:
        reason = "is of scores in int8" if calibration.int8 else "is not of scores in int8"
    else:
        return calibration
    made = f"made {calibration.date} for {one_line(calibration.dataset)}"
    report(f"{file}, {made}: {reason}, so hits have no probability; {AGAIN}")
    return None


def encoder_digest(config: ModelConfig, dataset: str) -> str:
    """Return the SHA-256 over a model's weights and all settings that decide the embeddings of a data set.

    Args:
        config: the model and how it reads texts.
        dataset: name of the data set, which may have prompts of its own.
    """
    directory = resolve_model(config.model, config.revision)
    description = describe(directory, config)
    prompts = prompt_table(description, config).of(dataset)
    files = {}
    for path in files_below(directory):
        name = path.relative_to(directory).as_posix()
        if path.suffix in _MODEL_FILES and name not in (MANIFEST, FILE):
            state = path.stat()
            files[name] = content_digest(SourceFile(name, str(path.resolve()), state.st_size, state.st_mtime_ns))
    decides = [files, description.flags(), prompts.query, prompts.passage]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _implausible(calibration: Calibration) -> str:
    """Return which value no calibration has; empty if all are plausible."""
    texts = (calibration.date, calibration.dataset, calibration.chosen_on, calibration.checked_on)
    if any(len(text) > _MOST_CHARACTERS for text in texts):
        return f"a name has more than {_MOST_CHARACTERS:,} characters"
    if not all(_DIGEST.fullmatch(one) for one in (calibration.data, calibration.corpus, calibration.model)):
        return "a digest is no SHA-256"
    intervals = calibration.first_error_interval or (), calibration.later_error_interval or ()
    errors = calibration.first_error, calibration.later_error, *intervals[0], *intervals[1]
    if not all(0 <= error <= 1 for error in errors):
        return "an error is below 0 or above 1"
    if len(calibration.thresholds) > _MOST_THRESHOLDS:
        return f"there are more than {_MOST_THRESHOLDS} thresholds"
    for threshold in calibration.thresholds:
        if not math.isfinite(threshold.score):
            return "a threshold is not finite"
        if threshold.wanted is not None and not 0 < threshold.wanted <= 1:
            return "a wanted value is not above 0 and at most 1"
        for share in (threshold.answered, threshold.top_precision):
            if not (0 <= share.part <= share.whole and 0 <= share.low <= share.high <= 1):
                return "a share or its interval is not between 0 and 1"
    return ""
