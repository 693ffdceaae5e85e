"""Training in one process of a Ray Train worker group: join or shrink the group, open model and data, train."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import get_device
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from raytriever.cluster.event_queue import CheckpointEvent, EventQueue, LogMessage, StatusMessage, StepEvent
from raytriever.cluster.train.refresh import refresh_plan
from raytriever.cluster.train.validation import validation_plan
from raytriever.config import Config
from raytriever.data.sampling.teacher import Coverage
from raytriever.data.sources import is_uri
from raytriever.errors import DataError, UserError
from raytriever.models.precision import choose_precision
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import load_retriever
from raytriever.models.writer import write_model
from raytriever.storage import committed_directory
from raytriever.training.loop import Assignment, train
from raytriever.training.parallel.strategy import current_workers
from raytriever.training.training_data import Material, tokenisation_of


def regroup(size: int, device: torch.device) -> bool:
    """Replace this process's group by one of the first `size` of it; every process of the old group calls it.

    A group of their own rather than a part of the old one, so that whatever looks at the default group (DeepSpeed
    does) sees the workers there are.

    Args:
        size: of the new group, smaller than that of the old one.
        device: where the group's collectives take their tensors.

    Returns:
        Whether this process belongs to the new group; the others are left without one.
    """
    rank, backend = distributed.get_rank(), distributed.get_backend()
    host, store = os.environ.get("MASTER_ADDR", "127.0.0.1"), None
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    told = torch.tensor(store.port if store is not None else 0, device=device)
    distributed.broadcast(told, 0)
    distributed.destroy_process_group()
    os.environ["WORLD_SIZE"] = str(size)
    if rank >= size:
        return False
    if size > 1:
        if store is None:
            store = TCPStore(host, int(told), is_master=False)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    return True


def train_worker(job: Mapping[str, Any]) -> None:
    """Take part in training as far as the group may begin and this process is needed.

    Args:
        job: see `train_on_cluster`, which makes it. What a user can mend is sent to its `queue` before it ends the
            group.
    """
    queue, config, device = job["queue"], job["config"], get_device()
    # transformers may load DeepSpeed long before anything here does, and it would look for a GPU and say so.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    if not _may_begin(queue, device):
        return
    if not _stay(config, queue, device):
        return
    try:
        _train(job, queue, device)
    except UserError as mistake:
        queue.flush(mistake)
        # Others may wait for this worker in a collective: only an error makes Ray end the whole group.
        if current_workers().size > 1:
            raise


def _may_begin(queue: EventQueue, device: torch.device) -> bool:
    """Whether this group trains: not after a mistake, nor where too many groups failed without getting further."""
    workers = current_workers()
    begins = workers.rank == 0 and queue.may_start()
    return bool(workers.sum(torch.tensor(int(begins), device=device)))


def _stay(config: Config, queue: EventQueue, device: torch.device) -> bool:
    """Whether this process is among those that train; the others stand by until the group is resized."""
    workers, settings = current_workers(), config.training
    there, size = workers.size, settings.sharing(workers.size)
    if workers.rank == 0 and settings.workers[0] < settings.workers[1]:
        idle = f", {there - size} stand by: {settings.batch_size} does not divide by {there}" if size < there else ""
        queue.send(LogMessage(f"{size} worker{'s' if size > 1 else ''} of {settings.num_workers}{idle}"))
    return size == there or regroup(size, device)


def _train(job: Mapping[str, Any], queue: EventQueue, device: torch.device) -> None:
    config: Config = job["config"]
    folder = Path(job["folder"])
    # Ray starts workers elsewhere; data sets and models may be named by relative paths.
    job["workplace"].enter()
    workers = current_workers()
    if device.type == "cpu":
        # Ray leaves one thread to a process; the cores of a node are shared among the workers on it.
        local = ray.train.get_context().get_local_world_size() if workers.size > 1 else 1
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (local * job["beside"])))
    settings = config.training

    def phase(text: str) -> None:
        if workers.rank == 0:
            queue.send(StatusMessage(text))

    phase("loading the encoder in the workers")
    retriever = load_retriever(config.model).to(device)
    prepare_for_training(retriever, config.model, settings.seed)
    phase("opening the data in the workers")
    for place in job["places"]:
        if not is_uri(place) and not Path(place).is_dir():
            raise DataError("is not on this node", place, "set RAYTRIEVER_CACHE to a folder that all nodes see")
    material = Material.open(job["places"], config.data, tokenisation_of(retriever), settings.batch_size, settings.seed)
    negatives = ray.get(job["negatives"])
    source = material.train(negatives)
    if material.teacher is not None and workers.rank == 0:
        queue.send(LogMessage(f"teacher: {Coverage.of(material.teacher, source.examples)}"))
    phase("the first step, which compiles what all steps run")
    train(
        Assignment(
            retriever=retriever,
            train=source,
            dev=material.dev(),
            loss=config.loss,
            training=settings,
            total_steps=job["total_steps"],
            precision=choose_precision(settings.precision, device),
            device=device,
            workers=workers,
            folder=folder / "checkpoints",
            listener=lambda step, metrics: queue.send(StepEvent(step, dict(metrics))),
            notice=lambda text: queue.send(LogMessage(text)),
            heard=lambda step: queue.flush(CheckpointEvent(step)),
            data_digest=material.digest(negatives),
            refresh=refresh_plan(job, config, material, folder, workers, device),
            validation=validation_plan(job, config, folder, workers, device, queue),
        )
    )
    phase("writing the model")
    if workers.rank == 0:
        with committed_directory(folder / "model", {"config": config.hash}, replace=True) as aside:
            write_model(retriever.eval(), aside)
