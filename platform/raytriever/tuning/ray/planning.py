"""Check the plan of a sweep before anything is written: search space, metrics, every trial of a grid."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from raytriever.cluster.train.dev_sets import DEV, dev_protocol
from raytriever.config import Config, check_config, to_dict
from raytriever.errors import ConfigError, UserError, setting
from raytriever.evaluation.protocol import Protocol
from raytriever.options import check_options, did_you_mean
from raytriever.training.config import DEV_LOSS
from raytriever.tuning.ray.manager import SweepPlan, settings_text
from raytriever.tuning.ray.training_data import trial_config
from raytriever.tuning.sampler import GRID, Sampler
from raytriever.tuning.space import BATCH_AUC, DEFAULT_TRIALS, SearchConfig, SearchSpace, parse_search_space

# Settings of the execution, which may differ when a sweep is resumed.
_MAY_CHANGE = ("trials", "trials_at_once", "trial_gpus")
SWEEP = "sweep"


def plan_sweep(base: Config, search: SearchConfig) -> tuple[SearchSpace, SweepPlan]:
    """Return the search space and the plan, after a check of every trial of a grid.

    Raises:
        UserError: the space, a metric or the settings of a trial are not valid.
    """
    check_options(search)
    check_config(base)
    if search.trial_gpus is not None and base.training.workers[1] > 1:
        raise ConfigError(
            "applies to trials of one worker",
            setting("trial_gpus"),
            "omit it: each of several workers has a GPU of its own",
        )
    space = parse_search_space(search.search_space)
    metrics = (*Protocol().metrics, DEV_LOSS)
    if search.metric not in metrics:
        raise ConfigError(f"unknown metric {search.metric!r}", setting("metric"), did_you_mean(search.metric, metrics))
    scales = [one.key for one in space.dimensions if one.section == "loss"]
    for name, metric in (("metric", search.metric), ("asha_metric", search.asha_metric if search.asha else "")):
        if metric == DEV_LOSS and scales:
            remedy = f"give another, such as {BATCH_AUC if name == 'asha_metric' else 'ndcg_at_10'}"
            raise ConfigError(
                f"{DEV_LOSS} has a different scale in each trial, because {scales[0]} is searched",
                setting(name),
                remedy,
            )
    check_watched_metric(base, search)
    sampler = Sampler(search.searcher, space, base.training.seed)
    trials = search.trials or DEFAULT_TRIALS
    if not any(one.is_range for one in space.dimensions):
        trials = min(trials, len(space.grid()))
    if search.searcher == GRID:
        points = space.grid()
        trials = min(search.trials or len(points), len(points))
        for number, point in enumerate(points[:trials]):
            try:
                trial_config(base, point)
            except UserError as error:
                raise error.within(f"trial {number} ({settings_text(point)})") from error
    return space, SweepPlan(base=base, sampler=sampler, trials=trials, metric=search.metric, at_once=1)


def watched_metric(search: SearchConfig) -> str | None:
    """Return the metric that trials are stopped by, by its name in the events; None if no trial is stopped early."""
    if not search.asha:
        return None
    return search.asha_metric if search.asha_metric in (BATCH_AUC, DEV_LOSS) else DEV + search.asha_metric


def check_watched_metric(base: Config, search: SearchConfig) -> None:
    """Raise `ConfigError` if the metric that stops trials early is unknown, or is not measured during training."""
    if not search.asha or search.asha_metric in (BATCH_AUC, DEV_LOSS):
        return
    metrics = dev_protocol(base.training.best_metric).metrics
    if search.asha_metric not in metrics:
        remedy = did_you_mean(search.asha_metric, (*metrics, BATCH_AUC, DEV_LOSS))
        raise ConfigError(f"unknown metric {search.asha_metric!r}", setting("asha_metric"), remedy)
    if not base.validation.sources(base.training.best_metric, base.data.dev_split):
        remedy = f"give {setting('eval_datasets')} own, or {setting('asha_metric')} {BATCH_AUC}"
        raise ConfigError(f"{search.asha_metric} is not measured during training", setting("asha_metric"), remedy)


def sweep_settings(base: Config, search: SearchConfig, space: SearchSpace) -> dict[str, Any]:
    """Return all settings that decide the trials of a sweep, by section."""
    sweep = {name: value for name, value in asdict(search).items() if name not in _MAY_CHANGE}
    return {**to_dict(base), SWEEP: {**sweep, "search_space": space.to_dict()}}
