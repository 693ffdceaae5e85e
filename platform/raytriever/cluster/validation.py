"""Evaluating checkpoints under Ray: by an actor beside the workers, which reads what they commit.

It takes a GPU where one is left over, and else shares the processors with training, at a lower priority. Killed, it is
started again, elsewhere if need be, and does its checkpoint again; killed too often over one, that one has no verdict.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import torch

from raytriever.cluster.gauges import Gauges, run_of
from raytriever.cluster.monitor import Sender
from raytriever.cluster.session import Workplace
from raytriever.cluster.validation_round import Validations
from raytriever.cluster.validation_sets import DevSet, digest_of
from raytriever.config import Config
from raytriever.errors import UserError
from raytriever.losses.workers import Workers
from raytriever.training.validation_plan import Answer, ValidationPlan
from raytriever.training.validation_record import FOLDER

# An evaluator that was killed does its checkpoint again so often before there is no verdict.
TRIES = 3
# Below that of training where both want the same cores; while training waits they are its own.
NICENESS = 10


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=TRIES)
class CheckpointEvaluator:
    """Does one evaluation after another."""

    def __init__(self, config: Config, sets: Sequence[DevSet], folder: str, workplace: Workplace) -> None:
        workplace.enter()
        with suppress(OSError):
            os.nice(NICENESS)
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # Ray leaves a process one
        for left in Path(folder).glob(".model-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._validations = Validations(config, sets, Path(folder))

    def evaluate(self, step: int, checkpoint: str) -> Answer:
        """One checkpoint."""
        try:
            return Answer(self._validations.run(step, Path(checkpoint)))
        except UserError as error:
            return Answer(reason=str(error))


class RayEvaluator:
    """A `validation_plan.Evaluator` that hands checkpoints to the actor.

    Args:
        actor: who evaluates.
        gauges: of the run; those who watch for steps are to know that these may wait.
    """

    def __init__(self, actor: Any, gauges: Gauges) -> None:
        self._actor, self._gauges = actor, gauges
        self._answer: Any = None

    def begin(self, step: int, checkpoint: Path) -> None:
        """See `Evaluator`."""
        self._tell(True)
        self._answer = self._actor.evaluate.remote(step, str(checkpoint))

    def answer(self) -> Answer | None:
        """See `Evaluator`."""
        if not ray.wait([self._answer], timeout=0)[0]:
            return None
        self._tell(False)
        try:
            found: Answer = ray.get(self._answer)
        except ray.exceptions.RayError as error:  # a defect, or it died too often
            return Answer(reason=str(error).strip().splitlines()[-1])
        return found

    def _tell(self, evaluates: bool) -> None:
        self._gauges.tell("evaluation_running", evaluates, "1 while a checkpoint is evaluated, else 0")


@contextmanager
def validating(config: Config, sets: Sequence[DevSet], folder: Path, say: Callable[[str], None]) -> Iterator[Any]:
    """An evaluator for the length of a run, on the driver; None where nothing is evaluated.

    Args:
        config: the experiment.
        sets: what is evaluated on.
        folder: the run directory.
        say: hears where it has its place, when that is not one of its own.
    """
    if not sets:
        yield None
        return
    there = ray.cluster_resources()
    free = ray.available_resources() or there  # of a session that has just begun nothing may be known yet
    workers = config.training.workers[1]
    # Of those nobody holds now: an actor that asks for what another job has would wait for it in silence.
    gpus = 1.0 if free.get("GPU", 0) > workers + _gpus_of_refresh(config) else 0.0
    if not gpus and there.get("GPU", 0):
        say(f"checkpoints are evaluated on a processor: no GPU is left beside {workers} workers")
    elif not gpus and len([node for node in ray.nodes() if node["Alive"]]) == 1:
        say("checkpoints are evaluated on the cores that train, at a lower priority: steps are slower meanwhile")
    evaluator = CheckpointEvaluator.options(num_gpus=gpus, scheduling_strategy="SPREAD")  # type: ignore[attr-defined]
    actor = evaluator.remote(config, tuple(sets), str(folder.resolve() / FOLDER), Workplace())
    try:
        yield actor
    finally:
        ray.kill(actor)


def validation_plan(
    job: Mapping[str, Any], config: Config, folder: Path, workers: Workers, device: torch.device, sender: Sender
) -> ValidationPlan | None:
    """A worker's plan; every worker makes the call.

    Args:
        job: of `train_on_cluster`: its `evaluator`, its `dev_sets`, its `mailbox`, and what earlier calls `told` of.
        config: the experiment.
        folder: the run directory.
        workers, device: the group, and where its collectives take their tensors.
        sender: of this worker.
    """
    if not job["dev_sets"]:
        return None
    told = max(job["told"], ray.get(job["mailbox"].reached.remote()))
    told = int(workers.maximum(torch.tensor(told, device=device)))
    return ValidationPlan(
        folder / FOLDER,
        config.validation.eval_behind,
        RayEvaluator(job["evaluator"], Gauges(run_of(folder))) if workers.rank == 0 else None,
        lambda step, measured: sender.evaluated(step, dict(measured)),
        told,
        digest_of(job["dev_sets"], config),
    )


def _gpus_of_refresh(config: Config) -> int:
    return 0 if config.refresh.refresh_every is None else config.refresh.pool[1]
