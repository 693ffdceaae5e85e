"""Run of a study: every arm with every seed, measured alike, and the table that compares them.

1. Check the output directory and the data sets before anything is written or trained.
2. Train and measure all arms seed by seed: after the first seed the table is complete. Finished arms are skipped. Where
   the cluster has GPUs, as many arms run at the same time as have room on them.
3. Write table, figures and page from the directories of the arms alone.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raytriever.cluster.placement import count_gpus, count_slots, gpus_of_trial
from raytriever.cluster.session import POLL_SECONDS, check_cluster, ray_session
from raytriever.config.settings import hash_of
from raytriever.errors import ConfigError, setting
from raytriever.evaluation.differences.seeds import SeededResults
from raytriever.interruption import check_interrupted
from raytriever.models.files import quiet_transformers
from raytriever.store.commit import disk_errors, write_atomically
from raytriever.studies.definition import FULL, Arm, Study
from raytriever.studies.run.arm import ArmRunner, arm_folder, is_finished
from raytriever.studies.run.outcome import FIGURES, LATEX, PAGE, RESULTS, TABLE, seeds_of, write_study
from raytriever.studies.run.settings import SETTINGS, check_data_exists, check_same, settings_of
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.tracker import STAGE, DatasetRecord, PersistentTracker, Point, closing
from raytriever.tracking.trackers import DEFAULT_TRACKERS, open_trackers

NICENESS = "RAY_worker_niceness"  # which Ray reads when it starts


@dataclass(frozen=True)
class StudyResult:
    """Result of a call of `run_study`.

    Args:
        path: directory of the study.
        results: all metrics.
        has_run_arms: whether this call trained or measured anything.
    """

    path: Path
    results: SeededResults
    has_run_arms: bool


def run_study(
    study: Study,
    scale: str,
    output: Path,
    seeds: int,
    run_name: str,
    log: Callable[[str], None],
    trial_gpus: float | None = None,
    trackers: Sequence[str] = DEFAULT_TRACKERS,
) -> StudyResult:
    """Train and measure the missing arms, and write the outcome.

    Args:
        study: made by a recipe whose `folder` was the folder `DATA` of `output`.
        scale: scale that the study was made for.
        output: directory that passed `check_directory`.
        seeds: number of trainings of each arm. A larger number than before adds seeds; a smaller one leaves the
            further seeds out of the table.
        run_name: name of the run at the tracker.
        log: called with each progress line.
        trial_gpus: GPUs of an arm, a fraction if several arms share one; None for a whole GPU where there is one.
        trackers: names of the trackers.

    Raises:
        UserError: something a user can correct; finished arms are kept.
    """
    settings = settings_of(study, scale, output)
    check_same(output, settings)
    check_data_exists(study)
    workers = max([1, *(arm.curriculum.base.training.workers[1] for arm in study.arms if arm.curriculum)])
    if trial_gpus is not None and workers > 1:
        remedy = "omit it: each of several workers has a GPU of its own"
        raise ConfigError("applies to arms of one worker", setting("trial_gpus"), remedy)
    if trial_gpus is not None and not has_gpu():
        raise ConfigError("this machine has no GPU", setting("trial_gpus"), "omit it, or run on a machine with a GPU")
    todo = [
        (arm, seed)
        for seed in range(seeds)
        for arm in study.arms
        if seed in seeds_of(arm, seeds) and not is_finished(arm_folder(output, arm, seed))
    ]
    if not todo and (output / RESULTS).is_file():
        results = write_study(study, output, scale, seeds)
        send_pending(output, trackers, log)
        return StudyResult(output, results, has_run_arms=False)
    check_cluster()
    clients = open_trackers(trackers)
    with disk_errors(output):
        output.mkdir(parents=True, exist_ok=True)
    write_atomically(output / SETTINGS, json.dumps(settings, indent=1) + "\n")
    tracker = Spool.open(clients, output, run_name)
    with closing(tracker):
        record = _dataset_record(study, settings)
        tracker.describe(
            {"study": study.name, "scale": scale, "arms": len(study.arms)},
            record,
            {"run_directory": str(output.resolve()), STAGE: "study", "config_hash": hash_of(settings)},
        )
        # Ray finds as many GPUs on this machine, and gets processors for as many arms.
        arms_here = math.ceil(max(1, torch.cuda.device_count()) / (trial_gpus or 1))
        with _equal_priority(), ray_session(workers * arms_here), quiet_transformers():
            if scale == FULL and not count_gpus():
                raise ConfigError(
                    "the cluster has no GPU", setting("scale", FULL), f"give {setting('scale')} small, or add GPUs"
                )
            gpus = gpus_of_trial(trial_gpus)
            runner = ArmRunner(output, run_name, tracker, record, log, gpus)

            def run(number: int, arm: Arm, seed: int) -> None:
                log(f"{number} of {len(todo)}: {arm.name}" + (f", seed {seed}" if arm.curriculum else ""))
                runner.run(arm, seed)

            run_arms(run, todo, count_slots(workers, gpus) if gpus else 1)
        results = write_study(study, output, scale, seeds)
        _log_results(tracker, study, results, output, seeds)
    return StudyResult(output, results, has_run_arms=True)


@contextmanager
def _equal_priority() -> Iterator[None]:
    """Let a Ray that is started here run its processes at the priority of this one.

    Without a GPU, arms train in this process. Ray's processes, by default nicer by 15, would not get the cores, and a
    refresh of hard negatives next to the training would hardly ever end.
    """
    before = os.environ.get(NICENESS)
    os.environ.setdefault(NICENESS, "0")
    try:
        yield
    finally:
        if before is None:
            del os.environ[NICENESS]


def run_arms(run: Callable[[int, Arm, int], None], todo: Sequence[tuple[Arm, int]], at_once: int) -> None:
    """Run arms, some at the same time. After an error or an interruption no further arm starts.

    Args:
        run: runs an arm, from its number, the arm and the seed. An interruption ends it on any thread.
        todo: arms and seeds.
        at_once: number of arms that run at the same time; a single one runs on this thread.

    Raises:
        UserError: the error of the first arm that failed, when the arms that were running have ended.
    """
    if at_once == 1:
        for number, (arm, seed) in enumerate(todo, 1):
            run(number, arm, seed)
        return
    has_failed = threading.Event()

    def run_unless_failed(number: int, arm: Arm, seed: int) -> None:
        if has_failed.is_set():
            return
        try:
            run(number, arm, seed)
        except BaseException:
            has_failed.set()
            raise

    with ThreadPoolExecutor(at_once, "raytriever-arm") as pool:
        try:
            arms = [pool.submit(run_unless_failed, number, arm, seed) for number, (arm, seed) in enumerate(todo, 1)]
            while wait(arms, POLL_SECONDS).not_done:
                check_interrupted()  # a signal that another thread received does not end the wait
        finally:
            has_failed.set()
    for one in arms:
        one.result()


def has_gpu() -> bool:
    """Return whether this machine has a GPU, or a Ray cluster is configured that may have one."""
    return torch.cuda.is_available() or bool(os.environ.get("RAY_ADDRESS"))


def _dataset_record(study: Study, settings: dict[str, Any]) -> DatasetRecord:
    """Return the data of the whole study for the tracker, under the names of its data sets."""
    locations = {one.name: one.dataset for arm in study.arms for one in arm.datasets}
    return DatasetRecord("+".join(locations), ",".join(dict.fromkeys(locations.values())), hash_of(settings), {})


def _log_results(tracker: PersistentTracker, study: Study, results: SeededResults, output: Path, seeds: int) -> None:
    """Log the means over the seeds, with the number of seeds as step, and the files of the study."""
    now = time.time_ns() // 1_000_000
    points = [
        Point(f"{arm.name}/{one.name}/{metric}", value, seeds, now)
        for arm in study.arms
        for one in arm.datasets
        if (arm.label, one.name) in results.cells
        for metric in results.cells[arm.label, one.name][0].metrics
        if (value := results.mean(arm.label, one.name, metric)) == value
    ]
    tracker.log(points)
    for name in (SETTINGS, RESULTS, TABLE, LATEX, PAGE, FIGURES):
        tracker.log_file(output / name)
