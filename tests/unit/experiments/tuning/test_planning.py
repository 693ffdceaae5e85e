"""Searcher, scheduler and samplers of Ray Tune: the next trial, and trials that are behind others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from raytriever.cluster.train.train_worker import TrainingJob
from raytriever.experiments.tuning.ray.ray_tuner import Asha, TrialProposals
from raytriever.experiments.tuning.ray.run_trial import TrialJob
from raytriever.experiments.tuning.samplers import STARTUP_TRIALS, Sampler
from raytriever.experiments.tuning.space import Point, SearchSpace, parse_space
from raytriever.experiments.tuning.trial_log import FAILED, FINISHED, RUNNING, Trial
from raytriever.training.run_config import Config


def job(number: int) -> TrialJob:
    training = TrainingJob(config=Config(), datasets=(), negatives=None, total_steps=10, folder=Path())
    return TrialJob(number, training, "")


@dataclass
class TrialOfRay:
    """The attributes of a trial that the scheduler reads."""

    trial_id: str
    config: dict[str, Any]


def report(scheduler: Asha, trial: TrialOfRay, step: int, value: float) -> str:
    return scheduler.on_trial_result(None, trial, {"step": step, "auc": value})


@pytest.mark.parametrize("larger", [True, False])
def test_a_trial_is_compared_with_trials_of_this_and_earlier_calls(larger: bool) -> None:
    sign = 1 if larger else -1
    earlier = [[(10, sign * 0.9), (20, sign * 0.95)], [(10, sign * 0.8)]]
    scheduler = Asha("auc", larger, 10, 2, earlier, lambda number: [])
    trial = TrialOfRay("a", {"job": job(2)})
    scheduler.on_trial_add(None, trial)
    assert report(scheduler, trial, 5, sign * 0.1) == TrialScheduler.CONTINUE  # in its grace period
    assert report(scheduler, trial, 10, sign * 0.87) == TrialScheduler.CONTINUE
    assert report(scheduler, trial, 20, sign * 0.5) == TrialScheduler.STOP
    alone = Asha("auc", larger, 10, 2, [], lambda number: [])
    alone.on_trial_add(None, trial)
    assert report(alone, trial, 20, sign * 0.5) == TrialScheduler.CONTINUE


def test_a_resumed_trial_has_its_earlier_curve() -> None:
    scheduler = Asha("auc", True, 10, 2, [], lambda number: [(10, 0.9)] if number == 0 else [])
    first, second = TrialOfRay("a", {"job": job(0)}), TrialOfRay("b", {"job": job(1)})
    scheduler.on_trial_add(None, first)
    scheduler.on_trial_add(None, second)
    assert report(scheduler, second, 10, 0.5) == TrialScheduler.STOP


def test_an_error_in_the_trial_log_ends_the_proposals() -> None:
    jobs = iter([job(3), None, job(4)])
    ended: list[tuple[int, bool]] = []

    def end(number: int, result: dict[str, Any] | None, error: bool) -> None:
        ended.append((number, error))
        if error:
            raise OSError("the disk is full")

    proposals = TrialProposals(lambda: next(jobs), end)
    assert proposals.suggest("a") == {"job": job(3)}
    assert proposals.suggest("b") is None
    assert proposals.suggest("b") == {"job": job(4)}
    assert proposals.suggest("c") == Searcher.FINISHED
    proposals.on_trial_complete("a", {})
    assert proposals.failure is None
    proposals.on_trial_complete("b", None, error=True)
    assert ended == [(3, False), (4, True)]
    assert isinstance(proposals.failure, OSError)
    assert proposals.suggest("d") == Searcher.FINISHED


@pytest.fixture
def space() -> SearchSpace:
    return parse_space(
        {
            "loss": {"loss": ["infonce", "mw"], "temperature": {"low": 0.005, "high": 0.5, "scale": "log"}},
            "training": {"warmup_steps": {"low": 0, "high": 100}},
        },
        "test",
    )


def came_to(point: Point) -> float:
    """Return a value that is best for the loss mw and a temperature of 0.02."""
    return -abs(point["loss.temperature"] - 0.02) * 10 + (0.1 if point["loss.loss"] == "mw" else 0.0)


def swept(sampler: Sampler, trials: int, past: Sequence[Trial] = ()) -> list[Trial]:
    done = list(past)
    while len(done) < trials:
        point = sampler.propose(done, "auc")
        assert point is not None
        done.append(Trial(len(done), point, FINISHED, {"auc": came_to(point)}))
    return done


@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_a_resumed_sweep_proposes_the_same_points(space: SearchSpace, searcher: str) -> None:
    whole = swept(Sampler(searcher, space, seed=3), 16)
    # A new process knows nothing but what was written down.
    again = swept(Sampler(searcher, space, seed=3), 16, whole[:9])
    assert again == whole
    assert swept(Sampler(searcher, space, seed=4), 4) != whole[:4]


@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_points_are_distinct_and_in_the_space(space: SearchSpace, searcher: str) -> None:
    points = [item.settings for item in swept(Sampler(searcher, space, seed=0), 20)]
    assert all(point["loss.loss"] in ("infonce", "mw") for point in points)
    assert all(0.005 <= point["loss.temperature"] <= 0.5 for point in points)
    assert all(isinstance(point["training.warmup_steps"], int) for point in points)
    assert len({tuple(point.values()) for point in points}) == 20
    # Even in the logarithm: half of the plots below the geometric mean.
    if searcher == "random":
        assert 4 <= sum(point["loss.temperature"] < 0.05 for point in points) <= 16


def test_optuna_learns_from_past_trials(space: SearchSpace) -> None:
    done = swept(Sampler("optuna", space, seed=1), 40)
    first, last = done[:STARTUP_TRIALS], done[-STARTUP_TRIALS:]
    assert sum(item.metrics["auc"] for item in last) > sum(item.metrics["auc"] for item in first)
    # With opposite values, it proposes other points.
    other = [replace(item, metrics={"auc": -item.metrics["auc"]}) for item in done]
    sampler = Sampler("optuna", space, seed=1)
    assert sampler.propose(other, "auc") != sampler.propose(done, "auc")


def test_optuna_gets_failed_and_running_trials(space: SearchSpace) -> None:
    done = swept(Sampler("optuna", space, seed=2), 14)
    failed = [*done[:-2], replace(done[-2], status=FAILED), replace(done[-1], status=RUNNING)]
    assert Sampler("optuna", space, seed=2).propose(failed, "auc", settled=13) is not None


@pytest.mark.parametrize("searcher", ["grid", "random", "optuna"])
def test_a_small_space_is_tried_completely(searcher: str) -> None:
    small = parse_space({"loss": {"loss": ["infonce", "mw"], "temperature": [0.01, 0.05]}}, "test")
    sampler = Sampler(searcher, small, seed=0)
    done = swept(sampler, 4)
    points = {tuple(item.settings.values()) for item in done}
    assert points == {tuple(point.values()) for point in small.grid()}
    assert sampler.propose(done, "auc") is None
