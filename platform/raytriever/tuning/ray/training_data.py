"""Training data that the trials of a sweep share, prepared once: data sets, tokens, hard negatives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raytriever.config import Config, Curriculum, check_config, override
from raytriever.data.negatives import NegativesTable
from raytriever.experiment.opening import OpenStage, open_run, resolved_config
from raytriever.experiment.stages import LexicalIndexes, find_negatives
from raytriever.losses.registry import build_loss
from raytriever.tracking.tracker import DatasetRecord
from raytriever.training.refresh.config import check_refresh
from raytriever.tuning.ray.trial import TrialJob
from raytriever.tuning.space import Point, SearchSpace

MADE_READY = ("data", "model")


def trial_config(base: Config, point: Point) -> Config:
    """The settings of a trial, held to their declarations and to each other; raises `ConfigError`."""
    layer: dict[str, dict[str, object]] = {}
    for key, value in point.items():
        section, _, name = key.partition(".")
        layer.setdefault(section, {})[name] = value
    if "training.epochs" in point and "training.max_steps" not in point:
        layer["training"]["max_steps"] = None  # epochs that are searched are not to give way
    config = override(base, layer)
    check_config(config)
    build_loss(config.loss)
    return config


@dataclass
class SweepData:
    """Opened data sets and negatives tables, by what decides them.

    Args:
        say: hears of data sets and negatives.
    """

    say: Callable[[str], None]
    tables: dict[str, NegativesTable | None] = field(default_factory=dict)
    _stages: dict[Hashable, tuple[OpenStage, str]] = field(default_factory=dict)
    _indexes: LexicalIndexes = field(default_factory=LexicalIndexes)

    def make_ready(self, base: Config, space: SearchSpace) -> None:
        """Open whatever any trial may ask for.

        Raises:
            UserError: something a user can mend.
        """
        sets = [one for one in space.dimensions if one.section in MADE_READY]
        values = [[one.high] if one.is_range else one.values for one in sets]
        for combination in itertools.product(*values):
            point = {one.key: value for one, value in zip(sets, combination, strict=True)}
            self._open(trial_config(base, point))

    def job(self, number: int, config: Config, folder: str) -> TrialJob:
        """What a trial is given; raises `UserError` where there is nothing to learn from with its settings."""
        stage, table = self._stages[_key(config)]
        data, training = config.data, config.training
        material = replace(stage.material, config=data, batch_size=training.batch_size, seed=training.seed)
        order = material.train(self.tables[table]).order
        total_steps = training.max_steps or order.steps(training.epochs or 1.0)
        check_refresh(config.refresh, data, total_steps)
        places = tuple(dataset.place for dataset in material.datasets if dataset.place)
        return TrialJob(number, config, places, stage.dev_sets, table, total_steps, folder)

    def used_config(self, config: Config) -> dict[str, dict[str, Any]]:
        """Return the settings of a trial as they are used, for the tracker."""
        stage, _ = self._stages[_key(config)]
        return resolved_config(config, stage.description)

    def record(self) -> DatasetRecord:
        """The data set that all trials are compared on, for the tracker."""
        stage, _ = next(iter(self._stages.values()))
        dataset = stage.material.datasets[0]
        return DatasetRecord(dataset.name, stage.stage.config.data.dataset, dataset.digest, dataset.counts())

    def _open(self, config: Config) -> None:
        key = _key(config)
        if key in self._stages:
            return
        opened, _ = open_run(Curriculum(config), self.say)
        [stage] = opened.stages
        # Tables are of documents, whatever encoder reads them.
        name = repr(_rows(config))
        if name not in self.tables:
            self.tables[name] = find_negatives(stage, self._indexes.of, self.say)
        stage.material.train(self.tables[name])  # here only to be refused
        self._stages[key] = (stage, name)


def _rows(config: Config) -> Sequence[Hashable]:
    """What decides which rows and which negatives there are."""
    data = config.data
    found = data.negatives_per_query > 0
    return (data.datasets, data.train_split, data.dev_split, data.negatives_table, data.negatives_mix, found)


def _key(config: Config) -> Hashable:
    return (_rows(config), config.model)
