"""Training loop of one worker: `Trainer.run` and `Trainer.step`.

1. Step t samples its batch by (data, seed, t), encodes it, computes the loss of the global score matrix, and updates
   the weights.
2. Every `eval_steps` steps, the dev loss is computed. After `patience` validations without improvement, training stops.
3. The whole state is saved at validation steps, every few minutes, and at the end. It is written while steps continue.
4. In the background, callbacks validate checkpoints by retrieval, and refresh hard negatives (`background_jobs`).
5. At the end the best weights are loaded. After an interruption, the same call resumes from the newest checkpoint."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raytriever.losses.build_loss import build_loss
from raytriever.losses.distributed import WorkerGroup, host_workers
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.device_and_precision import autocast
from raytriever.models.encoder import check_precision, set_dropout
from raytriever.models.retriever import Retriever
from raytriever.training.background_jobs import BackgroundJob, all_texts
from raytriever.training.batch_loader import Batch, Batches, BatchVersions, Prefetcher, copy_to, wait_for_copy
from raytriever.training.checkpoint import State, load_best, origin_of, resume
from raytriever.training.checkpoint_writer import CheckpointWriter
from raytriever.training.dev_validation import ValidationJob, ValidationPlan
from raytriever.training.early_stopping import TrainerState
from raytriever.training.guide_encoder import Guide, MaskingWatch
from raytriever.training.negative_refresh import RefreshJob, RefreshPlan
from raytriever.training.optimizer_and_schedule import build_optimizer, learning_rate_scale, set_learning_rate
from raytriever.training.parallel.chunk_size import ChunkChoice
from raytriever.training.parallel.deepspeed_zero import Zero
from raytriever.training.parallel.fsdp2 import FullyShard
from raytriever.training.parallel.model_state import frozen_digest
from raytriever.training.parallel.objective import Objective, with_default_operands
from raytriever.training.parallel.out_of_memory import Recovery, Vote, reason_of
from raytriever.training.parallel.strategies import HostValues, Replicas, Strategy
from raytriever.training.step_metrics import StepLines, Stopwatch, StragglerWatch, Throughput
from raytriever.training.training_settings import CHECKPOINT_MINUTES, DEV_LOSS, TrainingConfig


@dataclass(frozen=True)
class TrainingSetup:
    """Model, data, settings and callbacks with which one worker trains."""

    retriever: Retriever  # the encoder, on `device`, the same on every worker
    train: Batches
    dev: Batches
    loss: LossConfig
    training: TrainingConfig
    total_steps: int
    precision: str  # `fp32` or `bf16`
    device: torch.device
    workers: WorkerGroup
    folder: Path  # folder of the checkpoints, shared by all workers
    # Called on the first worker with the number of steps done and the metrics of a step or validation.
    on_metrics: Callable[[int, Mapping[str, float]], None]
    log: Callable[[str], None]
    # Called on every worker with a description of what training does between two steps.
    log_status: Callable[[str], None] = lambda text: None
    # Called with the number of a step before the checkpoint of this step is committed. Returns when all metrics up to
    # this step are stored.
    before_commit: Callable[[int], None] = lambda step: None
    # Digest of everything that batches are made of. A run resumes only with the same digest. Empty if unknown.
    data_digest: str = ""
    refresh: RefreshPlan | None = None
    validation: ValidationPlan | None = None
    guide: Guide | None = None  # encoder that masks false negatives; None if the settings of the loss name no guide


def train(setup: TrainingSetup) -> TrainerState:
    """Train until the last step or until early stopping, and load the best weights into the retriever.

    Raises:
        ConfigError: the chunk is larger than a worker's local batch, or the strategy's package is not installed.
        StorageError: a checkpoint cannot be written, or belongs to another model, other settings or other data.
        TrainingError: the loss or the gradient is NaN or infinite.
    """
    return Trainer(setup).run()


class Trainer:
    """Training of one worker, from the newest checkpoint on."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup, self.settings, self.workers = setup, setup.training, setup.workers
        self.device, self.messages = setup.device, host_workers(setup.workers)
        settings, device, retriever, guide = setup.training, setup.device, setup.retriever, setup.guide

        # Model and loss
        torch.manual_seed(settings.seed)
        config = with_default_operands(setup.loss, setup.precision, device)
        loss = build_loss(config, retriever.description.similarity == "cosine").to(device)
        set_dropout(retriever, settings.dropout)
        towers = retriever.query.backbone, retriever.passage.backbone
        with autocast(setup.precision, device):
            for backbone in towers:
                check_precision(backbone, setup.precision)
        retriever.choose_packing(setup.precision)
        retriever.train()
        vote, encode = Vote(self.messages), guide.encode if guide else None
        self.objective = Objective(retriever, loss, setup.precision, vote, encode)

        # Gradient caching; the chunk size is found before parameters are sharded and the optimizer has state
        texts = 1 + setup.train.positives_per_query + setup.train.negatives_per_query
        self.chunk_choice = ChunkChoice(settings, retriever, setup.precision, device, self.workers)
        self.chunk = self.chunk_choice.first(settings.batch_size // self.workers.size * texts)

        # Metrics; FLOPs are counted before parameters are sharded
        self.throughput = Throughput(*towers, setup.precision, device, self.workers)
        self.reports = StepLines(self.throughput, settings.batch_size, self._log_metrics, device.type == "cuda")
        self.stopwatch = Stopwatch(loss, device)
        self.straggler_watch = StragglerWatch(all_texts(socket.gethostname(), self.messages), self._log)
        self.straggler_metrics = dict[str, float]()
        self.masking_watch = MaskingWatch(self._log)

        # Optimizer, and the strategy that may shard it and the model
        self.origin = origin_of(setup.loss, settings, setup.total_steps, setup.data_digest)
        if frozen := frozen_digest(self.objective):
            self.origin["frozen weights"] = frozen
        if guide:
            self.origin["guide"] = guide.digest
        if setup.validation:
            self.origin["dev data"] = setup.validation.digest
        self.optimizer = build_optimizer(self.objective, settings.learning_rate, settings.weight_decay)
        self.strategy = build_strategy(settings, self.objective, self.optimizer, self.workers, device)
        self.recovery = Recovery(self.workers, self.strategy.abandon, self.chunk_choice.smaller, setup.log)

        # Data, background jobs, and the newest checkpoint
        self.versions = BatchVersions(setup.train)
        self.copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.callbacks = self._build_callbacks()
        self.is_dev_loss_deciding = settings.best_metric == DEV_LOSS or setup.validation is None
        self.trainer_state = resume(setup.folder, self.strategy, self.workers, device, self.origin, setup.log)
        self.checkpointer = CheckpointWriter(
            setup.folder,
            self.messages,
            device,
            keep=settings.keep,
            has_state=any(True for _ in self.strategy.state()),
            before_commit=setup.before_commit,
            retained_steps=self._retained_steps,
        )
        self.saved_step, self.saved_at = self.trainer_state.step, time.monotonic()
        self.must_save, self.save_seconds = False, 0.0

    def run(self) -> TrainerState:
        """Train until the last step or until early stopping, and load the best weights; see `train`."""
        setup, checkpointer = self.setup, self.checkpointer
        with checkpointer, ExitStack() as closing:
            for callback in self.callbacks:
                callback.wait_for_checkpoint = checkpointer.wait
                closing.callback(callback.close)
            for callback in self.callbacks:
                self.trainer_state = callback.start(self.trainer_state)
            if self.callbacks:
                checkpointer.prune(self.trainer_state)  # otherwise a job could use a later, damaged checkpoint
            first_step = self.trainer_state.step
            while steps := self._next_steps():
                with Prefetcher(self._load_batch, steps) as loader:
                    for batch in loader:
                        self.step(batch, loader.waited)
                        if self.trainer_state.step == first_step + 1:
                            # After its first step, the optimizer has moments to copy. No step is being timed here.
                            checkpointer.allocate_buffers(self.strategy.state())
                        self._finish_step()
                        if self.trainer_state.stopped:
                            break
            self.reports.finish()
            checkpointer.wait()
            for callback in self.callbacks:
                self.trainer_state = callback.finish(self.trainer_state)
            if self.callbacks:
                checkpointer.prune(self.trainer_state)
        self.strategy.release()
        load_best(setup.folder, self.objective, self.trainer_state, self.workers, self.device)
        return self.trainer_state

    def step(self, batch: Batch, wait_seconds: float) -> None:
        """Run one step: forward, backward, clip, update. If a worker runs out of memory, repeat with smaller chunks."""
        setup, settings, step = self.setup, self.settings, self.trainer_state.step
        began = time.perf_counter()
        for callback in self.callbacks:
            callback.before_batch(step, batch)
        rate = settings.learning_rate * learning_rate_scale(step, settings.warmup_steps, setup.total_steps)
        set_learning_rate(self.optimizer, rate)
        setup.retriever.train()
        # The dropout masks depend on (seed, step, worker) only, so a resumed run repeats them.
        seed = np.random.SeedSequence((settings.seed, step, self.workers.rank)).generate_state(1)[0]
        while True:
            try:
                if batch.chunk != self.chunk:
                    batch = self._load_batch(step)
                torch.manual_seed(int(seed))
                self.stopwatch.start()
                output = self.strategy.forward_backward(wait_for_copy(batch))
                self.strategy.clip_gradients()
                self.stopwatch.mark()
                norm = self.strategy.step(output.value, step)
                break
            except Exception as error:
                reason, is_agreed = reason_of(error, self.workers)
            self.chunk = self.recovery.next_chunk(step, self.chunk, batch, reason, is_agreed)
        phases = self.stopwatch.stop()
        others = {
            "learning_rate": rate,
            "data_wait_seconds": wait_seconds,
            "checkpoint_seconds": self.save_seconds,
            **self.straggler_metrics,
        }
        for callback in self.callbacks:
            others |= callback.metrics(step)
        self.reports.add(step, output, norm, batch.work, phases, began - wait_seconds, others)
        self.save_seconds = 0.0
        self.trainer_state = replace(self.trainer_state, step=step + 1)

    def _build_callbacks(self) -> list[BackgroundJob]:
        setup, callbacks = self.setup, list[BackgroundJob]()
        common: dict[str, Any] = {
            "total_steps": setup.total_steps,
            "checkpoints": setup.folder,
            "workers": self.messages,
            "log": setup.log,
            "log_status": setup.log_status,
        }
        if setup.validation:
            callbacks.append(ValidationJob(setup.validation, self.settings, **common))
        if setup.refresh:
            callbacks.append(RefreshJob(setup.refresh, self.versions, **common))
        return callbacks

    def _retained_steps(self) -> frozenset[int]:
        return frozenset[int]().union(*(callback.retained_steps for callback in self.callbacks))

    def _next_steps(self) -> range:
        """Return the steps whose batches may be prepared now; empty when training is over."""
        step, end = self.trainer_state.step, self.setup.total_steps
        if self.trainer_state.stopped:
            return range(0)
        return range(step, min([end, *(callback.prefetch_limit(step, end) for callback in self.callbacks)]))

    def _load_batch(self, step: int) -> Batch:
        """Return the batch of a step, and start its copy to the device; called in the loader's thread."""
        return self._copy(self.versions.at(step), step)

    def _copy(self, batches: Batches, step: int) -> Batch:
        batch = batches.batch(step, self.setup.retriever, self.workers, self.setup.loss.symmetric, self.chunk)
        return copy_to(replace(batch, work=self.throughput.count(batch)), self.device, self.copies)

    def _finish_step(self) -> None:
        dev_metrics = self._validate_if_due()
        if dev_metrics is not None:
            # Report before saving: after a crash, a metric may be reported twice, but none may be missing.
            self._log_metrics(self.trainer_state.step, dev_metrics)
        self._save_if_due(has_validated=dev_metrics is not None)
        for callback in self.callbacks:
            if self.trainer_state.stopped:
                return
            self.trainer_state = callback.after_step(self.trainer_state)
            if self.trainer_state.stopped:
                self._save_if_due(has_validated=False)

    def _validate_if_due(self) -> dict[str, float] | None:
        """At a validation step, return the dev loss and the dev AUC (comparable between losses). Else return None."""
        step = self.trainer_state.step
        if step % self.settings.eval_steps and step != self.setup.total_steps:
            return None
        self.reports.finish()
        self.setup.log_status(f"computing the dev loss of step {step}")
        self.setup.retriever.eval()
        losses, areas = [], []
        for number in range(self.settings.dev_batches):
            output = self.strategy.evaluate(wait_for_copy(self._copy(self.setup.dev, number)))
            numbers = HostValues({"loss": output.value, "auc": output.statistics["batch_auc"]}).read()
            losses.append(numbers["loss"])
            areas.append(numbers["auc"])
        dev_loss = sum(losses) / len(losses)
        if self.is_dev_loss_deciding:
            self.trainer_state = self.trainer_state.after_validation(step, -dev_loss, self.settings.patience)
        return {"dev_loss": dev_loss, "dev_batch_auc": sum(areas) / len(areas)}

    def _save_if_due(self, has_validated: bool) -> None:
        """Save the state if a checkpoint is due.

        The best state, the last state, and states that a callback needs are saved at once: training waits until the
        previous checkpoint is written. Any other state is saved at the first step at which no checkpoint is being
        written. The time for saving is reported with the next step."""
        began, settings, trainer_state = time.monotonic(), self.settings, self.trainer_state
        status = self.checkpointer.status(began - self.saved_at > 60 * CHECKPOINT_MINUTES, self.reports.own_seconds)
        self.straggler_metrics = self.straggler_watch.update(status.seconds)
        if settings.checkpoint_steps is None:
            self.must_save |= has_validated
        else:
            self.must_save |= trainer_state.step - self.saved_step >= settings.checkpoint_steps
        self.must_save |= status.is_due
        must_save_now = (
            trainer_state.best_step == trainer_state.step
            or trainer_state.stopped
            or trainer_state.step == self.setup.total_steps
            or any(callback.needs_checkpoint(trainer_state.step) for callback in self.callbacks)
        )
        if must_save_now or (self.must_save and not status.is_writing):
            self.reports.finish()
            self.checkpointer.save(self.strategy.state(), State(trainer_state, self.origin, settings.best_metric))
            self.saved_step, self.saved_at, self.must_save = trainer_state.step, time.monotonic(), False
            self.save_seconds = self.saved_at - began

    def _log(self, line: str) -> None:
        if self.workers.rank == 0:
            self.setup.log(line)

    def _log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.masking_watch.update(step, metrics)
        if self.workers.rank == 0:
            self.setup.on_metrics(step, metrics)


def build_strategy(
    settings: TrainingConfig,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    workers: WorkerGroup,
    device: torch.device,
) -> Strategy:
    """Return the parallel strategy that the settings name. The strategy may shard the objective and the optimizer."""
    arguments = objective, optimizer, workers, device, settings.max_grad_norm
    if settings.strategy == "ddp":
        return Replicas(*arguments)
    if settings.strategy == "fsdp2":
        return FullyShard(*arguments)
    return Zero(int(settings.strategy.removeprefix("zero")), *arguments, offload=settings.offload_optimizer)
