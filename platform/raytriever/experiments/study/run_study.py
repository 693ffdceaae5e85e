"""Run of a study: every arm with every seed, under the same evaluation, and the table that compares them.

1. Check the output directory and the data sets before anything is written or trained. The directory holds one study,
    whose name is in `study.json`. An arm is an ordinary run. It is refused if its directory has a run with other
    settings.
2. Train and evaluate all arms with the first seed, then with the next one, so that the table is complete early.
    Finished arms are skipped. If the cluster has GPUs, as many arms run at the same time as fit on them.
3. Write table, figures and page. They depend only on the directories of the arms and the study file."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import torch

from raytriever.cluster.gpus_and_placement import count_slots, gpus_of_trial
from raytriever.cluster.ray_session import POLL_SECONDS, check_cluster, ray_session
from raytriever.core.errors import ConfigError, setting
from raytriever.core.interruption import check_interrupted
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import remove, write_atomically
from raytriever.core.store.disk import check_writable
from raytriever.evaluation.differences.differences_by_seed import SeededResults
from raytriever.evaluation.evaluated_datasets import safe_name
from raytriever.evaluation.evaluation_files import LATEX
from raytriever.experiments.study.outcome import FIGURES, PAGE, RESULTS, TABLE, seeds_of, write_study
from raytriever.experiments.study.study_file import Arm, Study
from raytriever.experiments.study.train_arm import ArmRunner, arm_folder, is_finished, open_arm
from raytriever.models.directory.model_files import quiet_transformers
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.tracker import STAGE, DatasetRecord, closing, points_now
from raytriever.tracking.tracker_names import DEFAULT_TRACKERS, open_trackers
from raytriever.training.run_config import hash_of, to_dict

SETTINGS = "study.json"
NICENESS = "RAY_worker_niceness"  # Ray reads this environment variable when it starts


class _Settings(TypedDict):
    study: str


def check_directory(output: Path, name: str) -> None:
    """Raise `ConfigError` if a directory is not empty and does not hold this study. Nothing is written."""
    check_writable(output)
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not (output / SETTINGS).is_file():
        raise ConfigError("is not empty and holds no study", setting("output", output), "give another directory")
    if (stored := read_json(output / SETTINGS, _Settings, f"give another {setting('output')}")["study"]) != name:
        what = f"holds another study ({stored}; this command asks for {name})"
        raise ConfigError(what, setting("output", output), "give another directory")


def settings_of(study: Study) -> dict[str, Any]:
    """Return the settings of the arms, for the record."""
    arms = {arm.name: to_dict(arm.curriculum) if arm.curriculum else arm.model for arm in study.arms}
    return {"format": 1, "study": study.name, "arms": arms}


def run_study(
    study: Study,
    output: Path,
    seeds: int,
    run_name: str,
    log: Callable[[str], None],
    trial_gpus: float | None = None,
    trackers: Sequence[str] = DEFAULT_TRACKERS,
) -> bool:
    """Train and evaluate the missing arms, and write the outcome. Return whether any arm was missing.

    A larger number of `seeds` than before adds trainings; a smaller number leaves some out of the table. `trial_gpus`
    is the number of GPUs of an arm, a fraction if arms share a GPU. None means a whole GPU if there is one."""
    runs = [(arm, seed) for seed in range(seeds) for arm in study.arms if seed in seeds_of(arm, seeds)]
    for arm, seed in runs:
        open_arm(output, arm, seed)  # raises an error for an arm with other settings before anything is trained
    workers = max([1, *(arm.curriculum.training.workers[1] for arm in study.arms if arm.curriculum)])
    if trial_gpus is not None:
        _check_trial_gpus(workers)
    todo = [(arm, seed) for arm, seed in runs if not is_finished(arm_folder(output, arm, seed))]
    if not todo and (output / RESULTS).is_file():
        write_study(study, output, seeds)
        send_pending(output, trackers, log)
        return False
    check_cluster()
    clients = open_trackers(trackers)
    output.mkdir(parents=True, exist_ok=True)
    remove(output / RESULTS)  # a study without this file has not ended
    settings = settings_of(study)
    write_atomically(output / SETTINGS, json.dumps(settings, indent=1) + "\n")
    tracker = Spool.open(clients, output, run_name)
    with closing(tracker):
        record = _record(study, hash_of(settings))
        tags = {"run_directory": str(output.resolve()), STAGE: "study", "config_hash": record.digest}
        tracker.describe({"study": study.name, "arms": len(study.arms)}, record, tags)
        # Ray finds the GPUs of this machine by itself, but must be given CPUs for this many arms.
        arms_here = math.ceil(max(1, torch.cuda.device_count()) / (trial_gpus or 1))
        with _equal_priority(), ray_session(workers * arms_here), quiet_transformers():
            gpus = gpus_of_trial(trial_gpus)
            runner = ArmRunner(output, run_name, tracker, record, log, gpus)

            def run(number: int, arm: Arm, seed: int) -> None:
                log(f"{number} of {len(todo)}: {arm.name}" + (f", seed {seed}" if arm.curriculum else ""))
                runner.run(arm, seed)

            run_arms(run, todo, count_slots(workers, gpus) if gpus else 1)
        results = write_study(study, output, seeds)
        _log_results(tracker, study, results, output, seeds)
    return True


def _check_trial_gpus(workers: int) -> None:
    if workers > 1:
        remedy = "omit it: each of several workers has a GPU of its own"
        raise ConfigError("applies to arms of one worker", setting("trial_gpus"), remedy)
    if not (torch.cuda.is_available() or os.environ.get("RAY_ADDRESS")):
        raise ConfigError("this machine has no GPU", setting("trial_gpus"), "omit it, or run on a machine with a GPU")


def _record(study: Study, digest: str) -> DatasetRecord:
    locations = {name: path for arm in study.arms for name, one in arm.datasets.items() for path in one.sources}
    return DatasetRecord("+".join(locations), ",".join(dict.fromkeys(locations.values())), digest, {})


@contextmanager
def _equal_priority() -> Iterator[None]:
    """If Ray is started in this context, run its processes at the priority of this process.

    Without a GPU, arms train in this process. By default, Ray raises the niceness of its processes by 15. Then they
    would get almost no CPU time, and a refresh of hard negatives during the training would hardly ever end."""
    before = os.environ.get(NICENESS)
    os.environ.setdefault(NICENESS, "0")
    try:
        yield
    finally:
        if before is None:
            del os.environ[NICENESS]


def run_arms(run: Callable[[int, Arm, int], None], todo: Sequence[tuple[Arm, int]], at_once: int) -> None:
    """Call `run` with the number, arm and seed of each entry of `todo`, `at_once` of them at the same time.

    If `at_once` is 1, arms run on this thread. After an error or an interruption no further arm starts. When the
    running arms have ended, the error of the first arm in `todo` that failed is raised."""
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
                check_interrupted()  # needed because `wait` does not end when another thread receives the signal
        finally:
            has_failed.set()
    for one in arms:
        one.result()


def _log_results(tracker: Spool, study: Study, results: SeededResults, output: Path, seeds: int) -> None:
    names = {(arm.row, dataset): arm.name for arm in study.arms for dataset in arm.datasets}
    means = {
        f"{names.get((row, dataset), safe_name(row))}/{dataset}/{metric}": results.mean(row, dataset, metric)
        for (row, dataset), cell in results.cells.items()
        for metric in cell[0].metrics
    }
    tracker.log(points_now(means, seeds))
    for name in (SETTINGS, RESULTS, TABLE, LATEX, PAGE, FIGURES):
        tracker.log_file(output / name)
