"""Run of a study: every variant with every seed, under the same evaluation, and the table that compares them.

1. Check the output directory and the data sets before anything is written or trained. The directory holds one study,
   whose name is in `study.json`. A variant is an ordinary run. It is refused if its directory has a run with other
   settings.
2. Train and evaluate all variants with the first seed, then with the next one, so that the table is complete early.
   Finished variants are skipped. If the cluster has GPUs, as many variants run at the same time as fit on the GPUs.
3. Write table, figures and page. They depend only on the directories of the variants and the study file."""

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

from raytriever.cluster.gpus_and_placement import count_slots, gpus_each
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
from raytriever.experiments.study.study_file import Study, Variant
from raytriever.experiments.study.train_variant import VariantRunner, is_finished, open_variant, variant_folder
from raytriever.models.directory.model_files import quiet_transformers
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.tracker import COMMAND, DatasetRecord, closing, points_now
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
    """Return the content of `study.json`, with the settings of all variants."""
    variants = {
        variant.name: to_dict(variant.curriculum) if variant.curriculum else variant.model for variant in study.variants
    }
    return {"format": 1, "study": study.name, "variants": variants}


def run_study(
    study: Study,
    output: Path,
    seeds: int,
    run_name: str,
    log: Callable[[str], None],
    trial_gpus: float | None = None,
    trackers: Sequence[str] = DEFAULT_TRACKERS,
) -> bool:
    """Train and evaluate the missing variants, and write the outcome. Return True if a variant was missing.

    A larger number of `seeds` than before adds trainings; a smaller number leaves some out of the table. `trial_gpus`
    is the number of GPUs of a variant, a fraction if variants share a GPU. None means a whole GPU if there is one."""
    runs = [(variant, seed) for seed in range(seeds) for variant in study.variants if seed in seeds_of(variant, seeds)]
    for variant, seed in runs:
        open_variant(
            output, variant, seed
        )  # raises an error for a variant with other settings before anything is trained
    workers = max([1, *(variant.curriculum.training.workers[1] for variant in study.variants if variant.curriculum)])
    if trial_gpus is not None:
        _check_trial_gpus(workers)
    todo = [(variant, seed) for variant, seed in runs if not is_finished(variant_folder(output, variant, seed))]
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
        tags = {"run_directory": str(output.resolve()), COMMAND: "study", "config_hash": record.digest}
        tracker.describe({"study": study.name, "variants": len(study.variants)}, record, tags)
        # Ray finds the GPUs of this machine itself. CPUs are reserved here, for all variants that run at once.
        variants_here = math.ceil(max(1, torch.cuda.device_count()) / (trial_gpus or 1))
        with _equal_priority(), ray_session(workers * variants_here), quiet_transformers():
            gpus = gpus_each("trial_gpus", trial_gpus)
            runner = VariantRunner(output, run_name, tracker, record, log, gpus)

            def run(number: int, variant: Variant, seed: int) -> None:
                log(f"{number} of {len(todo)}: {variant.name}" + (f", seed {seed}" if variant.curriculum else ""))
                runner.run(variant, seed)

            run_variants(run, todo, count_slots(workers, gpus) if gpus else 1)
        results = write_study(study, output, seeds)
        _log_results(tracker, study, results, output, seeds)
    return True


def _check_trial_gpus(workers: int) -> None:
    if workers > 1:
        remedy = "omit it: if a variant has several workers, each has its own GPU"
        raise ConfigError("applies only to variants with one worker", setting("trial_gpus"), remedy)
    if not (torch.cuda.is_available() or os.environ.get("RAY_ADDRESS")):
        raise ConfigError("this machine has no GPU", setting("trial_gpus"), "omit it, or run on a machine with a GPU")


def _record(study: Study, digest: str) -> DatasetRecord:
    locations = {
        name: path
        for variant in study.variants
        for name, dataset in variant.datasets.items()
        for path in dataset.sources
    }
    return DatasetRecord("+".join(locations), ",".join(dict.fromkeys(locations.values())), digest, {})


@contextmanager
def _equal_priority() -> Iterator[None]:
    """If Ray is started in this context, run its processes at the priority of this process.

    Without a GPU, variants train in this process. By default, Ray raises the niceness of its processes by 15. Then they
    would get almost no CPU time, and a refresh of hard negatives during the training would hardly ever end."""
    before = os.environ.get(NICENESS)
    os.environ.setdefault(NICENESS, "0")
    try:
        yield
    finally:
        if before is None:
            del os.environ[NICENESS]


def run_variants(run: Callable[[int, Variant, int], None], todo: Sequence[tuple[Variant, int]], at_once: int) -> None:
    """Call `run` with the number, variant and seed of each entry of `todo`. `at_once` calls run at the same time.

    If `at_once` is 1, variants run on this thread. After an error or an interruption, no other variant starts. When
    the running variants have ended, the error of the first variant in `todo` that failed is raised."""
    if at_once == 1:
        for number, (variant, seed) in enumerate(todo, 1):
            run(number, variant, seed)
        return
    has_failed = threading.Event()

    def run_unless_failed(number: int, variant: Variant, seed: int) -> None:
        if has_failed.is_set():
            return
        try:
            run(number, variant, seed)
        except BaseException:
            has_failed.set()
            raise

    with ThreadPoolExecutor(at_once, "raytriever-variant") as pool:
        try:
            variants = [
                pool.submit(run_unless_failed, number, variant, seed) for number, (variant, seed) in enumerate(todo, 1)
            ]
            while wait(variants, POLL_SECONDS).not_done:
                check_interrupted()  # needed because `wait` does not end when another thread receives the signal
        finally:
            has_failed.set()
    for unfinished in variants:
        unfinished.result()


def _log_results(tracker: Spool, study: Study, results: SeededResults, output: Path, seeds: int) -> None:
    names = {(variant.row, dataset): variant.name for variant in study.variants for dataset in variant.datasets}
    means = {
        f"{names.get((row, dataset), safe_name(row))}/{dataset}/{metric}": results.mean(row, dataset, metric)
        for (row, dataset), cell in results.cells.items()
        for metric in cell[0].metrics
    }
    tracker.log(points_now(means, seeds))
    for name in (SETTINGS, RESULTS, TABLE, LATEX, PAGE, FIGURES):
        tracker.log_file(output / name)
