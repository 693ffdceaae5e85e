"""Trial log of a sweep (`trials.json`, rewritten as a whole after every change) and its table, best trial first."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from raytriever.core.errors import StorageError, UserError, setting
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import FORMAT, write_atomically
from raytriever.evaluation.evaluated_datasets import unique_names
from raytriever.evaluation.protocol import metric_title
from raytriever.experiments.tuning.space import short_name
from raytriever.training.training_settings import DEV_LOSS

TRIAL_LOG = "trials.json"
TABLE_METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_100", "auc", DEV_LOSS)  # columns after the first metric
Status = Literal["running", "finished", "stopped", "failed"]
RUNNING: Literal["running"] = "running"
FINISHED: Literal["finished"] = "finished"
STOPPED: Literal["stopped"] = "stopped"
FAILED: Literal["failed"] = "failed"


class TrialError(UserError):
    """Error of a sweep in which some trials failed. All other trials have ended."""


@dataclass(frozen=True)
class Trial:
    """One trial of a sweep, with its settings and its results."""

    number: int  # number of the trial, from 0; `trials/NUMBER`, with three or more digits, is its directory
    settings: Mapping[str, Any]  # the trial's point in the search space, by `section.setting`
    # `running` (also after an interruption), `finished`, `stopped` by the scheduler, or `failed`.
    status: Status = RUNNING
    metrics: Mapping[str, float] = field(default_factory=dict)  # dev metrics; only the dev loss unless `finished`
    steps: int = 0
    seconds: float = 0.0  # running time, summed over all calls
    reason: str = ""  # why the trial failed, or the step at which it was stopped

    @property
    def name(self) -> str:
        """Name of the trial's directory and run."""
        return f"{self.number:03d}"

    def value(self, metric: str) -> float | None:
        """Return the metric, negated for a loss; None if it is NaN or infinite, or if the trial has not finished."""
        value = self.metrics.get(metric)
        if self.status != FINISHED or value is None or not math.isfinite(value):
            return None
        return -value if metric == DEV_LOSS else value


class _Trials(TypedDict):
    trials: list[Trial]


def find_best(trials: Sequence[Trial], metric: str) -> Trial | None:
    """Return the finished trial with the best value, the earliest of equal trials; None if no trial is finished."""
    valued = [(value, -trial.number, trial) for trial in trials if (value := trial.value(metric)) is not None]
    return max(valued)[2] if valued else None


def read_trials(folder: Path, settings: Collection[str] | None = None) -> list[Trial]:
    """Return the trials of a sweep by number; `[]` before its start. All must have the same searched settings."""
    file = folder / TRIAL_LOG
    if not file.is_file():
        return []
    remedy = f"give another {setting('output')}"
    trials = sorted(read_json(file, _Trials, remedy, format=FORMAT)["trials"], key=lambda trial: trial.number)
    if [trial.number for trial in trials] != list(range(len(trials))):
        raise StorageError("is damaged or changed: the numbers of its trials are not 0, 1, 2, ...", str(file), remedy)
    expected = set(trials[0].settings if settings is None and trials else settings or ())
    for trial in trials:
        if other := sorted(expected ^ trial.settings.keys()):
            reason = f"is damaged or changed: its trials have other settings (see {other[0]} of trial {trial.number})"
            raise StorageError(reason, str(file), remedy)
    return trials


def write_trials(folder: Path, trials: Sequence[Trial], metric: str, planned: int) -> None:
    """Write all trials, the number of the best trial so far, and the planned number of trials."""
    best = find_best(trials, metric)
    content = {
        "format": FORMAT,
        "metric": metric,
        "planned": planned,
        "best": best.number if best else None,
        "trials": [asdict(trial) for trial in trials],
    }
    write_atomically(folder / TRIAL_LOG, json.dumps(content, indent=1) + "\n")


def rank_trials(trials: Sequence[Trial], metric: str) -> list[Trial]:
    """Return the finished trials, best first, then the others by number."""
    return sorted(
        trials, key=lambda t: (0, -value, t.number) if (value := t.value(metric)) is not None else (1, 0.0, t.number)
    )


def sweep_rows(trials: Sequence[Trial], metric: str) -> list[list[str]]:
    """Return the table of a sweep: a row of titles, then a row for each trial. There must be at least one trial.

    The first metric column has `metric`, which decides the best trial."""
    keys = list(trials[0].settings)
    evaluated = {name for trial in trials for name in trial.metrics}
    metrics = [metric, *(name for name in TABLE_METRICS if name in evaluated and name != metric)]
    titles = [DEV_LOSS.replace("_", " ") if name == DEV_LOSS else metric_title(name) for name in metrics]
    rows = [unique_names(["trial", *map(short_name, keys), *titles, "steps", "seconds", "status"])]
    for trial in rank_trials(trials, metric):
        values = [f"{trial.metrics[name]:.4f}" if name in trial.metrics else "-" for name in metrics]
        status = trial.status if trial.status == FINISHED else f"{trial.status}: {trial.reason}".removesuffix(": ")
        settings = [setting_text(trial.settings[key]) for key in keys]
        rows.append([trial.name, *settings, *values, str(trial.steps), f"{trial.seconds:.1f}", status])
    return rows


def setting_text(value: Any) -> str:
    """Format the value of a setting, with four digits for a float."""
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None or value == "" else str(value)
