"""Training loop of one worker.

1. Step t draws its batch from (data, seed, t), encodes it, reduces the global score matrix and updates the weights.
2. Every `eval_steps` steps the dev loss is computed. After `patience` validations without improvement training stops.
3. The whole state is saved at validation steps, after some minutes and at the end; it is written while steps continue.
4. Callbacks validate checkpoints by retrieval and refresh hard negatives in the background (`background`).
5. At the end the best weights are loaded. Interrupted anywhere, the same call resumes from the newest checkpoint."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from raytriever.losses.config import SCORE_LOSSES, LossConfig
from raytriever.losses.distributed import WorkerGroup, host_workers
from raytriever.losses.registry import build_loss
from raytriever.models.encoder import check_precision, set_dropout
from raytriever.models.files import first_line
from raytriever.models.memory import is_out_of_memory
from raytriever.models.precision import autocast
from raytriever.models.retriever import Retriever
from raytriever.training.background import BackgroundJob, all_texts
from raytriever.training.checkpoint import Progression, State, load_best, origin_of, resume
from raytriever.training.checkpoint_writer import CheckpointWriter
from raytriever.training.config import DEV_LOSS, TrainingConfig
from raytriever.training.guide import Guide, MaskingWatch
from raytriever.training.loader import BatchSource, Prefetcher, SourceVersions
from raytriever.training.monitoring import StepReports, StragglerWatch, Throughput
from raytriever.training.parallel.choice import build_strategy
from raytriever.training.parallel.chunk_size import ChunkChoice
from raytriever.training.parallel.grad_cache import Agreement, OutOfMemory
from raytriever.training.parallel.model_state import frozen_digest
from raytriever.training.parallel.objective import Objective, StagedBatch, Stager
from raytriever.training.parallel.strategy import Readout, Stopwatch
from raytriever.training.refresh import RefreshJob, RefreshPlan
from raytriever.training.validation import ValidationJob, ValidationPlan


@dataclass(frozen=True)
class TrainingSetup:
    """Everything that one worker needs to train.

    Args:
        retriever: the encoder, on `device`, the same on every worker.
        total_steps: after which training ends at the latest.
        precision: `fp32` or `bf16`.
        folder: Folder of the checkpoints, seen by every worker.
        on_metrics: called on the first worker with the number of steps done and the metrics of a step or validation.
        report_status: called on every worker with what training does between two steps.
        before_commit: called with a step before its checkpoint is committed; returns when all metrics are stored.
        data_digest: of everything that batches are made of; a run resumes with no other. Empty where it is not known.
        refresh: plan of the refreshes of hard negatives; None for none.
        validation: plan of the validations by retrieval; None for the dev loss alone.
        guide: masks false negatives; None where the settings of the loss name none.
    """

    retriever: Retriever
    train: BatchSource
    dev: BatchSource
    loss: LossConfig
    training: TrainingConfig
    total_steps: int
    precision: str
    device: torch.device
    workers: WorkerGroup
    folder: Path
    on_metrics: Callable[[int, Mapping[str, float]], None]
    log: Callable[[str], None]
    report_status: Callable[[str], None] = lambda text: None
    before_commit: Callable[[int], None] = lambda step: None
    data_digest: str = ""
    refresh: RefreshPlan | None = None
    validation: ValidationPlan | None = None
    guide: Guide | None = None


def train(setup: TrainingSetup) -> Progression:
    """Train until the last step or until early stopping, and load the best weights into the retriever.

    Raises:
        ConfigError: the chunk is larger than a worker's share, or the strategy's package is missing.
        StorageError: a checkpoint cannot be written, or is of another model, other settings or other data.
        TrainingError: the loss or the gradient is not finite.
    """
    trainer = _Trainer(setup)
    writer = CheckpointWriter(
        setup.folder,
        trainer.messages,
        setup.device,
        keep=trainer.settings.keep,
        has_state=any(True for _ in trainer.strategy.state()),
        before_commit=setup.before_commit,
        retained_steps=trainer._retained_steps,
    )
    with writer, ExitStack() as closing:
        for callback in trainer.callbacks:
            callback.wait_for_checkpoint = writer.wait
            closing.callback(callback.close)
        for callback in trainer.callbacks:
            trainer.progression = callback.start(trainer.progression)
        if trainer.callbacks:
            writer.prune(trainer.progression)  # a damaged checkpoint of a later step must not pass for the new one
        first_step = trainer.progression.step
        while steps := trainer._next_steps():
            with Prefetcher(trainer._batch, steps) as batches:
                for batch in batches:
                    trainer._step(batch, batches.waited)
                    if trainer.progression.step == first_step + 1:
                        # Now the optimizer has moments, and no step is being timed.
                        writer.allocate_buffers(trainer.strategy.state())
                    trainer._finish_step(writer)
                    if trainer.progression.stopped:
                        break
        trainer.reports.finish()
        writer.wait()
        for callback in trainer.callbacks:
            trainer.progression = callback.finish(trainer.progression)
        if trainer.callbacks:
            writer.prune(trainer.progression)
    trainer.strategy.release()
    load_best(setup.folder, trainer.objective, trainer.progression, trainer.workers, setup.device)
    return trainer.progression


def with_default_operands(config: LossConfig, precision: str, device: torch.device) -> LossConfig:
    """Return the loss with TF32 products where a GPU encodes in bf16, unless the user chose others.

    On an H100 the products of `mw` take a fifth of the time of float32 ones then, and the gradient changes by 1e-4 of
    its largest component. Embeddings that were computed in bf16 differ by more.
    """
    has_products = not set(SCORE_LOSSES).isdisjoint(config.terms)
    if config.loss_precision or precision != "bf16" or device.type != "cuda" or not has_products:
        return config
    return replace(config, loss_precision="tf32")


class _Trainer:
    """Training of one worker, from the newest checkpoint on."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup, self.settings, self.workers = setup, setup.training, setup.workers
        self.both_ways = setup.loss.both_ways
        settings = self.settings
        torch.manual_seed(settings.seed)
        config = with_default_operands(setup.loss, setup.precision, setup.device)
        loss = build_loss(config, setup.retriever.description.similarity == "cosine").to(setup.device)
        set_dropout(setup.retriever, settings.dropout)
        towers = (setup.retriever.query.backbone, setup.retriever.passage.backbone)
        with autocast(setup.precision, setup.device):
            for backbone in towers:
                check_precision(backbone, setup.precision)
        setup.retriever.choose_packing(setup.precision)
        setup.retriever.train()
        texts = 1 + setup.train.positives_per_query + setup.train.negatives_per_query
        self.chunk_choice = ChunkChoice(settings, setup.retriever, setup.precision, setup.device, self.workers)
        chunk = self.chunk_choice.first(settings.batch_size // self.workers.size * texts)
        self.messages = host_workers(self.workers)
        encode, tokens = (setup.guide.encode, setup.guide.tokens_at_once) if setup.guide else (None, None)
        agreement = Agreement(self.messages)
        self.objective = Objective(setup.retriever, loss, setup.precision, chunk, agreement, encode, tokens)
        self.throughput = Throughput(*towers, setup.precision, setup.device, self.workers)
        optimizer = build_optimizer(self.objective, settings.learning_rate, settings.weight_decay)
        frozen = frozen_digest(self.objective)
        self.stopwatch = Stopwatch(loss, optimizer, setup.device)
        self.straggler_watch = StragglerWatch(all_texts(socket.gethostname(), self.messages), self._log)
        self.straggler_metrics = dict[str, float]()
        self.masking_watch = MaskingWatch(self._log)
        self.stager = Stager(self.objective, self.throughput.count, setup.device)
        reads_late = setup.device.type == "cuda"
        self.reports = StepReports(self.throughput, settings.batch_size, self._report, reads_late)
        self.strategy = build_strategy(
            settings.strategy,
            self.objective,
            optimizer,
            self.workers,
            setup.device,
            settings.max_grad_norm,
            settings.offload_optimizer,
        )
        self.sources = SourceVersions(setup.train)
        self.callbacks = self._build_callbacks()
        self.is_dev_loss_deciding = settings.best_metric == DEV_LOSS or setup.validation is None
        self.origin = origin_of(setup.loss, settings, setup.total_steps, setup.data_digest)
        if frozen:
            self.origin["frozen weights"] = frozen
        if setup.guide:
            self.origin["guide"] = setup.guide.digest
        if setup.validation:
            self.origin["dev data"] = setup.validation.digest
        self.progression = resume(setup.folder, self.strategy, self.workers, setup.device, self.origin, setup.log)
        self.saved_step, self.saved_at = self.progression.step, time.monotonic()
        self.must_save, self.save_seconds = False, 0.0

    def _build_callbacks(self) -> list[BackgroundJob]:
        setup, callbacks = self.setup, list[BackgroundJob]()
        if setup.validation:
            callbacks.append(
                ValidationJob(
                    plan=setup.validation,
                    settings=self.settings,
                    total_steps=setup.total_steps,
                    checkpoints=setup.folder,
                    workers=self.messages,
                    log=setup.log,
                    report_status=setup.report_status,
                )
            )
        if setup.refresh:
            callbacks.append(
                RefreshJob(
                    plan=setup.refresh,
                    sources=self.sources,
                    total_steps=setup.total_steps,
                    checkpoints=setup.folder,
                    workers=self.messages,
                    log=setup.log,
                    report_status=setup.report_status,
                )
            )
        return callbacks

    def _retained_steps(self) -> frozenset[int]:
        return frozenset[int]().union(*(callback.retained_steps for callback in self.callbacks))

    def _next_steps(self) -> range:
        """Return the steps whose batches may be prepared now; none where training is over."""
        step, end = self.progression.step, self.setup.total_steps
        if self.progression.stopped:
            return range(0)
        return range(step, min([end, *(callback.prefetch_limit(step, end) for callback in self.callbacks)]))

    def _batch(self, step: int) -> StagedBatch:
        """Return the batch of a step; called in the loader's thread."""
        source = self.sources.at(step)
        return self.stager.stage(source.batch(step, self.setup.retriever, self.workers, self.both_ways))

    def _step(self, staged: StagedBatch, wait_seconds: float) -> None:
        """Do a step, again with smaller chunks as long as memory runs out on any worker."""
        setup, settings, step = self.setup, self.settings, self.progression.step
        began = time.perf_counter()
        for callback in self.callbacks:
            callback.before_batch(step, staged.batch)
        rate = settings.learning_rate * learning_rate_scale(step, settings.warmup_steps, setup.total_steps)
        setup.retriever.train()
        update = None
        while update is None:
            # Dropout of a step is a function of (seed, step, worker), so a resumed run repeats it.
            seed = np.random.SeedSequence((settings.seed, step, self.workers.rank)).generate_state(1)[0]
            torch.manual_seed(int(seed))
            self.stopwatch.start()
            try:
                update = self.strategy.step(self.stager.receive(staged), rate, step)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                # Not the error: its traceback would keep the tensors of the step.
                reason, is_agreed = first_line(error), self.workers.size == 1 or isinstance(error, OutOfMemory)
            if update is None:
                self._shrink_chunk(staged, reason, is_agreed)
        phases = self.stopwatch.stop()
        others = {
            "learning_rate": rate,
            "data_wait_seconds": wait_seconds,
            "checkpoint_seconds": self.save_seconds,
            **self.straggler_metrics,
        }
        for callback in self.callbacks:
            others |= callback.metrics(step)
        self.reports.add(step, update, staged.work, phases, began - wait_seconds, others)
        self.save_seconds = 0.0
        self.progression = replace(self.progression, step=step + 1)

    def _shrink_chunk(self, staged: StagedBatch, reason: str, is_agreed: bool) -> None:
        """Make the chunk smaller after a step that ran out of memory, to repeat it.

        Raises:
            OutOfMemory: the others wait for this worker, or none can repeat the step. The error ends them, and Ray
                Train restarts the group.
        """
        step = self.progression.step
        is_agreed &= self.strategy.abandon()
        parts = [*staged.batch.queries.buckets, *staged.batch.passages.buckets]
        chunk = self.chunk_choice.smaller(self.objective.chunk, parts, is_agreed)
        if not is_agreed:
            where = f"Step {step} ran out of memory on worker {self.workers.rank} ({reason})"
            self.setup.log(f"{where}; restarting all workers, to encode {chunk or 'the whole batch'} at a time.")
            raise OutOfMemory(where)
        self.objective.chunk = chunk
        self._log(f"Step {step} ran out of memory ({reason}); encoding {chunk} at a time from now on.")

    def _finish_step(self, writer: CheckpointWriter) -> None:
        """Validate, save and call the callbacks, as far as each is due after a step."""
        dev_metrics = self._validate_if_due()
        if dev_metrics is not None:
            # Before the checkpoint: a metric that is reported twice can be ignored, one that is missing cannot.
            self._report(self.progression.step, dev_metrics)
        self._save_if_due(writer, has_validated=dev_metrics is not None)
        for callback in self.callbacks:
            if self.progression.stopped:
                return
            self.progression = callback.after_step(self.progression)
            if self.progression.stopped:
                self._save_if_due(writer, has_validated=False)

    def _validate_if_due(self) -> dict[str, float] | None:
        """Return dev loss and dev AUC, comparable between losses, at a validation step; None at other steps."""
        step = self.progression.step
        if step % self.settings.eval_steps and step != self.setup.total_steps:
            return None
        self.reports.finish()
        self.setup.report_status(f"computing the dev loss of step {step}")
        self.setup.retriever.eval()
        losses, areas = [], []
        for number in range(self.settings.dev_batches):
            batch = self.setup.dev.batch(number, self.setup.retriever, self.workers, self.both_ways)
            output = self.strategy.measure(self.stager.receive(self.stager.stage(batch)))
            numbers = Readout({"loss": output.value, "auc": output.statistics["batch_auc"]}).read()
            losses.append(numbers["loss"])
            areas.append(numbers["auc"])
        dev_loss = sum(losses) / len(losses)
        if self.is_dev_loss_deciding:
            settings = self.settings
            self.progression = self.progression.after_validation(step, dev_loss, settings.patience, settings.min_delta)
        return {"dev_loss": dev_loss, "dev_batch_auc": sum(areas) / len(areas)}

    def _save_if_due(self, writer: CheckpointWriter, has_validated: bool) -> None:
        """Save the state. The best and the last state are saved at once, after the checkpoint that is being written;
        any other is saved when no checkpoint is being written. The seconds are reported with the next step."""
        began, settings, progression = time.monotonic(), self.settings, self.progression
        status = writer.status(began - self.saved_at > 60 * settings.checkpoint_minutes, self.reports.own_seconds)
        self.straggler_metrics = self.straggler_watch.update(status.seconds)
        if settings.checkpoint_steps is None:
            self.must_save |= has_validated
        else:
            self.must_save |= progression.step - self.saved_step >= settings.checkpoint_steps
        self.must_save |= status.is_due
        must_save_now = (
            progression.best_step == progression.step
            or progression.stopped
            or progression.step == self.setup.total_steps
            or any(callback.needs_checkpoint(progression.step) for callback in self.callbacks)
        )
        if must_save_now or (self.must_save and not status.is_writing):
            self.reports.finish()
            writer.save(self.strategy.state(), State(progression, self.origin, settings.best_metric))
            self.saved_step, self.saved_at, self.must_save = progression.step, time.monotonic(), False
            self.save_seconds = self.saved_at - began

    def _log(self, line: str) -> None:
        if self.workers.rank == 0:
            self.setup.log(line)

    def _report(self, step: int, metrics: Mapping[str, float]) -> None:
        self.masking_watch.update(step, metrics)
        if self.workers.rank == 0:
            self.setup.on_metrics(step, metrics)


def build_optimizer(module: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov & Hutter, 2019) over the trainable parameters, with weight decay on matrices only."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, fused=True)


def learning_rate_scale(step: int, warmup_steps: int, total_steps: int) -> float:
    """Return the factor, 0 to 1, on the peak learning rate at `step`, counted from 0: linear warm-up, then linear decay
    to zero at `total_steps`."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
