"""Trial manager of a sweep on the driver: propose trials, record their events, write the trial log.

Ray Tune's loop calls from one thread and the trials' events arrive on another; every call takes the same lock."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytriever.cluster.gauges import Gauges
from raytriever.config import TRIALS, Config, dump_config, to_dict
from raytriever.errors import UserError
from raytriever.experiment.directory import RunDirectory
from raytriever.experiment.recorder import Recorder
from raytriever.experiment.stages import best_checkpoint
from raytriever.progress import Progress
from raytriever.tracking.steps import read_curve
from raytriever.tracking.tracker import STAGE, PersistentTracker, Point
from raytriever.tuning.ray.training_data import SweepData, trial_config
from raytriever.tuning.ray.trial import ENDED, METRICS, REASON, STEP, TrialEvent, TrialJob
from raytriever.tuning.sampler import OPTUNA, PastTrial, Sampler
from raytriever.tuning.space import DEV_LOSS, short_name
from raytriever.tuning.trial_log import FAILED, FINISHED, RUNNING, STOPPED, Status, Trial, find_best, write_trials


class TrialRecorder(Recorder):
    """Hears the news of a trial.

    Args:
        tracker: of the trial.
        folder: its run directory.
        name: of the trial.
        say: hears its notices.
    """

    def __init__(self, tracker: PersistentTracker, folder: Path, name: str, say: Callable[[str], None]) -> None:
        super().__init__(tracker, folder, total_steps=0)
        self._name, self._tell_person = name, say

    def _say(self, text: str) -> None:
        if not text.startswith("step "):  # looks are too many to be told of all trials
            self._tell_person(f"trial {self._name}: {text}")

    def _begin_phase(self, text: str) -> None:
        """Report nothing: the sweep reports how many trials run."""

    def _bar(self, done: int) -> Progress:
        if self._progress is None:
            self._progress = Progress("train", 0, "step", stream=io.StringIO())
        return self._progress


STATUS = {FINISHED: "FINISHED", STOPPED: "KILLED", FAILED: "FAILED"}
# What a trial leaves that only the best one keeps.
HEAVY = ("checkpoints", "model", "negatives")


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to do.

    Args:
        base: settings of all trials.
        sampler: proposes what they try.
        searcher: its name.
        trials: how many there are to be.
        metric: what the best is best by.
        at_once: trials beside each other.
    """

    base: Config
    sampler: Sampler
    searcher: str
    trials: int
    metric: str
    at_once: int


@dataclass
class _Running:
    recorder: TrialRecorder
    tracker: PersistentTracker
    began: float


class TrialManager:
    """Keeps `trials.json`, the trials' directories and their runs at the tracker.

    Args:
        folder: of the sweep.
        plan: what there is to do.
        material: made ready.
        trials: those of earlier calls.
        tracker: of the sweep.
        run_name: of the sweep; the trials' runs are called after it.
        say: hears a line at every turn.
    """

    def __init__(
        self,
        folder: Path,
        plan: SweepPlan,
        material: SweepData,
        trials: Sequence[Trial],
        tracker: PersistentTracker,
        run_name: str,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._plan, self._material = folder, plan, material
        self._tracker, self._run_name, self._say = tracker, run_name, say
        self.trials = list(trials)
        # Interrupted ones go on where they stopped; failed ones may find mended what they failed for.
        self._again = [trial.number for trial in trials if trial.status in (RUNNING, FAILED)]
        self._running: dict[int, _Running] = {}
        self._lock, self._leaving = threading.RLock(), False
        self._gauges = Gauges(folder.resolve().name)
        self._tell_gauges()

    @property
    def left(self) -> int:
        """How many trials this call may begin or go on with."""
        return len(self._again) + max(0, self._plan.trials - len(self.trials))

    def state(self) -> str:
        """Return how many trials run and are over, in a few words."""
        with self._lock:
            running = ", ".join(
                f"{self.trials[number].name} at step {one.recorder.step}" for number, one in self._running.items()
            )
            over = sum(trial.status in (FINISHED, STOPPED) for trial in self.trials)
        return f"trials: {over} of {self._plan.trials} over" + (f", running {running}" if running else ", starting")

    def folder_of(self, number: int) -> Path:
        """The directory of a trial."""
        return self._folder / TRIALS / f"{number:03d}"

    def next_job(self) -> TrialJob | None:
        """The next trial, begun; None where it depends on one that is not over.

        Raises:
            StopIteration: there is none.
        """
        with self._lock:
            while True:
                number = self._next_number()
                if number is None:
                    return None
                try:
                    return self._begin(number)
                except UserError as mistake:  # of these settings alone: others may be right
                    self._settle(number, FAILED, reason=str(mistake))

    def record(self, event: TrialEvent) -> None:
        """Record one event of a trial."""
        with self._lock:
            running = self._running.get(event.number)
            if running is not None and event.event is not None:  # otherwise the trial was stopped in the meantime
                running.recorder.record(event.event)

    def ended(self, number: int, result: Mapping[str, Any] | None, died: bool) -> None:
        """A trial is over: it reported its end, was stopped at a look, or lost its process too often."""
        result = result or {}
        with self._lock:
            if number not in self._running or self._leaving:
                return
            if died:
                self._settle(number, FAILED, reason="its process died again and again")
            elif result.get(ENDED) is True:
                # Tune hands on `{"metrics": {"auc": 1}}` as `{"metrics/auc": 1}`.
                figures = {name.partition("/")[2]: v for name, v in result.items() if name.startswith(f"{METRICS}/")}
                self._settle(number, FINISHED, metrics=figures)
            elif REASON in result:
                self._settle(number, FAILED, reason=result[REASON])
            else:
                self._settle(number, STOPPED, reason=f"behind at step {result.get(STEP, 0)}")

    def leave(self) -> None:
        """Trials that are over from now on are so because the call ends, and go on with the next one."""
        with self._lock:
            self._leaving = True

    def close(self) -> None:
        """Keep what was heard of trials under way."""
        with self._lock:
            for number in list(self._running):
                trial, seconds = self.trials[number], self._stop(number, "KILLED")
                self.trials[number] = replace(trial, seconds=trial.seconds + seconds)
            self._write()

    def _next_number(self) -> int | None:
        """Also enters a new trial; raises StopIteration where there is none."""
        if self._again:
            return self._again.pop(0)
        number = len(self.trials)
        if number >= self._plan.trials:
            raise StopIteration
        # Optuna learns from what is over; told always of the same trials, it proposes always the same.
        known = max(0, number - self._plan.at_once + 1)
        if self._plan.searcher == OPTUNA and any(trial.status == RUNNING for trial in self.trials[:known]):
            return None
        past = [
            PastTrial(dict(trial.settings), trial.value(self._plan.metric) if place < known else None, place < known)
            for place, trial in enumerate(self.trials)
        ]
        point = self._plan.sampler.propose(number, past)
        if point is None:
            self._say(f"all {number} points of the search space were tried")
            self._plan = replace(self._plan, trials=number)
            raise StopIteration
        self.trials.append(Trial(number, point))
        return number

    def _begin(self, number: int) -> TrialJob:
        trial = replace(self.trials[number], status=RUNNING, reason="")
        self.trials[number] = trial
        self._write()
        config = trial_config(self._plan.base, dict(trial.settings))
        folder = self.folder_of(number)
        run = RunDirectory.open(folder, to_dict(config), fresh=False)
        job = self._material.job(number, config, str(folder.resolve()))
        run.begin(dump_config(config))
        tracker = self._tracker.child(f"{self._run_name}/{trial.name}", folder)
        tags = {STAGE: "train", "config_hash": config.hash, "run_directory": str(folder.resolve())}
        tracker.describe(self._material.used_config(config), self._material.record(), tags)
        recorder = TrialRecorder(tracker, folder, trial.name, self._say)
        self._running[number] = _Running(recorder, tracker, time.monotonic())
        self._say(f"trial {trial.name} of {self._plan.trials}: {settings_text(trial.settings)}")
        self._tell_gauges()
        return job

    def _settle(
        self, number: int, status: Status, metrics: Mapping[str, float] | None = None, reason: str = ""
    ) -> None:
        seconds = self._stop(number, STATUS[status])
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
            self._finish(trial)
        self._write()
        self._keep_the_best(before, trial)
        self._say(f"trial {trial.name}: {status}{self._outcome(trial)}")
        self._tell_tracker(trial)
        self._tell_gauges()

    def _finish(self, trial: Trial) -> None:
        """Close the trial's run directory."""
        config, folder = trial_config(self._plan.base, dict(trial.settings)), self.folder_of(trial.number)
        figures = {"dataset": self._material.record().name, "split": config.data.dev_split, "steps": trial.steps}
        RunDirectory(folder, "interrupted").finish(
            {**figures, "after": dict(trial.metrics), **best_checkpoint(folder, config)}
        )

    def _stop(self, number: int, status: str) -> float:
        """Close a trial's books; answers the seconds it ran."""
        running = self._running.pop(number, None)
        if running is None:
            return 0.0
        running.recorder.__exit__(None, None, None)
        running.tracker.finish(status)
        return time.monotonic() - running.began

    def _keep_the_best(self, before: Trial | None, trial: Trial) -> None:
        """Remove what none but the best trial is wanted for: of this one, or of the one that was best till now."""
        best = find_best(self.trials, self._plan.metric)
        for other in (before, trial):
            if (
                other is not None
                and other.status in (FINISHED, STOPPED)
                and (best is None or other.number != best.number)
            ):
                for name in HEAVY:
                    shutil.rmtree(self.folder_of(other.number) / name, ignore_errors=True)

    def _outcome(self, trial: Trial) -> str:
        metric = self._plan.metric
        figure = (
            f", {metric} {trial.metrics[metric]:.4f}" if trial.status == FINISHED and metric in trial.metrics else ""
        )
        reason = f" ({trial.reason})" if trial.reason else ""
        return f"{figure}{reason}, {trial.steps} steps in {trial.seconds:.1f} s"

    def _tell_tracker(self, trial: Trial) -> None:
        """The sweep's own curve: each trial's figure at its number."""
        metric, now = self._plan.metric, time.time_ns() // 1_000_000
        running = {name: value for name, value in trial.metrics.items() if name != DEV_LOSS or metric == DEV_LOSS}
        with suppress(UserError):  # the books stand in `trials.json`
            self._tracker.log([Point(f"trial/{name}", value, trial.number, now) for name, value in running.items()])

    def _tell_gauges(self) -> None:
        counts = [trial.status for trial in self.trials]
        over = sum(status in (FINISHED, STOPPED) for status in counts)
        self._gauges.set("tune_trials", self._plan.trials, "trials that the sweep is to make")
        self._gauges.set("tune_trials_running", len(self._running), "trials under way")
        self._gauges.set("tune_trials_done", over, "trials that are finished or were stopped")
        self._gauges.set("tune_trials_failed", counts.count(FAILED), "trials that failed")
        if best := find_best(self.trials, self._plan.metric):
            value = best.metrics[self._plan.metric]
            self._gauges.set("tune_best_metric", value, "the best trial's figure on the dev split")

    def _write(self) -> None:
        write_trials(self._folder, self.trials, self._plan.metric)


def settings_text(settings: Mapping[str, Any]) -> str:
    """What a trial tries, in words."""
    return ", ".join(
        f"{short_name(key)} {value:.4g}" if isinstance(value, float) else f"{short_name(key)} {value}"
        for key, value in settings.items()
    )
