"""Results of an evaluation, and their file `results.json`.

    {"format": 2, "models": {NAME: {DATASET: {metric: value}}}, "about": {DATASET: {"queries", "documents", "split"}},
     "baselines": [NAME], "pairs": [...], "auc_intervals": [...], "calibration": [...], "confidences": [...],
     "forms": [...], "parts": {NAME: {PART: {metric: value}}}, "systems": {NAME: {...}}, "asked": {...}}

`asked` is the content of the request. The same command replaces its results; another one is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from raytriever.errors import ConfigError, StorageError, setting
from raytriever.evaluation.decision import SHARES
from raytriever.evaluation.differences.rows import TestedPair
from raytriever.metrics.answering import AnswerAim
from raytriever.metrics.calibration import PairAim
from raytriever.mining.analyser import analyser_line
from raytriever.reading.structured import conform, read_json
from raytriever.store.disk import disk_errors

RESULTS, FORMAT = "results.json", 2
Rows = dict[str, dict[str, dict[str, float]]]


@dataclass
class Results:
    """Results of an evaluation.

    Args:
        models: metrics by model and data set.
        parts: metrics by model and part, for divided data sets.
        about: facts about each data set: its queries, documents, split and parts, the number of relevant documents
            that the corpus lacks, and, if BM25 is measured, the analysis of its documents.
        baselines: one or two models that the marks compare with.
        pairs: a test for each data set, metric and pair of models, see `significance.pair_rows`.
        auc_intervals: a row for each data set and model, see `measurements.auc_rows`.
        calibration: a row for each data set, model and aim, see `decision.calibration_rows`.
        confidences: a row for each data set, model and confidence, see `decision.confidence_rows`.
        forms: a row for each data set, model and stored form, see `quantised.form_rows`.
        systems: how each model reads texts, and the width of its embeddings.
        quarantined: lines about bad rows, for the user.
        missing: a line for each missing data set of a suite.
    """

    models: Rows = field(default_factory=dict)
    parts: Rows = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    baselines: list[str] = field(default_factory=list)
    pairs: list[TestedPair] = field(default_factory=list)
    auc_intervals: list[dict[str, Any]] = field(default_factory=list)
    calibration: list[dict[str, Any]] = field(default_factory=list)
    confidences: list[dict[str, Any]] = field(default_factory=list)
    forms: list[dict[str, Any]] = field(default_factory=list)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    quarantined: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def content(self, request: Mapping[str, Any]) -> str:
        """Return the text of `results.json`; NaN becomes null."""
        rows = ("baselines", "pairs", "auc_intervals", "calibration", "confidences", "forms")
        parts = ("models", "parts", "about", *rows, "systems", "missing")
        whole = {"format": FORMAT, **{name: getattr(self, name) for name in parts}, "asked": dict(request)}
        return json.dumps(without_nan(whole), indent=1, ensure_ascii=False) + "\n"


def bm25_warnings(about: Mapping[str, Any]) -> list[str]:
    """Return the warnings about BM25's figures on a data set, one for each part; see `mining.analyser.Analysis`."""
    analyses = about.get("bm25", {})
    several = len(analyses) > 1
    return [
        f"{part}: {one['warning']}" if several else one["warning"] for part, one in analyses.items() if one["warning"]
    ]


def bm25_analysers(about: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line on each analyser of BM25, with the part of a data set that it belongs to if there are several."""
    lines = {part: analyser_line(one) for each in about.values() for part, one in each.get("bm25", {}).items()}
    distinct = list(dict.fromkeys(lines.values()))
    return distinct if len(distinct) < 2 else [f"{part}: {line}" for part, line in lines.items()]


class AnalysisAbout(TypedDict):
    """Analysis of a part by BM25's analyser, see `mining.analyser.Analysis`."""

    language: str
    warning: str | None


class About(TypedDict):
    """One data set of an evaluation."""

    queries: int
    documents: int
    split: str
    absent_relevant: int
    relevant: int
    unanswerable_queries: int
    copies_above: dict[str, int]  # by model, see `copies.count_copies_above`
    bm25: NotRequired[dict[str, AnalysisAbout]]


class AucRow(TypedDict):
    """Interval of one AUC, see `measurements.auc_rows`."""

    dataset: str
    model: str
    auc: float
    low: float | None
    high: float | None
    misordered_queries: int
    note: str | None


class CalibrationRecord(TypedDict):
    """One threshold, see `decision.calibration_rows`."""

    dataset: str
    model: str
    aim: AnswerAim | PairAim
    wanted: float | None
    threshold: float | None
    reached: bool
    checked: float | None
    low: float | None
    high: float | None
    calibration_error: float | None
    chosen_on: str
    confidence: str
    checked_on: str
    unanswerable: dict[str, ShareRecord]
    notes: list[str]


# Further keys of a threshold.
_FIGURES = {f"{name}{end}" for name in (*SHARES, "calibration_error") for end in ("", "_low", "_high")}
_FIGURES |= {"chosen", *(count for counts in SHARES.values() for count in counts)}


class ShareRecord(TypedDict):
    """Share with its interval."""

    part: int
    whole: int
    value: float | None
    low: float
    high: float


class ConfidenceRecord(TypedDict):
    """Area under the risk-coverage curve of one confidence, see `decision.confidence_rows`."""

    dataset: str
    model: str
    confidence: str
    chosen_on: str
    area_chosen: float
    area: float
    low: float
    high: float
    decides: bool


class FormRow(TypedDict):
    """One stored form, see `quantised.form_rows`."""

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


class ResultsContent(TypedDict):
    """Content of `results.json`."""

    models: dict[str, dict[str, dict[str, float | None]]]
    about: dict[str, About]
    baselines: list[str]
    pairs: list[TestedPair]
    auc_intervals: list[AucRow]
    calibration: list[CalibrationRecord]
    confidences: list[ConfidenceRecord]
    forms: list[FormRow]
    parts: dict[str, dict[str, dict[str, float | None]]]
    systems: dict[str, dict[str, Any]]
    missing: list[str]
    asked: dict[str, Any]


def read_results(folder: Path) -> dict[str, Any]:
    """Read the `results.json` of a directory; see `ResultsContent`."""
    path, remedy = folder / RESULTS, "evaluate again into another directory"
    try:
        with disk_errors(path, reading=True):
            content = read_json(path, dict[str, Any], remedy, format=FORMAT)
    except FileNotFoundError as error:
        raise StorageError(
            "holds no results.json", str(folder), f"name the {setting('output')} of `raytriever evaluate`"
        ) from error
    conform(content, str(path), ResultsContent, remedy)
    for row in content["calibration"]:
        if missing := sorted(_FIGURES - row.keys()):
            raise StorageError(f"is damaged or changed: 'calibration.{missing[0]}' is missing", str(path), remedy)
        conform({name: row[name] for name in _FIGURES}, str(path), dict[str, float | None], remedy)
        shares = ((name, f"{name}_low", f"{name}_high", *counts) for name, counts in SHARES.items())
        has_gap = any(row[keys[0]] is not None and None in [row[key] for key in keys] for keys in shares)
        if has_gap or (row["reached"] and (row["threshold"] is None or row["chosen"] is None)):
            raise StorageError("is damaged or changed: a threshold or what it achieves is missing", str(path), remedy)
    for name in (name for sets in content["models"].values() for name in sets):
        if name not in content["about"]:
            raise StorageError(f"is damaged or changed: 'about.{name}' is missing", str(path), remedy)
    return content


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
    old = read_results(output)["asked"]
    new = json.loads(json.dumps(request))
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


def without_nan(value: Any) -> Any:
    """Return JSON values with null in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: without_nan(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
