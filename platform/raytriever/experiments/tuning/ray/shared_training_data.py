"""Training data that is prepared once for all trials of a sweep: data sets, tokens, hard negatives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raytriever.data.hard_negatives import NegativesTable
from raytriever.experiments.run.open_run import open_run, record_of
from raytriever.experiments.run.open_training import NegativesCache, OpenTraining, count_steps, resolved_config
from raytriever.experiments.tuning.ray.run_trial import TrialJob
from raytriever.experiments.tuning.space import Point, SearchSpace
from raytriever.losses.build_loss import build_loss
from raytriever.tracking.tracker import DatasetRecord
from raytriever.training.run_config import Config, check_config, override

SECTIONS = ("data", "model")  # sections whose settings decide the data that trials can share


def trial_config(base: Config, point: Point) -> Config:
    """Return the checked settings of a trial. Raise `ConfigError` if a setting is invalid or contradicts another."""
    layer: dict[str, dict[str, object]] = {}
    for key, value in point.items():
        section, _, name = key.partition(".")
        layer.setdefault(section, {})[name] = value
    if "training.epochs" in point and "training.max_steps" not in point:
        layer["training"]["max_steps"] = None  # otherwise the base's `max_steps` would override the searched epochs
    config = override(base, layer)
    check_config(config)
    config = replace(config, loss=config.loss.pinned())
    build_loss(config.loss)
    return config


@dataclass
class SweepData:
    """Opened data sets and negatives tables of a sweep, by the settings that decide their content."""

    log: Callable[[str], None]
    tables: dict[str, NegativesTable | None] = field(default_factory=dict)
    _trainings: dict[Hashable, OpenTraining] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._cache = NegativesCache(self.log)

    def prepare(self, base: Config, space: SearchSpace) -> None:
        """Open the data of all trials that the space allows."""
        searched = [dimension for dimension in space.dimensions if dimension.section in SECTIONS]
        values = [[dimension.high] if dimension.is_range else dimension.values for dimension in searched]
        for combination in itertools.product(*values):
            point = {dimension.key: value for dimension, value in zip(searched, combination, strict=True)}
            self._open(trial_config(base, point))

    def job(self, number: int, config: Config, folder: Path) -> TrialJob:
        """Return a trial. Raise `UserError` if its settings leave no training examples."""
        opened, table = self._trainings[_key(config)], _rows(config)
        training = config.training
        data = replace(opened.data, config=config.data, batch_size=training.batch_size, seed=training.seed)
        total_steps = count_steps(config, data.train(self.tables[table]).order)
        config = replace(config, model=opened.config.model)
        own = replace(opened, config=config, data=data, total_steps=total_steps)
        return TrialJob(number, own.job(None, folder, in_process=training.workers[1] == 1), table)

    def used_config(self, config: Config) -> dict[str, dict[str, Any]]:
        """Return the resolved settings of a trial, for the tracker."""
        return resolved_config(config, self._trainings[_key(config)].description)

    def record(self) -> DatasetRecord:
        """Return the data set on which all trials are compared, for the tracker."""
        opened = next(iter(self._trainings.values()))
        return record_of(opened.data.datasets[0], opened.config)

    def _open(self, config: Config) -> None:
        key = _key(config)
        if key not in self._trainings:
            [self._trainings[key]] = open_run(config, self.log).trainings
            # A table holds documents, not tokens, so it does not depend on the encoder.
            self.tables[_rows(config)] = self._cache.table(self._trainings[key])


def _rows(config: Config) -> str:
    """Return the name of a negatives table, which consists of all settings that decide its rows."""
    data = config.data
    table = (data.negatives_table, data.negatives_mix) if data.negatives_per_query else None
    return repr((data.datasets, data.train_split, data.dev_split, table))


def _key(config: Config) -> Hashable:
    return (_rows(config), repr(config.model))
