"""The training loop under Ray Train: processes, their group, and news to the driver.

Checkpoints are the loop's own (Ray Train's state file can be torn and then refuses to start); a worker group that
Ray restarts after a death goes on from the newest one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from raytriever.cluster.monitor import listening
from raytriever.config import Config
from raytriever.data.files import is_uri
from raytriever.data.negatives_table import NegativesTable
from raytriever.errors import DataError, UserError
from raytriever.models.layout import write_model
from raytriever.models.precision import choose_precision
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import load_retriever
from raytriever.parallel.strategy import current_workers
from raytriever.storage import committed_directory
from raytriever.training.loop import Assignment, train
from raytriever.training.material import Material
from raytriever.training.tokens import tokenisation_of

MAX_RESTARTS = 3


@dataclass(frozen=True)
class StepNews:
    """What was measured after a step."""

    step: int
    measured: Mapping[str, float]


@dataclass(frozen=True)
class Notice:
    """A line for the person."""

    text: str


def train_on_cluster(
    config: Config,
    places: Sequence[str],
    negatives: NegativesTable | None,
    total_steps: int,
    folder: Path,
    hear: Callable[[StepNews | Notice], None],
) -> None:
    """Train on as many processes as `config.training.num_workers` says; the best model stands in `folder/model` afterwards.

    Args:
        config: the experiment.
        places: where its data sets stand prepared, on storage that every node sees.
        negatives: the negatives table, or None.
        total_steps: after which training ends at the latest.
        folder: the run directory, on storage that every node sees.
        hear: called on the driver with every item of news.

    Raises:
        UserError: a worker met something a user can mend.
    """
    mistakes: list[UserError] = []

    def hear_or_keep(item: StepNews | Notice | UserError) -> None:
        if isinstance(item, UserError):
            mistakes.append(item)
        else:
            hear(item)

    fewest, most = config.training.workers
    most = config.training.sharing(most)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    with listening(hear_or_keep) as mailbox, TemporaryDirectory(prefix="raytriever-") as state:
        trainer = TorchTrainer(
            _train_worker,
            train_loop_config={
                "config": config,
                "places": list(places),
                "negatives": ray.put(negatives),
                "total_steps": total_steps,
                "folder": str(folder.resolve()),
                "mailbox": mailbox,
                "directory": os.getcwd(),
            },
            torch_config=TorchConfig(backend="nccl" if gpus else "gloo"),
            scaling_config=ScalingConfig(num_workers=most if most == fewest else (fewest, most), use_gpu=gpus > 0),
            run_config=RunConfig(
                name="train", storage_path=state, failure_config=FailureConfig(max_failures=MAX_RESTARTS)
            ),
        )
        failure = _fit(trainer)
    if mistakes:
        raise mistakes[0]
    if failure is not None:
        raise failure


def _fit(trainer: TorchTrainer) -> BaseException | None:
    """Run the trainer; answers what it failed with.

    It runs on a thread of its own: on the main one it takes over Ctrl-C and ends the process with a code that says
    nothing, while here the interruption reaches the caller and the end of the Ray session ends the workers.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            trainer.fit()
        except Exception as failure:  # handed to the caller's thread
            failures.append(failure)

    thread = threading.Thread(target=run, name="raytriever-fit", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    return failures[0] if failures else None


def _train_worker(job: Mapping[str, Any]) -> None:
    """One process of the group. What a user can mend is sent to the driver before it ends the group."""
    mailbox = job["mailbox"]
    if ray.get(mailbox.has_mistake.remote()):
        return  # Ray started the group again after a mistake that no restart can mend
    try:
        _train(job)
    except UserError as mistake:
        ray.get(mailbox.send.remote(mistake))
        # Others may wait for this worker in a collective: only an error makes Ray end the whole group.
        if current_workers().size > 1:
            raise


def _train(job: Mapping[str, Any]) -> None:
    config: Config = job["config"]
    folder = Path(job["folder"])
    # Ray starts workers elsewhere; data sets and models may be named by relative paths.
    os.chdir(job["directory"])
    workers, device = current_workers(), get_device()
    if device.type == "cpu":
        # Ray leaves one thread to a process; the cores of a node are shared among its workers.
        local = ray.train.get_context().get_local_world_size()
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local))
    settings = config.training
    retriever = load_retriever(config.model).to(device)
    prepare_for_training(retriever, config.model, settings.seed)
    for place in job["places"]:
        if not is_uri(place) and not Path(place).is_dir():
            raise DataError("is not on this node", place, "set RAYTRIEVER_CACHE to a folder that all nodes see")
    material = Material.open(job["places"], config.data, tokenisation_of(retriever), settings.batch_size, settings.seed)
    mailbox, negatives = job["mailbox"], ray.get(job["negatives"])
    train(
        Assignment(
            retriever=retriever,
            train=material.train(negatives),
            dev=material.dev(),
            loss=config.loss,
            training=settings,
            total_steps=job["total_steps"],
            precision=choose_precision(settings.precision, device),
            device=device,
            workers=workers,
            folder=folder / "checkpoints",
            listener=lambda step, measured: mailbox.send.remote(StepNews(step, dict(measured))),
            notice=lambda text: mailbox.send.remote(Notice(text)),
            data_digest=material.digest(negatives),
        )
    )
    if workers.rank == 0:
        with committed_directory(folder / "model", {"config": config.hash}, replace=True) as aside:
            write_model(retriever.eval(), aside)
