"""A study from its recipe to its table: every arm with every seed, measured alike, side by side.

1. Look before touching: the directory, and what an earlier call of the same study left there.
2. Make all arms seed by seed, so that after the first seed there is a whole table's worth; what is finished stands.
3. Write table, figures and page, from the arms' directories alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raytriever.cluster.session import check_cluster, count_gpus, ray_session
from raytriever.config.settings import hash_of
from raytriever.errors import ConfigError
from raytriever.storage import disk_errors, write_atomically
from raytriever.studies.definition import FULL, Study
from raytriever.studies.results import StudyResults
from raytriever.studies.run.arm import Arms, arm_folder, is_finished
from raytriever.studies.run.outcome import FIGURES, LATEX, PAGE, RESULTS, TABLE, seeds_of, write_study
from raytriever.studies.run.settings import SETTINGS, check_places, check_same, settings_of
from raytriever.tracking.mlflow_tracker import MlflowServer, tracking_uri
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.tracker import STAGE, DatasetRecord, PersistentTracker, Point, closing

Say = Callable[[str], None]


@dataclass(frozen=True)
class Studied:
    """What a person is told at the end.

    Args:
        path: the study's directory.
        results: all figures.
        anew: whether this call trained or measured anything.
    """

    path: Path
    results: StudyResults
    anew: bool


def run_study(study: Study, scale: str, output: Path, seeds: int, run_name: str, say: Say) -> Studied:
    """Make what is missing and write the outcome; `say` hears a line at every turn.

    Args:
        study: of a recipe, which was told that its data may stand in `DATA` of `output`.
        scale: it was made for.
        output: passed `check_directory`.
        seeds: of each training; more than an earlier call's go on, fewer leave the others out.
        run_name: at the tracker.
        say: hears lines.

    Raises:
        UserError: something a user can mend; arms that are finished stand.
    """
    settings = settings_of(study, scale, output)
    check_same(output, settings)
    check_places(study)
    todo = [
        (arm, seed)
        for seed in range(seeds)
        for arm in study.arms
        if seed in seeds_of(arm, seeds) and not is_finished(arm_folder(output, arm, seed))
    ]
    if not todo and (output / RESULTS).is_file():
        results = write_study(study, output, scale, seeds)
        send_pending(output, tracking_uri(), say)
        return Studied(output, results, anew=False)
    check_cluster()
    server = MlflowServer(tracking_uri())
    with disk_errors(output):
        output.mkdir(parents=True, exist_ok=True)
    write_atomically(output / SETTINGS, json.dumps(settings, indent=1) + "\n")
    tracker = Spool.open(server, output, run_name)
    with closing(tracker):
        record = _record(study, settings)
        tracker.describe(
            {"study": study.name, "scale": scale, "arms": len(study.arms)},
            record,
            {"run_directory": str(output.resolve()), STAGE: "study", "config_hash": hash_of(settings)},
        )
        arms = Arms(output, run_name, tracker, record, say)
        workers = [arm.curriculum.base.training.workers[1] for arm in study.arms if arm.curriculum]
        with ray_session(max([1, *workers])):
            if scale == FULL and not count_gpus():
                raise ConfigError("the cluster has no GPU", f"--scale {FULL}", "give --scale small, or add GPUs")
            for place, (arm, seed) in enumerate(todo, 1):
                say(f"{place} of {len(todo)}: {arm.name}" + (f", seed {seed}" if arm.curriculum else ""))
                arms.make(arm, seed)
        results = write_study(study, output, scale, seeds)
        _log(tracker, study, results, output, seeds)
    return Studied(output, results, anew=True)


def has_gpu() -> bool:
    """Whether there is a GPU here, or a cluster to ask for one."""
    return torch.cuda.is_available() or bool(os.environ.get("RAY_ADDRESS"))


def _record(study: Study, settings: dict[str, Any]) -> DatasetRecord:
    """The data of a whole study, by the names of its data sets."""
    measured = {one.name: one.dataset for arm in study.arms for one in arm.measured}
    return DatasetRecord("+".join(measured), ",".join(dict.fromkeys(measured.values())), hash_of(settings), {})


def _log(tracker: PersistentTracker, study: Study, results: StudyResults, output: Path, seeds: int) -> None:
    """Means over the seeds, at the number of seeds, and what there is to read."""
    now = time.time_ns() // 1_000_000
    points = [
        Point(f"{arm.name}/{one.name}/{metric}", value, seeds, now)
        for arm in study.arms
        for one in arm.measured
        for metric in results.found[arm.label, one.name][0].metrics
        if (value := results.mean(arm.label, one.name, metric)) == value
    ]
    tracker.log(points)
    for name in (SETTINGS, RESULTS, TABLE, LATEX, PAGE, FIGURES):
        tracker.log_file(output / name)
