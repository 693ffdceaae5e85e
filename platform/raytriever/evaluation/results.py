"""Results of an evaluation as typed rows, and their file `results.json`, whose keys are the fields of `Results`.

A value that does not exist is None, and null in the file. A share is `{"part", "whole", "low", "high"}`: counted cases,
all cases, and the bounds of its 95 % interval.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from raytriever.core.errors import ConfigError, StorageError, setting
from raytriever.core.reading.json_and_yaml import conform, read_json
from raytriever.core.store.commit import write_atomically
from raytriever.metrics.answer_threshold import AnswerAim
from raytriever.metrics.intervals import Proportion
from raytriever.metrics.pair_threshold import PairAim
from raytriever.metrics.passage_threshold import PassageAim, PassagesKept

RESULTS, FORMAT = "results.json", 3
EVALUATION = "evaluation"  # folder of the evaluation of a training run
Metrics = dict[str, dict[str, dict[str, float | None]]]  # by model, data set and metric
_AGAIN = "evaluate again into another directory"


class AnalysisAbout(TypedDict):
    """Statistics of BM25's analyzer on a corpus, see `mining.analyzer.Analysis.content`."""

    language: str
    warning: str


@dataclass(frozen=True)
class About:
    """One data set of an evaluation.

    Args:
        queries, documents: numbers over all parts.
        absent_relevant, relevant, unanswerable_queries: see `JudgedQueries.count_absent`.
        copies_above: by model, see `measurements.count_copies_above`.
        parts: labels of the parts of a divided data set.
        notes: by model, sentences on what it does not know of the data set.
        bm25: by part, if BM25 is measured.
        prompts: by model, a line with the prompts that it has for this data set alone.
    """

    queries: int
    documents: int
    split: str
    absent_relevant: int
    relevant: int
    unanswerable_queries: int
    copies_above: dict[str, int] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    bm25: dict[str, AnalysisAbout] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """Warnings about BM25's figures, one for each part that has one."""
        named = len(self.bm25) > 1
        return [f"{part}: " * named + row["warning"] for part, row in self.bm25.items() if row["warning"]]


@dataclass(frozen=True)
class TestedPair:
    """Test of two systems on one metric.

    Args:
        dataset: None for the mean over the data sets.
        model: the system with the higher mean.
        difference: its mean minus that of `against`, at least 0; `low` to `high` is its 95 % interval.
        p: of the two-sided paired t-test, or of the t-test over queries and seeds.
        p_holm: after Holm's correction over the pairs and data sets of the metric.
        effect: Cohen's d_z; None if it is infinite, and for a test over seeds.
        queries: number of queries; None for a test over seeds.
    """

    dataset: str | None
    metric: str
    model: str
    against: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    effect: float | None = None
    queries: int | None = None


@dataclass(frozen=True)
class AucRow:
    """AUC of the pooled scores of a model on an undivided data set.

    Args:
        low, high: 95 % interval, with queries as clusters; None if there is none.
        misordered_queries: queries with a pair in the wrong order.
        note: sentence on an uncertain or missing interval.
    """

    dataset: str
    model: str
    auc: float
    low: float | None
    high: float | None
    misordered_queries: int
    note: str | None


@dataclass(frozen=True)
class CostRow:
    """Cost of ranking the queries of a data set by a model.

    Args:
        texts: passages and queries that an encoder encodes, also those in the cache.
        pairs: pairs of texts that a cross-encoder scores.
        seconds: duration of the search of all queries, after the passages were encoded or indexed.
    """

    dataset: str
    model: str
    texts: int
    pairs: int
    seconds: float


@dataclass(frozen=True)
class ErrorRow:
    """Calibration error with its interval; None if no bin has pairs of two queries."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ThresholdRow:
    """Threshold of a model for one aim, chosen on some queries and checked on others.

    Args:
        aim, wanted: what it was chosen for; see `protocol.aim_text`.
        confidence: what it is a value of, such as `score` or `entropy`.
        chosen_on, checked_on: splits; the same if few queries chose the threshold and were counted at it.
        threshold: None if the aim is out of reach.
        chosen: value of the aim where the threshold was chosen; if it is out of reach, the best there is.
        shares: on the checked queries. For an aim of answers `coverage` (shown an answer, of those with one),
            `top_precision` (relevant, of those shown) and `wrong` (not relevant, of all); for an aim of pairs
            `pair_precision` and `pair_recall`. Empty for `kept`, and if the aim is out of reach.
        checked: the share that the aim wants.
        kept: what a threshold of passages keeps; None for another aim, or if it is out of reach.
        unanswerable: queries without an answer that are shown one, by their kind.
        calibration_error: of scores as probabilities, between the splits; see `metrics.score_to_probability`.
        notes: sentences on missing or uncertain figures.
    """

    dataset: str
    model: str
    aim: AnswerAim | PairAim | PassageAim
    wanted: float | None
    confidence: str
    chosen_on: str
    checked_on: str
    threshold: float | None
    chosen: float | None
    calibration_error: ErrorRow
    shares: dict[str, Proportion] = field(default_factory=dict)
    checked: Proportion | None = None
    kept: PassagesKept | None = None
    unanswerable: dict[str, Proportion] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ConfidenceRow:
    """Area under the risk-coverage curve of one confidence, lower is better, and its nAUC, higher is better.

    Args:
        nauc: normalized abstention AUC of the shares of right best documents, on the checked queries; None if all are
            right, or none.
        area_chosen: out of fold, on the queries where it was chosen.
        area: on the checked queries, with its 95 % interval `low` to `high`.
        decides: whether thresholds are values of this confidence.
    """

    dataset: str
    model: str
    confidence: str
    chosen_on: str
    area_chosen: float
    area: float
    low: float
    high: float
    nauc: float | None
    decides: bool


@dataclass(frozen=True)
class FormRow:
    """Stored embeddings of a model in one type and width.

    Args:
        system: name of the form among the models of the evaluation.
        bytes: of one document.
        threshold: of the model's own scores, and `chosen`: how it was.
        precision, recall: of pairs at the threshold; the precision is None if no pair is accepted.
        changed: share of queries whose best document is on the other side of the threshold than for the model itself.
    """

    dataset: str
    model: str
    system: str
    dtype: str
    width: int
    bytes: int
    metrics: dict[str, float | None]
    threshold: float
    chosen: str
    precision: float | None
    recall: float
    changed: float


@dataclass
class Results:
    """Results of an evaluation.

    Args:
        parts: metrics by model and part of a divided data set.
        baselines: one or two models that the marks compare with.
        systems: how each model reads texts, and the width of its embeddings.
        quarantined: lines about bad rows.
        missing: a line for each missing data set of a suite.
        request: all that decides the results. The same command replaces them; another one is refused.
    """

    models: Metrics = field(default_factory=dict)
    parts: Metrics = field(default_factory=dict)
    about: dict[str, About] = field(default_factory=dict)
    baselines: list[str] = field(default_factory=list)
    pairs: list[TestedPair] = field(default_factory=list)
    auc: list[AucRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)
    thresholds: list[ThresholdRow] = field(default_factory=list)
    confidences: list[ConfidenceRow] = field(default_factory=list)
    forms: list[FormRow] = field(default_factory=list)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    quarantined: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    request: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write `results.json` into a directory."""
        content = without_nan({"format": FORMAT, **asdict(self)})
        write_atomically(folder / RESULTS, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path, remedy: str = _AGAIN) -> Results:
        """Read the `results.json` of a directory; raises `StorageError` if it has none, or a damaged one."""
        path = folder / RESULTS
        try:
            content = read_json(path, dict[str, Any], remedy, format=FORMAT)
        except FileNotFoundError as error:
            where = f"name the {setting('output')} of `raytriever evaluate`"
            raise StorageError("holds no results.json", str(folder), where) from error
        results = conform({key: content[key] for key in content if key != "format"}, str(path), cls, remedy)
        if missing := [name for sets in results.models.values() for name in sets if name not in results.about]:
            raise StorageError(f"is damaged or changed: 'about.{missing[0]}' is missing", str(path), remedy)
        return results


def finite(value: float) -> float | None:
    """Return a number, or None in place of one that is not finite."""
    return value if math.isfinite(value) else None


def check_output(output: Path, request: Mapping[str, Any], fresh: bool) -> None:
    """Refuse a directory that holds something else than an evaluation of the same models and data sets.

    With `fresh` results of another request are accepted, and replaced later.
    """
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not (output / RESULTS).is_file():
        raise ConfigError("is not empty and holds no evaluation", setting("output", output), "give another directory")
    if fresh:
        return
    old = Results.read(output).request
    new = as_read(request)
    for name in sorted(old.keys() | new.keys()):
        if not _is_same(old.get(name), new.get(name)):
            raise ConfigError(
                f"holds another evaluation ({name}: {old.get(name)} there and {new.get(name)} here)",
                setting("output", output),
                f"give another {setting('output')}, or {setting('fresh', True)} to replace it",
            )


def _is_same(before: Any, now: Any) -> bool:
    """Return whether two values of a request are equal, or name the same files: by another path, or moved."""
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(_is_same(before[name], now[name]) for name in now)
    if isinstance(before, str) and isinstance(now, str) and before != now and Path(now).exists():
        old, new = Path(before).resolve(), Path(now).resolve()
        return old == new or (old.name == new.name and not old.exists())
    return bool(before == now)


def as_read(value: Any) -> Any:
    """Return a value as JSON gives it back: tuples become lists."""
    return json.loads(json.dumps(value))


def without_nan(value: Any) -> Any:
    """Return JSON values with null in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: without_nan(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def datasets_of(models: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the data sets on which any model was measured, in order of appearance."""
    return list(dict.fromkeys(name for sets in models.values() for name in sets))


def metrics_of(models: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return the metrics that any model has, in order of appearance."""
    return list(dict.fromkeys(name for sets in models.values() for values in sets.values() for name in values))


def rows_of(rows: Sequence[Any], dataset: str) -> list[Any]:
    """Return the rows of one data set."""
    return [row for row in rows if row.dataset == dataset]
