"""Worker of a Ray Train group: its job, the size of the group, model and data, training."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import get_device
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from raytriever.cluster.event_queue import EventQueue
from raytriever.cluster.events import CheckpointEvent, LogMessage, StatusMessage, StepEvent, ValidationEvent
from raytriever.cluster.gauges import Gauges, run_label
from raytriever.cluster.session import DriverContext
from raytriever.cluster.train.clients import ActorClient, ThreadClient
from raytriever.cluster.train.dev_sets import DevSet, digest_of
from raytriever.cluster.train.mining_round import MiningRounds, encode_here
from raytriever.cluster.train.refresh import NEGATIVES
from raytriever.cluster.train.validation import Validations
from raytriever.config import Config
from raytriever.data.negatives import NegativesTable, read_negatives
from raytriever.data.sampling.teacher import Coverage
from raytriever.encoding.shards import tokenisation_of
from raytriever.errors import DataError, StorageError, UserError, flag_of
from raytriever.losses.distributed import WorkerGroup, current_workers
from raytriever.machine import usable_cores
from raytriever.models.memory import move_to
from raytriever.models.precision import base_type, choose_precision
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.writer import write_model
from raytriever.store.commit import committed_directory, is_committed
from raytriever.store.objects import is_uri, report_to
from raytriever.training.config import BEHIND, SYNC
from raytriever.training.guide import Guide
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.refresh import RefreshPlan
from raytriever.training.training_data import TrainingData
from raytriever.training.validation import FOLDER as EVALUATIONS
from raytriever.training.validation import Record, ValidationPlan


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """Job that the driver sends to every worker of a group; see `train_on_cluster` for fields that have no note here.

    Args:
        negatives: reference to the table of hard negatives, or to None.
        driver: working directory and locks of the driver.
        miner: actor that mines hard negatives; None without refresh, and where the first worker mines.
        evaluator: actor that evaluates checkpoints; None without validation by retrieval, and where the first worker
            evaluates.
    """

    config: Config
    datasets: tuple[str, ...]
    negatives: Any
    total_steps: int
    folder: Path
    queue: EventQueue
    driver: DriverContext
    last_logged_step: int = 0
    miner: Any = None
    evaluator: Any = None
    dev_sets: tuple[DevSet, ...] = ()
    runs_per_node: int = 1


def train_worker(job: WorkerJob) -> None:
    """Train as one worker of the group, if the group may start and this process is needed.

    A `UserError` is sent to the driver before it ends the group.
    """
    queue, device = job.queue, get_device()
    # transformers may load DeepSpeed before anything here does; it would search for a GPU and log that.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    if not _may_start(queue, device) or not _is_needed(job, device):
        return
    with _user_errors_sent(queue):
        setup = _open_setup(job, device)
        train(setup)
        _report_status(queue, "writing the model")
        if setup.workers.rank == 0:
            _write(job, setup.retriever.eval())


@contextmanager
def _user_errors_sent(queue: EventQueue) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        # With a cause, the error is one of the disk of this worker.
        is_of_disk = isinstance(error, StorageError) and error.__cause__ is not None and current_workers().size > 1
        queue.flush(error.on_host(socket.gethostname()) if is_of_disk else error)
        # Others may wait for this worker in a collective: only an exception makes Ray end the whole group.
        if current_workers().size > 1:
            raise


def _may_start(queue: EventQueue, device: torch.device) -> bool:
    """Return whether this group may train: not after a user error, or after too many failures without a new step."""
    workers = current_workers()
    may_start = workers.rank == 0 and queue.may_start()
    return bool(workers.all_reduce(torch.tensor(int(may_start), device=device)))


def _is_needed(job: WorkerJob, device: torch.device) -> bool:
    """Return whether this process trains; the others are idle until the group is resized."""
    workers, settings = current_workers(), job.config.training
    available, size = workers.size, settings.sharing(workers.size)
    if workers.rank == 0 and settings.workers[0] < settings.workers[1]:
        reason = f"{flag_of('batch_size')} {settings.batch_size} is not divisible by {available}"
        idle = f"; {available - size} idle, because {reason}" if size < available else ""
        job.queue.send(
            LogMessage(f"Training on {size} worker{'s' if size > 1 else ''} of {settings.num_workers}{idle}.")
        )
    return size == available or regroup(size, device)


def _report_status(queue: EventQueue, text: str) -> None:
    if current_workers().rank == 0:
        queue.send(StatusMessage(text))


def _open_setup(job: WorkerJob, device: torch.device) -> TrainingSetup:
    """Load the model and open the data."""
    config, settings, queue = job.config, job.config.training, job.queue
    report_to(lambda line: queue.send(LogMessage(line)))
    job.driver.enter()  # Ray starts workers elsewhere, and paths may be relative
    workers = current_workers()
    if device.type == "cpu":
        # Ray gives a process one thread; the workers on a node share its cores.
        local = ray.train.get_context().get_local_world_size() if workers.size > 1 else 1
        torch.set_num_threads(max(1, usable_cores() // (local * job.runs_per_node)))
    _report_status(queue, "loading the encoder in the workers")
    precision = choose_precision(settings.precision, device)
    retriever = move_to(load_retriever(config.model, base_type(config.model.lora_rank, precision)), device)
    prepare_for_training(retriever, config.model, settings.seed)
    _report_status(queue, "opening the data in the workers")
    for path in job.datasets:
        if not is_uri(path) and not is_committed(Path(path)):
            remedy = "set RAYTRIEVER_CACHE to a folder that all nodes see, or to one of an object store"
            raise DataError(f"is not on host {socket.gethostname()}", path, remedy)
    data = TrainingData.open(job.datasets, config.data, tokenisation_of(retriever), settings.batch_size, settings.seed)
    if config.loss.guide:
        data = replace(data, guide=Guide.load(config.loss.guide, precision, device))
    negatives = ray.get(job.negatives)
    source = data.train(negatives)
    if data.teacher is not None and workers.rank == 0:
        queue.send(LogMessage(f"teacher: {Coverage.of(data.teacher, source.examples)}"))
    _report_status(queue, "the first step, which compiles code for all steps")
    return TrainingSetup(
        retriever=retriever,
        train=source,
        dev=data.dev(),
        loss=config.loss,
        training=settings,
        total_steps=job.total_steps,
        precision=precision,
        device=device,
        workers=workers,
        folder=job.folder / "checkpoints",
        on_metrics=lambda step, metrics: queue.send(StepEvent(step, dict(metrics))),
        log=lambda text: queue.send(LogMessage(text)),
        report_status=partial(_report_status, queue),
        before_commit=lambda step: queue.flush(CheckpointEvent(step)),
        data_digest=data.digest(negatives),
        refresh=_refresh_plan(job, data, negatives, workers, device),
        validation=_validation_plan(job, workers, device),
        guide=data.guide,
    )


def _write(job: WorkerJob, retriever: Retriever) -> None:
    """Write the trained model, and its adapters if they are wanted."""
    with committed_directory(job.folder / "model", {"config": job.config.hash}, replace=True) as hidden:
        write_model(retriever, hidden)
    if job.config.model.save_adapters:
        with committed_directory(job.folder / "adapters", {"config": job.config.hash}, replace=True) as hidden:
            write_model(retriever, hidden, adapters_of=job.config.model)


def _miner(
    job: WorkerJob, negatives: NegativesTable | None, device: torch.device
) -> ActorClient[dict[str, float]] | ThreadClient[dict[str, float]]:
    """Return the access of the first worker to the miner."""
    gauges, config = Gauges(run_label(job.folder)), job.config
    waits = config.refresh.refresh_mode == SYNC

    def show(is_running: bool) -> None:
        gauges.set("refresh_running", is_running, "1 while a round is under way, else 0")
        gauges.set("refresh_waiting", is_running and waits, "1 while steps wait for a round, else 0")

    if job.miner is not None:
        return ActorClient(lambda number, weights: job.miner.mine.remote(number, [ray.put(dict(weights))]), show)
    kept = negatives if config.data.negatives_mix else None
    folder, on_gpu = job.folder / NEGATIVES, device.type == "cuda"
    # The data sets are opened by the first round.
    rounds = cache(partial(MiningRounds, config, list(job.datasets), folder, kept, on_gpu))
    return ThreadClient(
        lambda number, weights: rounds().run(number, weights, partial(encode_here, weights)), device, show
    )


def _refresh_plan(
    job: WorkerJob, data: TrainingData, negatives: NegativesTable | None, workers: WorkerGroup, device: torch.device
) -> RefreshPlan | None:
    """Return the plan of the refreshes; all workers call it."""
    refresh = job.config.refresh
    if refresh.refresh_every is None:
        return None
    return RefreshPlan(
        every=refresh.refresh_every,
        waits=refresh.refresh_mode == SYNC,
        folder=job.folder / NEGATIVES,
        read=partial(read_negatives, dataset=data.combined),
        miner=_miner(job, negatives, device) if workers.rank == 0 else None,
        last_logged_step=_last_logged_step(job, workers, device),
    )


def _evaluator(job: WorkerJob, device: torch.device) -> ActorClient[Record] | ThreadClient[Record]:
    """Return the access of the first worker to the evaluator."""
    gauges = Gauges(run_label(job.folder))

    def show(is_running: bool) -> None:
        gauges.set("evaluation_running", is_running, "1 while a checkpoint is evaluated, else 0")

    if job.evaluator is not None:
        return ActorClient(lambda step, checkpoint: job.evaluator.evaluate.remote(step, str(checkpoint)), show)
    return ThreadClient(Validations(job.config, job.dev_sets, job.folder / EVALUATIONS).run, device, show)


def _validation_plan(job: WorkerJob, workers: WorkerGroup, device: torch.device) -> ValidationPlan | None:
    """Return the plan of the validations; all workers call it."""
    if not job.dev_sets:
        return None
    return ValidationPlan(
        folder=job.folder / EVALUATIONS,
        behind=0 if job.evaluator is None else BEHIND,
        evaluator=_evaluator(job, device) if workers.rank == 0 else None,
        on_metrics=lambda step, metrics: job.queue.send(ValidationEvent(step, dict(metrics))),
        last_logged_step=_last_logged_step(job, workers, device),
        digest=digest_of(job.dev_sets, job.config),
    )


def _last_logged_step(job: WorkerJob, workers: WorkerGroup, device: torch.device) -> int:
    """Return the last step that this or an earlier call has logged, the same on all workers."""
    step = max(job.last_logged_step, job.queue.last_step())
    return int(workers.all_reduce(torch.tensor(step, device=device), "max"))


def regroup(size: int, device: torch.device) -> bool:
    """Replace the process group by one of its first `size` processes; every process of the old group calls it.

    The new group becomes the default group, because DeepSpeed uses the default group.

    Returns:
        Whether this process belongs to the new group; the others are left without a group.
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
