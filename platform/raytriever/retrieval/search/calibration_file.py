"""`calibration.json`: the meaning of one system's scores for one corpus.

It holds thresholds of confidence below which a query has no answer, and a score threshold for passages to keep. It also
maps scores to the probability that a passage is relevant. It is valid for one corpus, and for one system: weights,
settings and precision (int8 or not). For another corpus or system there are no probabilities, and there is no decision
whether a query has an answer. If at most a tenth of the passages were added or removed, the corpus is treated as the
same. After more changes, whether a query has an answer is still decided, but marked as stale."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, StorageError, flag_of, setting
from raytriever.core.reading.json_and_yaml import conform, read_json
from raytriever.core.store.commit import MANIFEST
from raytriever.core.store.disk import files_below
from raytriever.core.terminal import one_line
from raytriever.data.data_sources import SourceFile
from raytriever.data.dataset import Documents
from raytriever.data.file_digests import content_digest
from raytriever.metrics.answer_confidence import Confidence, RankedQuestions
from raytriever.metrics.answer_threshold import AnswersAchieved, AnswerTarget
from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.passage_threshold import PassagesKept
from raytriever.metrics.score_to_probability import CalibrationError, IsotonicMap, PlattMap
from raytriever.models.description import describe, prompt_table
from raytriever.models.directory.hub_or_local import has_files
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import Prompts
from raytriever.models.resolve_model import read_files, resolve_model
from raytriever.retrieval.mining.bm25 import Bm25Index, compare_best

FILE, FORMAT = "calibration.json", 5
AGAIN = f"run `raytriever evaluate {flag_of('calibrate')}` again"
_MOST_BYTES = 16 << 20  # enough for two maps with the largest number of knots
# A calibration is current if at most this fraction of the passages was added or removed.
MOST_CHANGED = 0.1
_SAMPLE, _MOST_DEPTH = 1_024, 1_000
_MOST_THRESHOLDS, _MOST_CHARACTERS = 100, 1_000
# Files that decide the embeddings of a model.
_MODEL_FILES = (".safetensors", ".json", ".txt", ".model")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class AnswerThreshold(AnswersAchieved):
    """Lowest confidence at which a query is answered, with the metrics that it achieved on the testing questions."""

    # `target`, `wanted`: target for which the threshold was chosen; see `metrics.answer_threshold`.
    target: AnswerTarget
    wanted: float | None
    score: float  # the lowest confidence, in the measure that the file names in `confidence`


@dataclass(frozen=True, kw_only=True)
class PassageThreshold(PassagesKept):
    """Lowest score of a passage to keep, with the fractions that it kept for the testing questions."""

    wanted: float  # target: at least this fraction of a new question's relevant passages is kept on average
    score: float
    depth: int  # number of best passages of a question to which the threshold applies


@dataclass(frozen=True)
class Calibration:
    """Content of `calibration.json`."""

    format: int
    date: str  # day of the calibration, in UTC
    # `system`, `digest`: name of the system in the evaluation, and SHA-256 of all that its scores depend on, except the
    # passages; see `encoder_digest`.
    system: str
    digest: str
    # `dataset`, `data`: name and digest of the data set.
    dataset: str
    data: str
    corpus: str  # digest of the passages
    # `chosen_on`, `chosen_queries`: split on which thresholds and maps are fitted, and its number of queries.
    chosen_on: str
    chosen_queries: int
    # `checked_on`, `checked_queries`: split on which they are tested, and its number of queries. With too few queries
    # for two splits, they are fitted and tested on both. Both fields are then equal, such as `dev and test`.
    checked_on: str
    checked_queries: int
    # A threshold for each reachable target, in their order. The first threshold decides whether a query has an answer.
    thresholds: list[AnswerThreshold]
    kept: PassageThreshold | None  # threshold of the passages to keep, if any
    # Map from the confidence of a query to the probability that its best passage is relevant.
    first: IsotonicMap | PlattMap
    # Map from the score of a passage at ranks 2 to 10 to the probability that it is relevant.
    later: IsotonicMap | PlattMap
    # `first_error`, `later_error`: calibration error of each map on the testing split, with its 95 % interval.
    first_error: CalibrationError
    later_error: CalibrationError
    # `passages`: number of passages. `sample`: sample of them, to estimate later changes of the corpus; see
    # `sample_of`.
    passages: int
    sample: list[int]
    confidence: Confidence  # the measure to which the thresholds apply
    stale: str = ""

    @property
    def threshold(self) -> AnswerThreshold | None:
        """The threshold that decides whether a query has an answer; None if no target was reached."""
        return self.thresholds[0] if self.thresholds else None

    @property
    def is_checked_apart(self) -> bool:
        """True if the thresholds were tested on other questions than those on which they were chosen."""
        return self.checked_on != self.chosen_on

    def probabilities(
        self, scores: Float[ndarray, "queries hits"], confidence: Float[ndarray, " queries"]
    ) -> Float64[ndarray, "queries hits"]:
        """Return the probability that each hit is relevant. The first column holds the best passages."""
        columns = np.asarray(scores, np.float64).T
        rows = [self.later.probability(column) for column in columns]
        if rows:
            rows[0] = self.first.probability(np.where(np.isfinite(confidence), confidence, -np.inf))
        return np.stack(rows, axis=1) if rows else np.empty(scores.shape)

    def to_json(self) -> str:
        """Return the text of the file."""
        content = asdict(self)
        del content["stale"]
        return json.dumps(content, indent=1) + "\n"


def read_calibration(file: Path) -> Calibration | None:
    """Read a `calibration.json`. Return None if the file does not exist.

    Raises:
        StorageError: the file is damaged, has another format, or holds impossible values.
    """
    try:
        content = read_json(file, dict[str, Any], AGAIN, most=_MOST_BYTES, format=FORMAT)
    except FileNotFoundError:
        return None
    if "stale" in content:
        raise StorageError("is damaged or changed: 'stale' is not a valid key", str(file), AGAIN)
    try:
        calibration = conform(content, str(file), Calibration, AGAIN)
    except MetricInputError as error:
        what = f"is damaged or changed: the map from score to probability has {error.what}"
        raise StorageError(what, str(file), AGAIN) from error
    if reason := _implausible(calibration):
        raise StorageError(f"is damaged or changed: {reason}", str(file), AGAIN)
    return calibration


def current_calibration(
    config: ModelConfig,
    dataset: str,
    documents: Documents,
    report: Callable[[str], None],
    *,
    int8: bool,
    file: Path | None = None,
) -> Calibration | None:
    """Return the calibration of a model for a corpus; None if it does not exist, is damaged or does not apply.

    Args:
        report: function that gets a line if the calibration is damaged, stale or does not apply.
        int8: whether texts are encoded in 8-bit integers.
        file: file that the user names; by default the one in the model's directory.

    Raises:
        UserError: the file that the user names is missing or damaged, or belongs to another system or corpus.
    """
    file_of_model = resolve_model(config.model, config.revision) / FILE if has_files(config.model) else None
    if (used := file or file_of_model) is None:
        return None
    digest = partial(encoder_digest, config, dataset, int8=int8)
    return calibration_in(used, digest, dataset, documents, report, is_named=file is not None)


def calibration_in(
    file: Path,
    digest: Callable[[], str],
    dataset: str,
    documents: Documents,
    report: Callable[[str], None],
    *,
    is_named: bool,
) -> Calibration | None:
    """Return the calibration in a file if it belongs to this system (by its digest) and to this corpus.

    Raises:
        UserError: `is_named` is True, and the file is missing or damaged, or belongs to another system or corpus. If
            `is_named` is False, `report` gets a line instead, and None is returned.
    """
    try:
        calibration = read_calibration(file)
    except StorageError as error:
        if is_named:
            raise
        report(f"{error}. Until then, hits have no probability")
        return None
    if calibration is None:
        if is_named:
            raise ConfigError("does not exist", setting("calibration", file), f"{AGAIN}, which writes the file")
        return None
    made = f"{file}, made {calibration.date}"
    if calibration.digest != digest():
        name = one_line(calibration.system)
        reason = f"belongs to another system, {name}, or to this one with other weights, prompts, lengths or precision"
    elif calibration.corpus != documents.digest and (reason := _changed(calibration, dataset, documents)):
        if calibration.dataset == dataset and calibration.sample:
            report(f"{made}: {reason}; queries still get a decision, but {AGAIN}")
            return replace(calibration, stale=reason)
    else:
        return calibration
    if is_named:
        raise ConfigError(reason, setting("calibration", file), AGAIN)
    report(f"{made} for {one_line(calibration.dataset)}: {reason}, so hits have no probability; {AGAIN}")
    return None


def sample_of(documents: Documents) -> list[int]:
    """Return the smallest distinct hashes of a corpus' passages, at most 1,024.

    They are a random sample of the texts. The samples of two corpora estimate the fraction of common texts (bottom-k
    sketch; Cohen & Kaplan, 2007). For a fraction of 0.1, the standard error of the estimate is about 0.01."""
    # `hashes` are hashes of the texts. An attacker could choose texts whose hashes are not distributed randomly.
    return np.unique(documents.hashes >> np.uint64(1))[:_SAMPLE].tolist()  # so that numbers fit into 63 bits in JSON


def changed_fraction(before: Sequence[int], count: int, documents: Documents) -> float:
    """Estimate two fractions, of the added and of the removed passages of a corpus, and return the larger one.

    Args:
        before: sample of the earlier corpus.
        count: number of passages of the earlier corpus.
        documents: the corpus now.
    """
    then, now = np.array(before, np.uint64), np.array(sample_of(documents), np.uint64)
    both = np.union1d(then, now)[:_SAMPLE]
    added, removed = (float(np.isin(both, keys, invert=True).sum()) for keys in (then, now))
    shared = len(both) - added - removed
    return max(added / max(shared + added, 1), removed / max(shared + removed, 1))


def _changed(calibration: Calibration, dataset: str, documents: Documents) -> str:
    """Return why a calibration does not fit a corpus; empty if only few passages have changed."""
    fraction = changed_fraction(calibration.sample, calibration.passages, documents) if calibration.sample else 1.0
    if fraction <= MOST_CHANGED:
        return ""
    if calibration.dataset != dataset:
        return f"belongs to another corpus than {dataset}"
    if not calibration.sample:
        return "the passages have changed since"
    return f"about {fraction:.0%} of the passages were added or removed since, more than {MOST_CHANGED:.0%}"


def encoder_digest(config: ModelConfig, dataset: str, *, int8: bool = False, prompts: Prompts | None = None) -> str:
    """Return the SHA-256 over a model's weights and all settings that decide the embeddings of a data set.

    `int8` says whether texts are encoded in 8-bit integers. By default the data set's name chooses `prompts`. An
    encoder without files is identified only by its settings."""
    if not has_files(config.model):
        return digest_of(config.identity(), dataset)
    model = read_files(config)
    directory, description = model.directory, describe(model, config)
    prompts = prompts or prompt_table(description, config).of(dataset)
    files = {}
    for path in files_below(directory):
        name = path.relative_to(directory).as_posix()
        if path.suffix in _MODEL_FILES and name not in (MANIFEST, FILE):
            state = path.stat()
            files[name] = content_digest(SourceFile(name, str(path.resolve()), state.st_size, state.st_mtime_ns))
    return digest_of(files, description.flags(), prompts.query, prompts.passage, int8)


def digest_of(*decides: Any) -> str:
    """Return the SHA-256 over JSON values that decide the scores of a system."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _implausible(calibration: Calibration) -> str:
    texts = (
        calibration.date, calibration.system, calibration.dataset, calibration.chosen_on, calibration.checked_on
    )  # fmt: skip
    if any(len(text) > _MOST_CHARACTERS for text in texts):
        return f"a name has more than {_MOST_CHARACTERS:,} characters"
    if not all(_DIGEST.fullmatch(digest) for digest in (calibration.data, calibration.corpus, calibration.digest)):
        return "a digest is not a SHA-256"
    errors = calibration.first_error, calibration.later_error
    if not all(0 <= value <= 1 for error in errors for value in astuple(error)):
        return "an error is below 0 or above 1"
    if calibration.confidence.depth > _MOST_DEPTH:
        return f"a confidence depends on more than {_MOST_DEPTH:,} passages"
    if len(calibration.sample) > _SAMPLE or not all(row >= 0 for row in calibration.sample):
        return "the sample of passages is too long, or its numbers are invalid"
    if calibration.passages < 0:
        return "a number of passages is below 0"
    if len(calibration.thresholds) > _MOST_THRESHOLDS:
        return f"there are more than {_MOST_THRESHOLDS} thresholds"
    for threshold in calibration.thresholds:
        if not math.isfinite(threshold.score):
            return "a threshold is not finite"
        if threshold.wanted is not None and not 0 < threshold.wanted <= 1:
            return "the wanted value of a target is not above 0 and at most 1"
        fractions = threshold.answered, threshold.top_precision, threshold.wrong, threshold.f1
        for fraction in (*fractions, *threshold.unanswerable.values()):
            if not (0 <= fraction.count <= fraction.total and 0 <= fraction.low <= fraction.high <= 1):
                return "a fraction or its interval is not between 0 and 1"
    kept = calibration.kept
    if kept and not (math.isfinite(kept.score) and 0 <= kept.low <= kept.fraction <= kept.high <= 1 and kept.depth > 0):
        return "the threshold of passages has impossible values"
    return ""


@dataclass(frozen=True)
class Decider:
    """Function object that computes the confidence of queries of a corpus."""

    calibration: Calibration | None  # calibration that names the confidence; None if there is none
    documents: Documents  # the corpus, which BM25 indexes if the confidence needs it
    # Whether every ranking should have `depth` passages. A system that reranks only 10 passages ranks fewer.
    lists_all: bool = True

    @property
    def depth(self) -> int:
        """Number of passages that the confidence reads; 0 without a calibration."""
        return 0 if self.calibration is None else self.calibration.confidence.depth

    @cached_property
    def bm25(self) -> Bm25Index | None:
        """BM25 index of the passages; None if the confidence does not need it."""
        if self.calibration is None or not self.calibration.confidence.reads_bm25:
            return None
        return Bm25Index.of(self.documents)

    def confidence(
        self,
        queries: Sequence[str],
        scores: Float32[ndarray, "queries passages"],
        ranking: Int64[ndarray, "queries passages"],
    ) -> Float64[ndarray, " queries"] | None:
        """Return the confidence of each query, -inf if it has no passage. Return None if there is no calibration.

        Args:
            queries: texts of the queries, without prompts.
            scores, ranking: the `depth` best passages, best first, padded with -1 if there are fewer.

        Raises:
            ConfigError: an approximate index has found too few passages.
        """
        if self.calibration is None:
            return None
        depth, count = self.depth, len(queries)
        missing = int((ranking[:, :depth] < 0).sum(axis=1).max(initial=0)) if self.lists_all else 0
        if missing and len(self.documents) >= depth:
            name = self.calibration.confidence.name
            what = f"the index finds only {depth - missing} of the {depth} passages that confidence {name!r} needs"
            remedy = f"give a larger {setting('ef_search')}, or calibrate again with {setting('confidence', 'score')}"
            raise ConfigError(what, setting("ef_search"), remedy)
        ranked = np.full((count, depth), np.nan, np.float32)
        ranked[:, : scores.shape[1]] = np.where(ranking >= 0, scores, np.nan)[:, :depth]
        bm25 = agrees = None
        if self.bm25 is not None:
            best = ranking[:, 0] if ranking.shape[1] else np.full(count, -1)
            bm25, agrees = compare_best(self.bm25, queries, best)
        asked = RankedQuestions(ranked, np.zeros((count, 1), bool), np.full(count, ""), bm25, agrees)
        return self.calibration.confidence.of(asked)
