"""Trial manager of a sweep on the driver. It proposes trials, records their events, and writes the trial log.

Ray Tune's loop calls it from one thread, and the trials' events arrive on another, so every call takes the same lock.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytriever.cluster.gauges import Gauges
from raytriever.core.errors import UserError
from raytriever.core.progress import Progress
from raytriever.core.store.commit import remove
from raytriever.experiments.run.event_recorder import Recorder
from raytriever.experiments.run.open_training import training_facts
from raytriever.experiments.run.run_directory import RunDirectory
from raytriever.experiments.tuning.ray.run_trial import ENDED, METRICS, REASON, STEP, TrialEvent, TrialJob
from raytriever.experiments.tuning.ray.shared_training_data import SweepData, trial_config
from raytriever.experiments.tuning.samplers import OPTUNA, Sampler
from raytriever.experiments.tuning.space import short_name
from raytriever.experiments.tuning.trial_log import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    Status,
    Trial,
    find_best,
    write_trials,
)
from raytriever.tracking.spool import Spool
from raytriever.tracking.step_log import read_curve
from raytriever.tracking.tracker import COMMAND, points_now
from raytriever.training.run_config import TRIALS, Config, dump_config, to_dict
from raytriever.training.training_settings import DEV_LOSS

TRACKER_STATUS = {FINISHED: "FINISHED", STOPPED: "KILLED", FAILED: "FAILED"}
# Folders that are removed from every trial but the best one.
LARGE_FOLDERS = ("checkpoints", "model", "negatives")


class TrialRecorder(Recorder):
    """Recorder of the events of a trial."""

    def __init__(self, tracker: Spool, folder: Path, name: str, log: Callable[[str], None]) -> None:
        super().__init__(tracker, folder, total_steps=0)
        self._name, self._log_of_sweep = name, log

    def _log(self, text: str) -> None:
        if not text.startswith("step "):  # leave out validations: the trials together would log too many lines
            self._log_of_sweep(f"trial {self._name}: {text}")

    def _start_status(self, text: str) -> None:
        """Do nothing: the sweep itself logs how many trials run."""

    def _bar(self, done: int) -> Progress:
        if self._progress is None:
            self._progress = Progress("train", 0, "step", stream=io.StringIO())
        return self._progress


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """Plan of a sweep. `trials` is the number of all trials, `at_once` the maximum number of concurrent trials."""

    base: Config
    sampler: Sampler
    trials: int
    metric: str
    at_once: int


@dataclass
class _Running:
    recorder: TrialRecorder
    tracker: Spool
    started: float  # `time.monotonic()`


class TrialManager:
    """Manager that starts and ends trials. It writes `trials.json`, and the trials' directories and tracked runs."""

    def __init__(
        self,
        folder: Path,
        plan: SweepPlan,
        data: SweepData,
        trials: Sequence[Trial],
        tracker: Spool,
        run_name: str,
        log: Callable[[str], None],
    ) -> None:
        self._folder, self._plan, self._data = folder, plan, data
        self._tracker, self._run_name, self._log = tracker, run_name, log
        self.trials = list(trials)
        # Interrupted trials resume. Failed trials are repeated, because the cause may have been corrected.
        self._repeated = [trial.number for trial in trials if trial.status in (RUNNING, FAILED)]
        self._running: dict[int, _Running] = {}
        self._lock, self._records_ends = threading.RLock(), True
        self._gauges = Gauges(folder.resolve().name)
        self._update_gauges()

    @property
    def remaining(self) -> int:
        """Number of trials that this call may start or resume."""
        return len(self._repeated) + max(0, self._plan.trials - len(self.trials))

    def status(self) -> str:
        """Return a line with the number of ended trials and the names of the running trials."""
        with self._lock:
            running = ", ".join(
                f"{self.trials[number].name} at step {trial.recorder.step}" for number, trial in self._running.items()
            )
            ended = sum(trial.status in (FINISHED, STOPPED) for trial in self.trials)
        return f"trials: {ended} of {self._plan.trials} ended" + (f", running {running}" if running else ", starting")

    def folder_of(self, number: int) -> Path:
        """Return the directory of a trial."""
        return self._folder / TRIALS / f"{number:03d}"

    def next_job(self) -> TrialJob | None:
        """Start and return the next trial. Return None if it depends on a trial that has not ended. Raise
        `StopIteration` if no trial is left."""
        with self._lock:
            while True:
                number = self._next_number()
                if number is None:
                    return None
                try:
                    return self._start(number)
                except UserError as error:  # these settings are invalid; those of other trials may still be valid
                    self._end(number, FAILED, reason=str(error))

    def record(self, event: TrialEvent) -> None:
        """Record one event of a trial."""
        with self._lock:
            running = self._running.get(event.number)
            if running is not None and event.event is not None:  # an event of a trial that was just stopped is ignored
                running.recorder.record(event.event)

    def record_end(self, number: int, result: Mapping[str, Any] | None, process_died: bool) -> None:
        """Record the end of a trial: it finished, failed or was stopped early, or its process died too often."""
        result = result or {}
        with self._lock:
            if number not in self._running or not self._records_ends:
                return
            if process_died:
                self._end(number, FAILED, reason="its process died repeatedly")
            elif result.get(ENDED) is True:
                # Tune flattens `{"metrics": {"auc": 1}}` to `{"metrics/auc": 1}`.
                metrics = {name.partition("/")[2]: v for name, v in result.items() if name.startswith(f"{METRICS}/")}
                self._end(number, FINISHED, metrics=metrics)
            elif REASON in result:
                self._end(number, FAILED, reason=result[REASON])
            else:
                self._end(number, STOPPED, reason=f"behind at step {result.get(STEP, 0)}")

    def stop_recording_ends(self) -> None:
        """Ignore the ends of trials from now on: the end of the call ends them, and the next call resumes them."""
        with self._lock:
            self._records_ends = False

    def close(self) -> None:
        """Close the runs of trials that have not ended and write the trial log."""
        with self._lock:
            for number in list(self._running):
                trial, seconds = self.trials[number], self._close_run(number, "KILLED")
                self.trials[number] = replace(trial, seconds=trial.seconds + seconds)
            self._write()

    def _next_number(self) -> int | None:
        """Return the number of the next trial; see `next_job`. Add the trial if it is new."""
        if self._repeated:
            return self._repeated.pop(0)
        number = len(self.trials)
        if number >= self._plan.trials:
            raise StopIteration
        # Optuna waits for the first `settled` trials and learns only from them, so that its proposals are reproducible.
        settled = max(0, number - self._plan.at_once + 1)
        if self._plan.sampler.searcher == OPTUNA and any(trial.status == RUNNING for trial in self.trials[:settled]):
            return None
        point = self._plan.sampler.propose(self.trials, self._plan.metric, settled)
        if point is None:
            self._log(f"all {number} points of the search space have been tried")
            self._plan = replace(self._plan, trials=number)
            raise StopIteration
        self.trials.append(Trial(number, point))
        return number

    def _start(self, number: int) -> TrialJob:
        trial = replace(self.trials[number], status=RUNNING, reason="")
        self.trials[number] = trial
        self._write()
        config = trial_config(self._plan.base, dict(trial.settings))
        folder = self.folder_of(number)
        run = RunDirectory.open(folder, to_dict(config), fresh=False)
        job = self._data.job(number, config, folder.resolve())
        run.begin(dump_config(config), [config.loss])
        tracker = self._tracker.child(trial_run_name(trial, self._run_name), folder)
        tags = {COMMAND: "train", "config_hash": config.hash, "run_directory": str(folder.resolve())}
        tracker.describe(self._data.used_config(config), self._data.record(), tags)
        recorder = TrialRecorder(tracker, folder, trial.name, self._log)
        self._running[number] = _Running(recorder, tracker, time.monotonic())
        self._log(f"trial {trial.name} of {self._plan.trials}: {settings_text(trial.settings)}")
        self._update_gauges()
        return job

    def _end(self, number: int, status: Status, metrics: Mapping[str, float] | None = None, reason: str = "") -> None:
        seconds = self._close_run(number, TRACKER_STATUS[status])
        trial, folder = self.trials[number], self.folder_of(number)
        metrics = dict(metrics or {})
        if dev := read_curve(folder, DEV_LOSS):
            metrics[DEV_LOSS] = min(loss for _, loss in dev)
        steps = max((step for step, _ in read_curve(folder, "loss")), default=0)
        trial = replace(
            trial, status=status, metrics=metrics, steps=steps, seconds=trial.seconds + seconds, reason=reason
        )
        before = find_best(self.trials, self._plan.metric)
        self.trials[number] = trial
        if status == FINISHED:
            config = trial_config(self._plan.base, dict(trial.settings))
            RunDirectory(folder, "interrupted").finish(training_facts([folder], config))
        self._write()
        self._keep_the_best(before, trial)
        self._log(f"trial {trial.name}: {status}{self._outcome(trial)}")
        self._log_to_tracker(trial)
        self._update_gauges()

    def _close_run(self, number: int, status: str) -> float:
        running = self._running.pop(number, None)
        if running is None:
            return 0.0
        running.recorder.__exit__(None, None, None)
        running.tracker.finish(status)
        return time.monotonic() - running.started

    def _keep_the_best(self, before: Trial | None, trial: Trial) -> None:
        best = find_best(self.trials, self._plan.metric)
        for other in (before, trial):
            if other and other.status in (FINISHED, STOPPED) and not (best and other.number == best.number):
                for name in LARGE_FOLDERS:
                    remove(self.folder_of(other.number) / name)

    def _outcome(self, trial: Trial) -> str:
        metric = self._plan.metric
        has_figure = trial.status == FINISHED and metric in trial.metrics
        value_text = f", {metric} {trial.metrics[metric]:.4f}" if has_figure else ""
        reason = f" ({trial.reason})" if trial.reason else ""
        return f"{value_text}{reason}, {trial.steps} steps in {trial.seconds:.1f} s"

    def _log_to_tracker(self, trial: Trial) -> None:
        shown = [name for name in trial.metrics if name != DEV_LOSS or self._plan.metric == DEV_LOSS]
        with suppress(UserError):  # the metrics are also in `trials.json`
            self._tracker.log(points_now({f"trial/{name}": trial.metrics[name] for name in shown}, trial.number))

    def _update_gauges(self) -> None:
        statuses = [trial.status for trial in self.trials]
        ended = sum(status in (FINISHED, STOPPED) for status in statuses)
        self._gauges.set("tune_trials", self._plan.trials, "trials of the whole sweep")
        self._gauges.set("tune_trials_running", len(self._running), "trials that are running")
        self._gauges.set("tune_trials_done", ended, "trials that are finished or were stopped")
        self._gauges.set("tune_trials_failed", statuses.count(FAILED), "trials that failed")
        if best := find_best(self.trials, self._plan.metric):
            value = best.metrics[self._plan.metric]
            self._gauges.set("tune_best_metric", value, "the best trial's metric on the dev split")

    def _write(self) -> None:
        write_trials(self._folder, self.trials, self._plan.metric, self._plan.trials)


def trial_run_name(trial: Trial, sweep: str) -> str:
    """Return the name of a trial's run at a tracker. It begins with the settings that differ between trials."""
    return f"{settings_text(trial.settings)} ({trial.name} of {sweep})"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Format the settings of a trial, with four digits for floats."""
    return ", ".join(
        f"{short_name(key)} {value:.4g}" if isinstance(value, float) else f"{short_name(key)} {value}"
        for key, value in settings.items()
    )
