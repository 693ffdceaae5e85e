"""Train under Ray Train: start the process group, collect its events and turn its end into a result or an error.

Checkpoints are the loop's own: Ray Train's state file can be torn and then refuses to start, so its state is discarded
with each call. A group of workers that starts again, after a death or because the cluster changed its size, resumes
from the newest complete checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import ray
from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from raytriever.cluster.event_queue import Event, LogMessage, RestartsExhausted, open_event_queue, open_inline_queue
from raytriever.cluster.session import DriverContext, count_gpus
from raytriever.cluster.train.controller import FIRST, Failures, Introduction
from raytriever.cluster.train.dev_sets import DevSet
from raytriever.cluster.train.fit import fit
from raytriever.cluster.train.refresh import mining
from raytriever.cluster.train.validation import validating
from raytriever.cluster.train.worker import train_worker
from raytriever.config import Config
from raytriever.data.negatives import NegativesTable
from raytriever.errors import UserError
from raytriever.training.parallel.strategy import TrainingError

# Ray Train counts a node that has just died, asks for a place on it, and looks again when that was not to be had.
PLACE_SECONDS = 10
PLACE_ATTEMPTS = 60  # ten minutes, in which a cluster that grows on demand has grown
RESIZE_SECONDS = 60.0  # how often a group may be resized because nodes came
_RAY_TRAIN = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(PLACE_SECONDS),
    # How often it looks at its workers; its default of 2 s is dead time at every death and every end.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # A process more at each beginning, and a wait for a node's last second in which nobody here does anything special:
    # a node that is taken away is a node that died.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}


class ClusterError(UserError):
    """The cluster has no place for what is asked of it."""


def train_on_cluster(
    config: Config,
    places: Sequence[str],
    negatives: NegativesTable | None,
    total_steps: int,
    folder: Path,
    on_event: Callable[[Event], None],
    told: int = 0,
    dev_sets: Sequence[DevSet] = (),
    here: bool = False,
    beside: int = 1,
) -> None:
    """Train on as many processes as `config.training.num_workers` says, within which a run shrinks and grows.

    Args:
        config: the experiment.
        places: where its data sets stand prepared, on storage that every node sees.
        negatives: the negatives table, or None.
        total_steps: after which training ends at the latest.
        folder: the run directory, on storage that every node sees; the best model stands in its `model` afterwards.
        on_event: called on the driver with every event.
        told: the last step that an earlier call has told of.
        dev_sets: what checkpoints are evaluated on while training goes on; none where they are not.
        here: whether the only worker is this process, which spares starting one; a death is the caller's then.
        beside: runs that share a node's cores with this one, itself counted.

    Raises:
        UserError: a worker met something a user can mend, or the processes die again and again.
    """
    mistakes: list[UserError] = []
    ends: list[RestartsExhausted] = []

    def handle(event: Event | UserError | RestartsExhausted) -> None:
        if isinstance(event, UserError):
            mistakes.append(event)
        elif isinstance(event, RestartsExhausted):
            ends.append(event)
        else:
            on_event(event)

    for name, value in (_RAY_TRAIN | FIRST).items():
        os.environ.setdefault(name, value)
    fewest, most = config.training.workers
    most = config.training.sharing(most)
    first = ray.put(negatives)
    with (
        (open_inline_queue if here else open_event_queue)(handle) as events,
        TemporaryDirectory(prefix="raytriever-") as state,
        mining(config, places, first, folder) as miner,
        validating(config, dev_sets, folder, lambda line: on_event(LogMessage(line))) as evaluator,
    ):
        work = {
            "config": config,
            "places": list(places),
            "negatives": first,
            "miner": miner,
            "evaluator": evaluator,
            "dev_sets": tuple(dev_sets),
            "told": told,
            "total_steps": total_steps,
            "folder": str(folder.resolve()),
            "queue": events.queue,
            "workplace": DriverContext(),
            "beside": beside,
        }

        def trainer() -> TorchTrainer:
            # No two may keep their state at one place.
            return _trainer(work, (fewest, most), Path(mkdtemp(dir=state)), here)

        failure = None
        if here:
            trainer().fit()
        else:
            failure = fit(trainer, events)
    if mistakes:
        raise mistakes[0]
    if ends:
        raise _end_of(ends[0])
    if isinstance(failure, ControllerError):
        raise _not_begun(failure, fewest) from failure.controller_failure
    if failure is not None:
        raise failure


def _trainer(work: dict[str, Any], workers: tuple[int, int], state: Path, here: bool) -> TorchTrainer:
    use_gpu = count_gpus() > 0
    fewest, most = workers
    return TorchTrainer(
        train_worker,
        train_loop_config=work,
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=0 if here else most if most == fewest else workers,
            use_gpu=use_gpu,
            elastic_resize_monitor_interval_s=RESIZE_SECONDS,
        ),
        run_config=RunConfig(
            name="train",
            storage_path=str(state),
            callbacks=[Introduction(work["queue"]), Failures(work["queue"])],
            # The event queue counts failures, and lets no group start after too many.
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=PLACE_ATTEMPTS),
        ),
    )


def _not_begun(failure: ControllerError, workers: int) -> Exception:
    """What the driver raises when a group did not come so far as to train, and Ray Train has given up."""
    cause = failure.controller_failure
    if "Timeout" in type(cause).__name__:
        return ClusterError(
            f"has had no place for {workers} workers for {PLACE_SECONDS * PLACE_ATTEMPTS // 60} minutes",
            "the Ray cluster",
            "lower --num-workers, or see `ray status` for who holds its resources",
        )
    if "StartupFailed" in type(cause).__name__:
        return TrainingError(
            "a worker died before it could begin",
            remedy="see whether memory is short where it started, then give the command again, which goes on",
        )
    return failure


def _end_of(end: RestartsExhausted) -> Exception:
    """What the driver raises when no group may begin any more."""
    first = end.reason.split("\n")[0]
    if not end.process_died:
        return RuntimeError(f"workers failed again and again after step {end.last_step}:\n{end.reason}")
    return TrainingError(
        f"{first}, and so it was again and again without a step between",
        f"after step {end.last_step}",
        "see whether memory is short (a smaller --grad-cache-chunk or --batch-size), then give the command again",
    )
