"""Request of an evaluation: its models, its data sets opened and checked, its baselines and its protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.errors import ConfigError, DataError
from raytriever.evaluation.answers import check_answers
from raytriever.evaluation.config import EvaluationConfig
from raytriever.evaluation.datasets import EvaluationDataset, beir_suite, describe_datasets, with_mteb_task
from raytriever.evaluation.names import distinct_names, safe_name, unique_names
from raytriever.evaluation.pooled_scores import parse_aims
from raytriever.evaluation.protocol import Protocol, read_metrics, select_judged_queries
from raytriever.metrics.calibration import Aim
from raytriever.models.config import ModelConfig
from raytriever.models.source import check_revision, commit_of
from raytriever.options import did_you_mean

BM25 = "bm25"


@dataclass(frozen=True)
class EvaluatedModel:
    """One model: its name in tables and files, and its settings; None for BM25, which has none."""

    name: str
    config: ModelConfig | None


def read_models(given: Sequence[str], settings: ModelConfig) -> list[EvaluatedModel]:
    """Models as the command line names them: `bm25`, a place, or `NAME=PLACE`.

    Args:
        given: at least one.
        settings: what is said of how texts are read, for all of them; what it leaves open each model's own files say.

    Raises:
        ConfigError: two of them have the same name.
    """
    labels, places = [], []
    for one in given:
        label, equals, place = one.partition("=")
        named = bool(equals and label and place) and not Path(one).exists()
        labels.append(safe_name(label) if named else None)
        places.append(place if named else one)
    names = [label or name for label, name in zip(labels, distinct_names(places), strict=True)]
    for row, name in enumerate(names):
        for other in range(row):
            if name == names[other] and (labels[row] or labels[other] or places[row] == places[other]):
                raise ConfigError(f"two models are called {name!r}", "--model", f"call one otherwise: OTHER={name}")
    names = unique_names(names)
    return [
        EvaluatedModel(name, None if place == BM25 else dataclasses.replace(settings, model=place))
        for name, place in zip(names, places, strict=True)
    ]


def pin_models(models: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """The same with hub models' revisions as commits, so that results say what was measured.

    Raises:
        ModelError: see `models.source.resolve_model`.
    """
    configs = [model.config for model in models if model.config is not None]
    if configs:
        check_revision([config.model for config in configs], configs[0].revision)
    return [
        model
        if model.config is None
        else EvaluatedModel(
            model.name,
            dataclasses.replace(model.config, revision=commit_of(model.config.model, model.config.revision)),
        )
        for model in models
    ]


def choose_baselines(given: Sequence[str], models: Sequence[EvaluatedModel]) -> list[str]:
    """The names of the models that the others are compared with; the first model where none is given.

    Raises:
        ConfigError: there is no such model, there are more than two, or one is given twice.
    """
    names = [model.name for model in models]
    by_place = {model.config.model if model.config else BM25: model.name for model in models}
    if not given:
        return names[:1]
    for one in given:
        if one not in names and one not in by_place:
            raise ConfigError(f"{one!r} is none of the models", "--baseline", did_you_mean(one, names))
    found = [one if one in names else by_place[one] for one in given]
    if len(found) > 2 or len(set(found)) < len(found):
        raise ConfigError(f"{' '.join(given)}", "--baseline", "give one model or two, which have marks of their own")
    return found


@dataclass(frozen=True)
class EvaluationJob:
    """What is to be measured, all of it checked by those who made it.

    Args:
        models: at least one.
        datasets: the data sets.
        baselines: names of the models that the others are compared with.
        protocol: what is measured.
        aims: wanted precisions and recalls, for which thresholds are chosen on `calibration_split`.
        calibration_split: another split of the data sets.
        precision: arithmetic of encoding, `fp32` or `bf16`; None for what suits the device.
        max_bad_rows: the share of each file's rows, 0 to 1, that may be bad.
        missing: lines on data sets of a suite that are not there.
    """

    models: Sequence[EvaluatedModel]
    datasets: Sequence[EvaluationDataset]
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
            "data sets": {one.name: {"split": one.split, "parts": one.parts} for one in self.datasets},
            "baselines": list(self.baselines),
            **asdict(self.protocol),
            "metrics": list(self.protocol.metrics),
            "calibrate": [f"{aim}={wanted:g}" for aim, wanted in self.aims],
            "calibration_split": self.calibration_split if self.aims else None,
            "precision": precision,
        }

    def splits(self, one: EvaluationDataset) -> list[str]:
        """The splits of a data set that are opened.

        Raises:
            ConfigError: thresholds would be checked on the split on which they are chosen.
        """
        if self.aims and one.split == self.calibration_split:
            raise ConfigError(
                f"{one.name} is measured on {one.split!r} itself", "--calibration-split", "choose thresholds on another"
            )
        return [one.split, *([self.calibration_split] if self.aims else [])]


def open_parts(
    one: EvaluationDataset, splits: Sequence[str], protocol: Protocol, max_bad_rows: float
) -> list[RetrievalDataset]:
    """The parts of a data set, each with queries to be measured in each split.

    Raises:
        DataError: a part or a split is not there, or no query of it has a relevant document.
    """
    found = []
    for place in one.parts.values():
        dataset = open_dataset(place, splits, max_bad_rows=max_bad_rows, run=in_processes)
        for split in splits:
            queries, _ = select_judged_queries(dataset, split, protocol)
            if split == one.split and protocol.wants_answers:
                check_answers(dataset, split, queries)
        found.append(dataset)
    return found


def add_suite(job: EvaluationJob, root: Path | None, log: Callable[[str], None]) -> EvaluationJob:
    """The job over the data sets of BEIR too, those that are there; what is missing is said, and told in the results.

    Raises:
        DataError: none is there.
    """

    def opens(one: EvaluationDataset) -> None:
        open_parts(one, job.splits(one), job.protocol, job.max_bad_rows)

    found, missing = beir_suite(root, opens)
    for line in missing:
        log(f"MISSING: {line}")
    if not found:
        where = f"--data-root {root}" if root else "--suite beir"
        raise DataError("no data set of the suite is there", where, "give --data-root, the folder that holds them")
    return replace(job, datasets=[*job.datasets, *found], missing=missing)


def build_evaluation_job(
    models: Sequence[EvaluatedModel],
    datasets: Sequence[str],
    config: EvaluationConfig,
    baselines: Sequence[str],
    aims: Sequence[str],
    precision: str | None,
    max_bad_rows: float,
    report: Callable[[str], None],
) -> EvaluationJob:
    """Return the request that settings describe, with hub models pinned to commits.

    Args:
        models: at least one.
        datasets: paths, URIs or names; those of `config.suite` are added.
        config: what is measured.
        baselines: see `choose_baselines`.
        aims: wanted precisions and recalls, as `precision=0.9`.
        precision: of encoding; None for what suits the device.
        max_bad_rows: the share of each file's rows that may be bad, 0 to 1.
        report: called with a line for each data set of the suite that is missing.

    Raises:
        ConfigError: no data set is given, or a metric, an aim or a baseline is unknown.
        ModelError: see `pin_models`.
    """
    if not datasets and not config.suite:
        raise ConfigError("--datasets is missing", remedy="give --datasets PATH, or --suite beir")
    models = pin_models(models)
    job = EvaluationJob(
        models=models,
        datasets=[with_mteb_task(one) for one in describe_datasets(datasets, config.split)],
        baselines=choose_baselines(baselines, models),
        protocol=Protocol(read_metrics(config.metrics), level=config.relevance_level, drop_own=config.drop_own_id),
        aims=parse_aims(aims),
        calibration_split=config.calibration_split,
        precision=precision,
        max_bad_rows=max_bad_rows,
    )
    return add_suite(job, Path(config.data_root) if config.data_root else None, report) if config.suite else job
