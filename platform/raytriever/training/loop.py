"""The training loop of one worker.

1. Step t draws its batch from (data, seed, t), encodes it, reduces the global score matrix, and updates.
2. Every `eval_steps` the dev loss is looked at, and where that is asked for the checkpoint is evaluated by somebody
   else; after `patience` looks that are no better training stops.
3. The whole state is saved at looks, after so many minutes, and in the end, written while the steps go on.
4. Hard negatives may be mined anew on the way; the batch of a step draws from one table, the same on all workers.
5. In the end the best state is put back. Interrupted anywhere, the same call goes on from the newest checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from raytriever.losses.config import LossConfig
from raytriever.losses.engine.workers import Workers
from raytriever.losses.registry import build_loss
from raytriever.models.encoder import set_dropout
from raytriever.models.prepare import train_on_cpu
from raytriever.models.retriever import Retriever
from raytriever.training.batches import Batch, BatchSource, Prefetcher
from raytriever.training.checkpoint import Progression, State
from raytriever.training.checkpoint_writer import Saver
from raytriever.training.config import TrainingConfig
from raytriever.training.monitoring.step_timing import Stopwatch, StragglerWatch, host_names
from raytriever.training.monitoring.throughput import Throughput
from raytriever.training.optimizer import build_optimizer, learning_rate_scale
from raytriever.training.parallel.chunk_size import chunk_of
from raytriever.training.parallel.model_state import Snapshot, take_snapshot
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategy import Update, build_strategy
from raytriever.training.refresh.plan import RefreshPlan
from raytriever.training.refresh.refresher import Refresher
from raytriever.training.resume import leave_best, origin_of, resume
from raytriever.training.validation.records import ValidationPlan
from raytriever.training.validation.validator import Validator

# Called on the first worker with the number of steps done and what was measured there.
Listener = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Assignment:
    """What one worker trains, and on what.

    Args:
        retriever: the encoder, on `device`, the same on every worker.
        train: batches to learn from.
        dev: batches whose loss decides when to stop.
        loss: settings of the loss.
        training: settings of the loop.
        total_steps: after which training ends at the latest.
        precision: `fp32` or `bf16`.
        device: of this worker.
        workers: the data-parallel group.
        folder: where checkpoints lie, seen by every worker.
        listener: hears every step and every look.
        notice: hears what a person should know.
        heard: called with a step before its checkpoint is committed; comes back when all that was told is kept.
        data_digest: of all that batches are made of; a run goes on with no other. Empty where it is not known.
        refresh: how hard negatives are mined anew; None where they stay.
        validation: how checkpoints are evaluated; None where the dev loss is all that is looked at.
    """

    retriever: Retriever
    train: BatchSource
    dev: BatchSource
    loss: LossConfig
    training: TrainingConfig
    total_steps: int
    precision: str
    device: torch.device
    workers: Workers
    folder: Path
    listener: Listener
    notice: Callable[[str], None]
    heard: Callable[[int], None] = lambda step: None
    data_digest: str = ""
    refresh: RefreshPlan | None = None
    validation: ValidationPlan | None = None


def train(work: Assignment) -> Progression:
    """Train until the last step or until what decides stops improving; leaves the best weights in the retriever.

    Raises:
        ConfigError: the chunk is larger than a worker's share, or the strategy's package is missing.
        StorageError: a checkpoint cannot be written, or is of another model, other settings or other data.
        TrainingError: the loss or the gradient is not finite.
    """
    return _Training(work).run()


class _Training:
    """One worker's part of a run, from its newest checkpoint on."""

    def __init__(self, work: Assignment) -> None:
        self.work, self.settings, self.workers = work, work.training, work.workers
        settings = self.settings
        torch.manual_seed(settings.seed)
        loss = build_loss(work.loss, work.retriever.description.similarity == "cosine").to(work.device)
        set_dropout(work.retriever, settings.dropout)
        if work.device.type == "cpu":
            train_on_cpu(work.retriever)
        work.retriever.train()
        texts = 1 + work.train.positives_per_query + work.train.negatives_per_query
        chunk = chunk_of(
            settings,
            settings.batch_size // self.workers.size * texts,
            work.retriever,
            work.precision,
            work.device,
            self.workers,
        )
        self.objective = Objective(work.retriever, loss, work.precision, chunk)
        towers = (work.retriever.query.backbone, work.retriever.passage.backbone)
        self.throughput = Throughput(*towers, work.precision, work.device, self.workers)
        optimizer = build_optimizer(self.objective, settings.learning_rate, settings.weight_decay)
        self.stopwatch = Stopwatch(loss, optimizer, work.device)
        self.watch = StragglerWatch(host_names(self.workers, work.device), self._say)
        self.own, self.compared = 0.0, dict[str, float]()
        self.strategy = build_strategy(
            settings.strategy,
            self.objective,
            optimizer,
            self.workers,
            work.device,
            settings.max_grad_norm,
            settings.offload_optimizer,
        )
        self.refresher = self._refresher(work.refresh) if work.refresh else None
        self.validator = self._validator(work.validation) if work.validation else None
        self.origin = origin_of(work.loss, settings, work.total_steps, work.data_digest)
        if work.validation:
            self.origin["dev data"] = work.validation.digest
        self.progression = resume(
            work.folder, self.objective, self.strategy, self.workers, work.device, self.origin, work.notice
        )
        self.saved, self.saved_at, self.wanted, self.blocked = self.progression.step, time.monotonic(), False, 0.0

    def run(self) -> Progression:
        """All steps that are left."""
        work = self.work
        writes = any(True for _ in self.strategy.state())
        saver = Saver(work.folder, self.workers, work.device, self.settings.keep, writes, work.heard, self._retained)
        with saver, closing(self.refresher) if self.refresher else nullcontext():
            if self.validator:
                self.validator.start(self.progression.step)
                self._judge(self.validator)
                saver.tidy(self.progression)  # a broken checkpoint of a later step must not be taken for the new one
            first = work.total_steps if self.progression.stopped else self.progression.step
            if self.refresher and first < work.total_steps:
                self.refresher.start(first)
            while steps := self._stretch():
                with Prefetcher(self._batch, steps) as batches:
                    for batch in batches:
                        self._step(batch, batches.waited)
                        if self.progression.step == first + 1:
                            saver.make_room(self.strategy.state())  # now there are moments
                        looked = self._look_if_due()
                        if looked is not None:
                            # Before it is saved: what is told twice can be told apart, what is never told is lost.
                            self._tell(looked)
                        self._save_if_due(saver, looked is not None)
                        self._validate(saver)
                        if self.progression.stopped:
                            break
                        if self.refresher and self.progression.step < work.total_steps:
                            self.refresher.after(self.progression.step)
            saver.settle()
            if self.validator:
                self.validator.finish(self.progression.step)
                self._judge(self.validator)
                saver.tidy(self.progression)
        leave_best(work.folder, self.objective, self.progression, self.workers, work.device)
        return self.progression

    def _refresher(self, plan: RefreshPlan) -> Refresher:
        work = self.work

        def snapshot() -> Snapshot:
            return take_snapshot(work.retriever, self.workers)

        return Refresher(plan, work.train, self.workers, work.device, snapshot, work.notice)

    def _validator(self, plan: ValidationPlan) -> Validator:
        work = self.work
        return Validator(plan, self.settings, work.total_steps, work.folder, self.workers, work.device, work.notice)

    def _retained(self) -> frozenset[int]:
        return self.validator.retained if self.validator else frozenset()

    def _validate(self, saver: Saver) -> None:
        """Hear of evaluations; where one of them ends training, that is saved."""
        if self.validator is None or self.progression.stopped:
            return
        self.validator.after(self.progression.step)
        if self._judge(self.validator):
            self._save_if_due(saver, looked=False)

    def _judge(self, validator: Validator) -> bool:
        """Take over what evaluations say, where they decide; whether training has ended early."""
        if validator.decides:
            verdict, step = validator.verdict, self.progression.step
            stopped = self.progression.stopped or validator.stops(step)
            self.progression = Progression(
                step, verdict.best_step, looks_without=verdict.looks_without, stopped=stopped
            )
        return self.progression.stopped

    def _stretch(self) -> range:
        """The steps whose batches may be made now; none where training is over."""
        step, end = self.progression.step, self.work.total_steps
        if self.progression.stopped:
            return range(0)
        until = self.refresher.until(step) if self.refresher else None
        return range(step, end if until is None else min(end, until))

    def _batch(self, step: int) -> Batch:
        source = self.refresher.source(step) if self.refresher else self.work.train
        return source.batch(step, self.work.retriever, self.workers)

    def _step(self, batch: Batch, waited: float) -> None:
        work, settings, step = self.work, self.settings, self.progression.step
        began = time.perf_counter()
        if self.refresher and batch.version != self.refresher.version(step):
            raise RuntimeError(f"step {step} drew from negatives {batch.version}, not {self.refresher.version(step)}")
        # Dropout of a step follows from (seed, step, worker), so a continued run repeats it.
        torch.manual_seed(int(np.random.SeedSequence((settings.seed, step, self.workers.rank)).generate_state(1)[0]))
        rate = settings.learning_rate * learning_rate_scale(step, settings.warmup_steps, work.total_steps)
        work.retriever.train()
        counted = self.throughput.count(batch)
        self.stopwatch.start()
        update = self.strategy.step(batch.to(work.device), rate, step)
        phases = self.stopwatch.stop()
        seconds = waited + time.perf_counter() - began
        self.own = waited + phases.get("encode_seconds", 0.0)
        self.progression = replace(self.progression, step=step + 1)
        self._tell(
            {
                "loss": update.output.value.item(),
                "learning_rate": rate,
                "step_seconds": seconds,
                "data_wait_seconds": waited,
                **phases,
                "checkpoint_seconds": self.blocked,
                **self.throughput.told(counted, settings.batch_size, seconds),
                **_statistics(update),
                **self.compared,
                **(self.refresher.told(step) if self.refresher else {}),
                **(self.validator.told() if self.validator else {}),
            }
        )
        self.blocked = 0.0

    def _look_if_due(self) -> dict[str, float] | None:
        """The dev loss, and the dev batches' AUC, which losses of any scale have in common, where it is time to look at
        them; every worker decides alike."""
        step = self.progression.step
        if step % self.settings.eval_steps and step != self.work.total_steps:
            return None
        self.work.retriever.eval()
        losses, areas = [], []
        for number in range(self.settings.dev_batches):
            batch = self.work.dev.batch(number, self.work.retriever, self.workers).to(self.work.device)
            output = self.strategy.measure(batch)
            losses.append(output.value.item())
            areas.append(float(output.statistics["batch_auc"]))
        dev_loss = sum(losses) / len(losses)
        if self.validator is None or not self.validator.decides:
            self.progression = self.progression.looked(step, dev_loss, self.settings.patience, self.settings.min_delta)
        return {"dev_loss": dev_loss, "dev_batch_auc": sum(areas) / len(areas)}

    def _save_if_due(self, saver: Saver, looked: bool) -> None:
        """Save what is best or last at once, after the checkpoint that is being written; put off any other till then.

        The seconds it took are told with the next step.
        """
        began, settings, progression = time.monotonic(), self.settings, self.progression
        standing = saver.standing(began - self.saved_at > 60 * settings.checkpoint_minutes, self.own)
        self.compared = self.watch.look(standing.seconds)
        if settings.checkpoint_steps is None:
            self.wanted |= looked
        else:
            self.wanted |= progression.step - self.saved >= settings.checkpoint_steps
        self.wanted |= standing.due
        at_once = (
            progression.best_step == progression.step
            or progression.stopped
            or progression.step == self.work.total_steps
            or (self.validator is not None and self.validator.is_due(progression.step))
        )
        if at_once or (self.wanted and not standing.writing):
            saver.save(self.strategy.state(), State(progression, self.origin, self.settings.best_metric))
            self.saved, self.saved_at, self.wanted = progression.step, time.monotonic(), False
            self.blocked = self.saved_at - began

    def _say(self, text: str) -> None:
        if self.workers.rank == 0:
            self.work.notice(text)

    def _tell(self, measured: Mapping[str, float]) -> None:
        if self.workers.rank == 0:
            self.work.listener(self.progression.step, measured)


def _statistics(update: Update) -> dict[str, float]:
    return {
        "gradient_norm": update.norm,
        **{name: float(value) for name, value in update.output.statistics.items()},
    }
