"""Worker of a Ray Train group: it agrees on the size of the group, opens model and data, and trains."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import get_device
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from raytriever.cluster.events_and_restarts import (
    CheckpointEvent,
    EventQueue,
    LogMessage,
    StatusMessage,
    StepEvent,
    ValidationEvent,
)
from raytriever.cluster.gauges import Gauges, run_label
from raytriever.cluster.ray_session import DriverContext
from raytriever.cluster.train.job_actors import NEGATIVES, ActorClient, ThreadClient, kept_rows
from raytriever.cluster.train.mining_round import CHECKPOINTS, MiningRounds
from raytriever.cluster.train.validate_checkpoint import DevSet, Validations, digest_of
from raytriever.core.errors import DataError, StorageError, UserError, flag_of
from raytriever.core.machine import usable_cores
from raytriever.core.store.commit import committed_directory, is_committed
from raytriever.core.store.object_stores import is_uri, log_to
from raytriever.data.hard_negatives import NegativesTable, read_negatives
from raytriever.data.sampling.teacher_scores import Coverage
from raytriever.losses.distributed import WorkerGroup, current_workers
from raytriever.losses.named_losses import GRADED_LOSSES
from raytriever.models.checkpoint_model import write_settings
from raytriever.models.device_and_precision import base_type, choose_precision
from raytriever.models.device_memory import move_to
from raytriever.models.prepare_for_training import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training.dev_validation import FOLDER as EVALUATIONS
from raytriever.training.dev_validation import ValidationPlan
from raytriever.training.guide_encoder import Guide
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.negative_refresh import RefreshPlan
from raytriever.training.run_config import Config
from raytriever.training.training_data import TrainingData
from raytriever.training.training_settings import BEHIND, SYNC


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Training job with checked settings and data. It can be sent to every process of the cluster."""

    config: Config
    datasets: tuple[str, ...]  # paths or URIs of the prepared data sets, on storage that every node sees
    negatives: Any  # table of hard negatives, or None; in a worker, a Ray reference to it
    total_steps: int
    # Run directory, on storage that every node sees. It may have the `steps.jsonl` of an earlier call. Training writes
    # the best model to its folder `model`.
    folder: Path
    dev_sets: tuple[DevSet, ...] = ()
    # If True, the calling process is the only worker. This saves the start of a process, but an error that ends the
    # process also ends the caller.
    in_process: bool = False
    runs_per_node: int = 1  # number of runs that share the cores of a node, including this one
    gpus: float = 1.0  # GPUs of each worker on a cluster with GPUs; a fraction if several runs share a GPU


@dataclass(frozen=True, kw_only=True)
class WorkerJob(TrainingJob):
    """Training job as the driver sends it to every worker of a group."""

    queue: EventQueue
    driver: DriverContext
    last_logged_step: int = 0
    miner: Any = None  # actor that mines hard negatives; None without refresh, or if the first worker mines
    # Actor that evaluates checkpoints; None without validation by retrieval, or if the first worker evaluates.
    evaluator: Any = None


def train_worker(job: WorkerJob) -> None:
    """Train as one worker of the group, if the group may start and this process is needed.

    A `UserError` is sent to the driver. Then it ends the group."""
    queue, device = job.queue, get_device()
    # Set this before transformers may load DeepSpeed. Otherwise DeepSpeed would search for a GPU and log the search.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    if not _may_start(queue, device) or not _is_needed(job, device):
        return
    with _user_errors_sent(queue):
        setup = _open_setup(job, device)
        train(setup)
        _log_status(queue, "writing the model")
        if setup.workers.rank == 0:
            _write(job, setup.retriever.eval())


@contextmanager
def _user_errors_sent(queue: EventQueue) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        # A `StorageError` with a cause comes from the disk of this worker.
        is_of_disk = isinstance(error, StorageError) and error.__cause__ is not None and current_workers().size > 1
        queue.flush(error.on_host(socket.gethostname()) if is_of_disk else error)
        # Other workers may wait for this one in a collective. Only an exception makes Ray end the whole group.
        if current_workers().size > 1:
            raise


def _may_start(queue: EventQueue, device: torch.device) -> bool:
    """Return False if a user error was sent before, or if too many groups failed without a new step."""
    workers = current_workers()
    may_start = workers.rank == 0 and queue.may_start()
    return bool(workers.all_reduce(torch.tensor(int(may_start), device=device)))


def _is_needed(job: WorkerJob, device: torch.device) -> bool:
    """Return True if this process trains. A process that does not train is idle until the group is resized."""
    workers, settings = current_workers(), job.config.training
    available, size = workers.size, settings.sharing(workers.size)
    if workers.rank == 0 and settings.workers[0] < settings.workers[1]:
        reason = f"{flag_of('batch_size')} {settings.batch_size} is not divisible by {available}"
        idle = f"; {available - size} idle, because {reason}" if size < available else ""
        job.queue.send(
            LogMessage(f"Training on {size} worker{'s' if size > 1 else ''} of {settings.num_workers}{idle}.")
        )
    return size == available or regroup(size, device)


def _log_status(queue: EventQueue, text: str) -> None:
    if current_workers().rank == 0:
        queue.send(StatusMessage(text))


def _open_setup(job: WorkerJob, device: torch.device) -> TrainingSetup:
    config, settings, queue = job.config, job.config.training, job.queue
    log_to(lambda line: queue.send(LogMessage(line)))
    job.driver.enter()  # Ray starts workers in another folder, and paths may be relative
    workers = current_workers()
    if device.type == "cpu":
        # By default Ray gives a process one thread. Here the workers of a node share all its cores.
        local = ray.train.get_context().get_local_world_size() if workers.size > 1 else 1
        torch.set_num_threads(max(1, usable_cores() // (local * job.runs_per_node)))
    _log_status(queue, "loading the encoder in the workers")
    precision = choose_precision(settings.precision, device)
    retriever = move_to(load_retriever(config.model, base_type(config.model.lora_rank, precision)), device)
    prepare_for_training(retriever, config.model, settings.seed)
    if workers.rank == 0:
        write_settings(job.folder / CHECKPOINTS, config.model, precision)
    _log_status(queue, "opening the data in the workers")
    for path in job.datasets:
        if not is_uri(path) and not is_committed(Path(path)):
            remedy = "set RAYTRIEVER_CACHE to a folder that all nodes see, or to a folder of an object store"
            raise DataError(f"does not exist on host {socket.gethostname()}", path, remedy)
    data = TrainingData.open(job.datasets, config.data, tokenization_of(retriever), settings.batch_size, settings.seed)
    if config.loss.guide:
        data = replace(data, guide=Guide.load(config.loss.guide, precision, device))
    negatives = ray.get(job.negatives)
    batches = data.train(negatives)
    if data.teacher is not None and workers.rank == 0:
        queue.send(LogMessage(f"teacher: {Coverage.of(data.teacher, batches.examples)}"))
    if data.labels is not None and workers.rank == 0 and not set(GRADED_LOSSES).isdisjoint(config.loss.terms):
        pairs, labels = f"{len(data.labels):,} judged pairs", data.labels.scores
        queue.send(LogMessage(f"graded relevance: {pairs} have labels from {labels.min():.2g} to {labels.max():.2g}"))
    _log_status(queue, "the first step, which compiles code for all steps")
    return TrainingSetup(
        retriever=retriever,
        train=batches,
        dev=data.dev(),
        loss=config.loss,
        training=settings,
        total_steps=job.total_steps,
        precision=precision,
        device=device,
        workers=workers,
        folder=job.folder / CHECKPOINTS,
        on_metrics=lambda step, metrics: queue.send(StepEvent(step, dict(metrics))),
        log=lambda text: queue.send(LogMessage(text)),
        log_status=partial(_log_status, queue),
        before_commit=lambda step: queue.flush(CheckpointEvent(step)),
        data_digest=data.digest(negatives),
        refresh=_refresh_plan(job, data, negatives, workers, device),
        validation=_validation_plan(job, workers, device),
        guide=data.guide,
    )


def _write(job: WorkerJob, retriever: Retriever) -> None:
    with committed_directory(job.folder / "model", {"config": job.config.hash}, replace=True) as hidden:
        write_model(retriever, hidden)
    if job.config.model.save_adapters:
        with committed_directory(job.folder / "adapters", {"config": job.config.hash}, replace=True) as hidden:
            write_model(retriever, hidden, adapters_of=job.config.model)


def _client(
    job: WorkerJob, name: str, actor: Any, work: Callable[[], Any], device: torch.device, waits: bool | None = None
) -> Any:
    """Return the first worker's client for background jobs: of an actor or, without one, of a thread of this process.

    Args:
        name: first word of the gauges that show whether a job is running, and whether steps wait for it.
        work: function that creates the object whose `run` does a job in a thread.
        waits: True if steps wait for a job; None for a job without this gauge.
    """
    gauges = Gauges(run_label(job.folder))

    def show(is_running: bool) -> None:
        gauges.set(f"{name}_running", is_running, f"1 while a job of {name} is running, else 0")
        if waits is not None:
            gauges.set(f"{name}_waiting", is_running and waits, f"1 while steps wait for a job of {name}, else 0")

    return ActorClient(actor, show) if actor is not None else ThreadClient(work().run, device, show)


def _refresh_plan(
    job: WorkerJob, data: TrainingData, negatives: NegativesTable | None, workers: WorkerGroup, device: torch.device
) -> RefreshPlan | None:
    config, refresh, folder = job.config, job.config.refresh, job.folder / NEGATIVES
    if refresh.refresh_every is None:
        return None
    waits = refresh.refresh_mode == SYNC
    rounds = partial(MiningRounds, config, list(job.datasets), folder, kept_rows(config, negatives))
    return RefreshPlan(
        every=refresh.refresh_every,
        waits=waits,
        folder=folder,
        read=partial(read_negatives, dataset=data.combined),
        miner=_client(job, "refresh", job.miner, rounds, device, waits) if workers.rank == 0 else None,
        last_logged_step=_last_logged_step(job, workers, device),
    )


def _validation_plan(job: WorkerJob, workers: WorkerGroup, device: torch.device) -> ValidationPlan | None:
    if not job.dev_sets:
        return None
    folder = job.folder / EVALUATIONS
    validations = partial(Validations, job.config, job.dev_sets, folder)
    return ValidationPlan(
        folder=folder,
        behind=0 if job.evaluator is None else BEHIND,
        evaluator=_client(job, "evaluation", job.evaluator, validations, device) if workers.rank == 0 else None,
        on_metrics=lambda step, metrics: job.queue.send(ValidationEvent(step, dict(metrics))),
        last_logged_step=_last_logged_step(job, workers, device),
        digest=digest_of(job.dev_sets, job.config),
    )


def _last_logged_step(job: WorkerJob, workers: WorkerGroup, device: torch.device) -> int:
    """Return the last step that this or an earlier process of the run has logged, the same on all workers."""
    step = max(job.last_logged_step, job.queue.last_step())
    return int(workers.all_reduce(torch.tensor(step, device=device), "max"))


def regroup(size: int, device: torch.device) -> bool:
    """Replace the process group by a group of its first `size` processes; every process of the old group calls it.

    The new group becomes the default group, because DeepSpeed uses the default group.

    Returns:
        True if this process belongs to the new group. Other processes have no group afterwards.
    """
    rank, backend = distributed.get_rank(), distributed.get_backend()
    host, store = os.environ.get("MASTER_ADDR", "127.0.0.1"), None
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    port = torch.tensor(store.port if store is not None else 0, device=device)
    distributed.broadcast(port, 0)
    distributed.destroy_process_group()
    os.environ["WORLD_SIZE"] = str(size)
    if rank >= size:
        return False
    if size > 1:
        if store is None:
            store = TCPStore(host, int(port), is_master=False)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    return True
