"""Searcher and scheduler of Ray Tune: the next trial, and trials that are behind others, also of earlier calls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from raytriever.cluster.train.train_worker import TrainingJob
from raytriever.experiments.tuning.ray.ray_tuner import Asha, TrialProposals
from raytriever.experiments.tuning.ray.run_trial import TrialJob
from raytriever.training.run_config import Config


def job(number: int) -> TrialJob:
    training = TrainingJob(config=Config(), datasets=(), negatives=None, total_steps=10, folder=Path())
    return TrialJob(number, training, "")


@dataclass
class Trial:
    """The attributes of a trial that the scheduler reads."""

    trial_id: str
    config: dict[str, Any]


def report(scheduler: Asha, trial: Trial, step: int, value: float) -> str:
    return scheduler.on_trial_result(None, trial, {"step": step, "auc": value})


@pytest.mark.parametrize("larger", [True, False])
def test_a_trial_is_compared_with_trials_of_this_and_earlier_calls(larger: bool) -> None:
    sign = 1 if larger else -1
    earlier = [[(10, sign * 0.9), (20, sign * 0.95)], [(10, sign * 0.8)]]
    scheduler = Asha("auc", larger, 10, 2, earlier, lambda number: [])
    trial = Trial("a", {"job": job(2)})
    scheduler.on_trial_add(None, trial)
    assert report(scheduler, trial, 5, sign * 0.1) == TrialScheduler.CONTINUE  # in its grace period
    assert report(scheduler, trial, 10, sign * 0.87) == TrialScheduler.CONTINUE
    assert report(scheduler, trial, 20, sign * 0.5) == TrialScheduler.STOP
    alone = Asha("auc", larger, 10, 2, [], lambda number: [])
    alone.on_trial_add(None, trial)
    assert report(alone, trial, 20, sign * 0.5) == TrialScheduler.CONTINUE


def test_a_resumed_trial_has_its_earlier_curve() -> None:
    scheduler = Asha("auc", True, 10, 2, [], lambda number: [(10, 0.9)] if number == 0 else [])
    first, second = Trial("a", {"job": job(0)}), Trial("b", {"job": job(1)})
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
