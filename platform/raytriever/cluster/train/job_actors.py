"""Actors that do background jobs on committed checkpoints, and the first worker's clients for these actors.

A job evaluates a checkpoint, or mines with it. Its actor has a GPU if training leaves a GPU free. Without GPUs it uses
all cores, at a lower priority than training. A killed actor restarts, possibly on another node, and repeats its job. If
an actor is killed too often, the job fails.

If training uses all GPUs, a thread of the first worker does the job between two steps, while training waits. So no
second process takes memory of the GPU, and the memory of a job is released before the next step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import ray
import torch

from raytriever.cluster.actor_pool import ActorPool, lower_priority
from raytriever.cluster.gpus_and_placement import actor_options, count_gpus, count_nodes, spare_gpus
from raytriever.cluster.ray_session import DriverContext, result_or_error
from raytriever.cluster.train.mining_round import EMBEDDINGS, MiningRounds
from raytriever.cluster.train.validate_checkpoint import DevSet, Validations
from raytriever.core.errors import UserError, flag_of
from raytriever.core.machine import usable_cores
from raytriever.core.store.commit import remove
from raytriever.models.directory.model_files import first_line
from raytriever.training.background_jobs import JobError
from raytriever.training.dev_validation import FOLDER as EVALUATIONS
from raytriever.training.run_config import Config
from raytriever.training.training_settings import SYNC

TRIES = 3  # number of repetitions of a job whose actor was killed; after them, the job fails
NEGATIVES, MODEL = "negatives", "model"
Result = TypeVar("Result")


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=TRIES)
class CheckpointJob:
    """Actor that does one job after another: it calls `run(number, checkpoint)` of the object `kind(*arguments)`."""

    def __init__(self, driver: DriverContext, kind: Callable[..., Any], *arguments: Any) -> None:
        driver.enter()
        lower_priority()
        torch.set_num_threads(usable_cores())  # Ray's default is one thread
        self._job = kind(*arguments)

    def run(self, number: int, checkpoint: str) -> Any | UserError:
        """Do job `number` on a checkpoint, and return its result or a user error."""
        return result_or_error(lambda: self._job.run(number, Path(checkpoint)))


class ActorClient(Generic[Result]):
    """Client of a `CheckpointJob`; see `JobClient`. For alerts about slow steps, `show(True)` is called when a job
    starts and `show(False)` when it ends."""

    def __init__(self, actor: Any, show: Callable[[bool], None]) -> None:
        self._actor, self._show = actor, show
        self._result: Any = None

    def submit(self, number: int, checkpoint: Path) -> None:
        """See `JobClient.submit`."""
        self._show(True)
        self._result = self._actor.run.remote(number, str(checkpoint))

    def poll(self) -> Result | None:
        """See `JobClient.poll`."""
        if not ray.wait([self._result], timeout=0)[0]:
            return None
        self._show(False)
        try:
            result: Result | UserError = ray.get(self._result)
        except ray.exceptions.RayError as error:  # a defect, or the actor died too often
            raise JobError(str(error).strip().splitlines()[-1]) from error
        if isinstance(result, UserError):
            raise result
        return result


class ThreadClient(Generic[Result]):
    """Client of a thread that does one job after another on the device of this worker; see `JobClient`."""

    def __init__(self, work: Callable[[int, Path], Result], device: torch.device, show: Callable[[bool], None]) -> None:
        self._work, self._device, self._show = work, device, show
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="between-steps")
        self._job: Future[Result]

    def submit(self, number: int, checkpoint: Path) -> None:
        """See `JobClient.submit`."""
        self._show(True)
        self._job = self._thread.submit(self._run, number, checkpoint)

    def poll(self) -> Result | None:
        """See `JobClient.poll`."""
        if not self._job.done():
            return None
        self._show(False)
        return self._job.result()

    def _run(self, number: int, checkpoint: Path) -> Result:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # the current device is set per thread
        try:
            return self._work(number, checkpoint)
        except UserError as error:
            reason = str(error)
        except Exception as error:  # a defect, or too little GPU memory: the job fails, but training continues
            reason = first_line(error)  # text only: the traceback of the error would keep the tensors of the job
        finally:
            torch.cuda.empty_cache()
        raise JobError(reason)


@contextmanager
def _running(gpus: float, kind: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    options = CheckpointJob.options(**actor_options(0, gpus))  # type: ignore[attr-defined]
    actor = options.remote(DriverContext(), kind, *arguments)
    try:
        yield actor
    finally:
        ray.kill(actor)


@contextmanager
def start_evaluator(
    config: Config, dev_sets: Sequence[DevSet], folder: Path, log: Callable[[str], None]
) -> Iterator[Any]:
    """Yield an actor that evaluates checkpoints; None if there are no dev sets, or if the first worker evaluates."""
    if not dev_sets:
        yield None
        return
    workers = config.training.workers[1]
    miners = 0 if config.refresh.refresh_every is None else config.refresh.pool[1]
    # Request only a GPU that is free now: for a GPU of another job, the actor would wait without a message.
    gpus = 1.0 if spare_gpus(workers + miners) else 0.0
    if not gpus and count_gpus():
        log("Checkpoints are evaluated on the GPU of the first worker, while training waits.")
        yield None
        return
    if not gpus and count_nodes() == 1:
        log("Checkpoints are evaluated on the cores that train, at a lower priority. Meanwhile steps take longer.")
    with _running(gpus, Validations, config, tuple(dev_sets), folder.resolve() / EVALUATIONS) as actor:
        yield actor


@contextmanager
def start_miner(
    config: Config, datasets: Sequence[str], negatives: Any, folder: Path, log: Callable[[str], None]
) -> Iterator[Any]:
    """Yield an actor that mines hard negatives; None if nothing is refreshed, or if the first worker mines."""
    if config.refresh.refresh_every is None:
        yield None
        return
    workers, (_, most) = config.training.workers[1], config.refresh.pool
    spare = spare_gpus(workers)
    if count_gpus() and not spare and config.refresh.refresh_mode == SYNC:
        log("Refreshes use the GPU of the first worker, while training waits for them.")
        yield None
        return
    if spare < most and count_gpus():
        where = f"on {spare} GPU{'s' if spare > 1 else ''}" if spare else "on CPUs"
        log(
            f"Refreshes encode and search {where}: {flag_of('refresh_pool')} is {most}, but {workers} of "
            f"{count_gpus()} GPUs train."
        )
    gpus, choose = (0.0, partial(choose_pool, config)) if most > 1 else (float(spare > 0), lambda: None)
    path = folder.resolve() / NEGATIVES
    with _running(gpus, MiningRounds, config, list(datasets), path, kept_rows(config, negatives), choose) as actor:
        yield actor
    if (folder / MODEL).is_dir():  # all steps are done, so no run resumes the unfinished round
        remove(folder / NEGATIVES / EMBEDDINGS)


def choose_pool(config: Config) -> ActorPool | None:
    """Return the pool of a round: one actor for each GPU that training leaves or, without such a GPU, for each node.

    `--refresh-pool` limits the number. The pool is None on a single node without a free GPU. There the process of the
    round already uses all cores, so more processes would not help."""
    spare = spare_gpus(config.training.workers[1])
    fewest, most = (min(size, spare or count_nodes()) for size in config.refresh.pool)
    return ActorPool(fewest, most, cpus=0, gpus=float(spare > 0)) if spare or most > 1 else None


def kept_rows(config: Config, negatives: Any) -> Any:
    """Return the first table of hard negatives if every round keeps some of its rows, else None."""
    return negatives if config.data.negatives_mix else None
