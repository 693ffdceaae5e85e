"""Results of an evaluation as typed rows, and their file `results.json`, whose keys are the fields of `Results`.

A missing value is None, and null in the file. A fraction is `{"count", "total", "low", "high"}`: counted cases, all
cases, and the bounds of its 95 % interval."""

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
from raytriever.metrics.answer_threshold import AnswerTarget
from raytriever.metrics.intervals import Proportion
from raytriever.metrics.pair_threshold import PairTarget
from raytriever.metrics.passage_threshold import PassagesKept, PassageTarget

RESULTS, FORMAT = "results.json", 3
EVALUATION = "evaluation"  # folder of the evaluation of a training run
Metrics = dict[str, dict[str, dict[str, float | None]]]  # by model, data set and metric
_AGAIN = "evaluate again into another directory"


class AnalysisAbout(TypedDict):
    """Statistics of BM25's analyzer on a corpus, see `bm25_analyzer.Analysis.content`."""

    language: str
    warning: str


@dataclass(frozen=True)
class About:
    """One data set of an evaluation."""

    # Numbers of queries and documents, summed over the parts of a divided data set.
    queries: int
    documents: int
    split: str
    # `absent_relevant`, `relevant`, `unanswerable_queries`: see `JudgedQueries.count_absent`.
    absent_relevant: int
    relevant: int
    unanswerable_queries: int
    # By model, the number of queries that `dataset_evaluation.count_copies_above` counts.
    copies_above: dict[str, int] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)  # labels of the parts of a divided data set
    # For each model, sentences about what the model lacks for the data set.
    notes: dict[str, list[str]] = field(default_factory=dict)
    # Statistics of BM25's analyzer by part, if BM25 is evaluated.
    bm25: dict[str, AnalysisAbout] = field(default_factory=dict)
    # For each model that has prompts for this data set only, a line with these prompts.
    prompts: dict[str, str] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """Warnings about BM25's results, at most one for each part."""
        named = len(self.bm25) > 1
        return [f"{part}: " * named + row["warning"] for part, row in self.bm25.items() if row["warning"]]


@dataclass(frozen=True)
class TestedPair:
    """Test of two systems on one metric."""

    dataset: str | None  # name of the data set; None for the mean over the data sets
    metric: str
    model: str  # the system with the higher mean
    against: str
    difference: float  # mean of `model` minus mean of `against`, at least 0; its 95 % interval is `low` to `high`
    low: float
    high: float
    p: float  # p-value of the two-sided paired t-test, or of the t-test over queries and seeds
    p_holm: float  # p-value after Holm's correction over the pairs and data sets of the metric
    effect: float | None = None  # Cohen's d_z; None if it is infinite, and for a test over seeds
    queries: int | None = None  # number of queries; None for a test over seeds


@dataclass(frozen=True)
class AucRow:
    """AUC of the pooled scores of a model on an undivided data set."""

    dataset: str
    model: str
    auc: float
    # `low`, `high`: 95 % interval, with queries as clusters; None if there is none.
    low: float | None
    high: float | None
    misordered_queries: int  # number of queries with a pair in the wrong order
    note: str | None  # sentence about an uncertain or missing interval


@dataclass(frozen=True)
class CostRow:
    """Cost of ranking the queries of a data set with a model."""

    dataset: str
    model: str
    texts: int  # number of passages and queries to encode, including those in the cache
    pairs: int  # number of pairs of texts that a cross-encoder scores
    seconds: float  # duration of the search of all queries, after the passages were encoded or indexed


@dataclass(frozen=True)
class ErrorRow:
    """Calibration error with its interval. Values are None if no bin has pairs of two queries."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ThresholdRow:
    """Threshold of a model for one target (see `protocol.target_text`), chosen on some queries and tested on others.

    With few queries, both splits are equal: the threshold is chosen and tested on the same queries. `chosen` is the
    value that the threshold achieved on the queries on which it was chosen. `checked` is its value on the tested
    queries. If no threshold reaches the target, `chosen` is the best value, `threshold` and `kept` are None, and
    `fractions` is empty.

    `fractions` are of the tested queries. For answers, they are `coverage` (answered queries, of those with an answer),
    `top_precision` (relevant answers, of those shown) and `wrong` (answers that are not relevant, of all queries). For
    pairs, they are `pair_precision` and `pair_recall`. `unanswerable` has, by kind, the fraction of queries without an
    answer that are answered. `calibration_error` compares probabilities that are fitted on one split with the other
    split; see `metrics.score_to_probability`."""

    dataset: str
    model: str
    target: AnswerTarget | PairTarget | PassageTarget
    wanted: float | None
    confidence: str
    chosen_on: str
    checked_on: str
    threshold: float | None
    chosen: float | None
    calibration_error: ErrorRow
    fractions: dict[str, Proportion] = field(default_factory=dict)
    checked: Proportion | None = None
    kept: PassagesKept | None = None
    unanswerable: dict[str, Proportion] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ConfidenceRow:
    """Area under the risk-coverage curve of one confidence (lower is better) and its nAUC (higher is better)."""

    dataset: str
    model: str
    confidence: str
    chosen_on: str
    area_chosen: float  # cross-validated area on the queries on which the threshold was chosen
    area: float  # area on the tested queries, with its 95 % interval `low` to `high`
    low: float
    high: float
    # Normalized abstention AUC on the tested queries; None if the top documents of all queries are
    # relevant, or no top document is.
    nauc: float | None
    decides: bool  # whether the thresholds apply to this confidence


@dataclass(frozen=True)
class VariantRow:
    """Results of one variant of a model's embeddings, with its type and dimension."""

    dataset: str
    model: str
    system: str  # name of the variant among the models of the evaluation
    dtype: str
    dim: int
    bytes: int  # bytes of one document
    metrics: dict[str, float | None]
    threshold: float  # threshold of the model's own scores; `chosen` says how it was chosen
    chosen: str
    # `precision`, `recall`: precision and recall of pairs at the threshold; the precision is None if no pair reaches
    # it.
    precision: float | None
    recall: float
    # Fraction of queries whose best document is on the other side of the threshold than for the model itself.
    changed: float


@dataclass
class Results:
    """Results of an evaluation."""

    models: Metrics = field(default_factory=dict)
    parts: Metrics = field(default_factory=dict)  # metrics by model and part of a divided data set
    about: dict[str, About] = field(default_factory=dict)
    baselines: list[str] = field(default_factory=list)  # one or two models with which marks compare the others
    pairs: list[TestedPair] = field(default_factory=list)
    auc: list[AucRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)
    thresholds: list[ThresholdRow] = field(default_factory=list)
    confidences: list[ConfidenceRow] = field(default_factory=list)
    variants: list[VariantRow] = field(default_factory=list)
    # For each model, how it reads texts, and the dimension of its embeddings.
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    quarantined: list[str] = field(default_factory=list)  # lines about bad rows
    missing: list[str] = field(default_factory=list)  # a line for each missing data set of a suite
    # Everything that decides the results. Only a command with the same request may replace them.
    request: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write `results.json` into a directory."""
        content = without_nan({"format": FORMAT, **asdict(self)})
        write_atomically(folder / RESULTS, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path, remedy: str = _AGAIN) -> Results:
        """Read the `results.json` of a directory. Raises `StorageError` if the file is missing or damaged."""
        path = folder / RESULTS
        try:
            content = read_json(path, dict[str, Any], remedy, format=FORMAT)
        except FileNotFoundError as error:
            advice = "give a directory that `raytriever evaluate` wrote"
            raise StorageError("holds no results.json", str(folder), advice) from error
        results = conform({key: content[key] for key in content if key != "format"}, str(path), cls, remedy)
        if missing := [name for sets in results.models.values() for name in sets if name not in results.about]:
            raise StorageError(f"is damaged or changed: 'about.{missing[0]}' is missing", str(path), remedy)
        return results


def finite(value: float) -> float | None:
    """Return the number if it is finite, else None."""
    return value if math.isfinite(value) else None


def check_output(output: Path, request: Mapping[str, Any], fresh: bool) -> None:
    """Raise `ConfigError` if a directory holds other files than an evaluation with the same request.

    `fresh` accepts the results of another request, which are then replaced."""
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
            what = f"holds another evaluation ({name}: {old.get(name)} there and {new.get(name)} here)"
            remedy = f"give another {setting('output')}, or {setting('fresh', True)} to replace it"
            raise ConfigError(what, setting("output", output), remedy)


def _is_same(before: Any, now: Any) -> bool:
    """Return whether two values of a request are equal or name the same files, perhaps under another path now."""
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(_is_same(before[name], now[name]) for name in now)
    if isinstance(before, str) and isinstance(now, str) and before != now and Path(now).exists():
        old, new = Path(before).resolve(), Path(now).resolve()
        return old == new or (old.name == new.name and not old.exists())
    return bool(before == now)


def as_read(value: Any) -> Any:
    """Return a value as it is after a round trip through JSON: tuples become lists."""
    return json.loads(json.dumps(value))  # noqa: TID251 - what was made here


def without_nan(value: Any) -> Any:
    """Return JSON values with None instead of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def datasets_of(models: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the data sets on which at least one model was evaluated, in order of appearance."""
    return list(dict.fromkeys(name for sets in models.values() for name in sets))


def metrics_of(models: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return the metrics that at least one model has, in order of appearance."""
    return list(dict.fromkeys(name for sets in models.values() for values in sets.values() for name in values))


def rows_of(rows: Sequence[Any], dataset: str) -> list[Any]:
    """Return the rows of one data set."""
    return [row for row in rows if row.dataset == dataset]
