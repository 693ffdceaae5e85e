"""Run one trial of a sweep in a Ray Tune process: train like any run, then evaluate on the dev split.

A trial of one worker trains in the process of the trial, which Tune keeps warm for later trials. A trial of several
workers holds no processor itself: its workers are a Ray Train group whose resources are reserved all at once or not at
all, so that concurrent trials cannot each hold half of what they need."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from raytriever.cluster.event_queue import Evaluated, News, Saving, StepNews
from raytriever.cluster.session import Workplace, gpus
from raytriever.cluster.train.dev_sets import DevSet
from raytriever.cluster.train.trainer import train_on_cluster
from raytriever.config import Config
from raytriever.data.negatives import NegativesTable
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import UserError
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.systems import DenseSystem
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.tracking.steps import curve

# What a trial reports to Tune in the end: how it ended, its figures, or why it failed.
ENDED, METRICS, REASON, STEP = "ended", "metrics", "reason", "step"
_REFS_KEPT = 256


@dataclass(frozen=True)
class TrialJob:
    """What a trial is given.

    Args:
        number: of the trial.
        config: all its settings.
        places: where its data sets stand prepared.
        dev_sets: what its checkpoints are evaluated on, where they are.
        negatives: which of the sweep's negatives tables it draws from.
        total_steps: after which it ends at the latest.
        folder: its run directory.
    """

    number: int
    config: Config
    places: tuple[str, ...]
    dev_sets: tuple[DevSet, ...]
    negatives: str
    total_steps: int
    folder: str


@dataclass(frozen=True)
class TrialNews:
    """News of a trial, on their way to the driver; None behind the last of them."""

    number: int
    item: News | None


@dataclass(frozen=True)
class Circumstances:
    """What all trials of a sweep share.

    Args:
        mailbox: of the driver.
        workplace: of the driver.
        beside: trials that share a node's cores.
        reported: what Tune hears of at every look; nothing where no trial is stopped early.
        metrics: whether the whole corpus is searched in the end, or the dev loss suffices.
    """

    mailbox: Any
    workplace: Workplace
    beside: int
    reported: str | None
    searches: bool


def run_trial(config: Mapping[str, Any], tables: Mapping[str, NegativesTable | None], around: Circumstances) -> None:
    """Train, measure, and report how it ended; what Tune stops ends by `SystemExit` within.

    Args:
        config: `{"job": TrialJob}`.
        tables: negatives tables by name.
        around: see `Circumstances`.
    """
    job: TrialJob = config["job"]
    around.workplace.enter()
    folder = Path(job.folder)
    told = max((step for step, _ in curve(folder, "loss")), default=0)
    voice = _Voice(job.number, around)
    end: dict[str, Any]
    try:
        train_on_cluster(
            job.config,
            job.places,
            tables[job.negatives],
            job.total_steps,
            folder,
            voice.hear,
            told,
            job.dev_sets,
            here=job.config.training.workers[1] == 1,
            beside=around.beside,
        )
        end = {ENDED: True, METRICS: _measured(job) if around.searches else {}}
    except UserError as mistake:
        end = {ENDED: False, REASON: str(mistake)}
    except Exception as error:  # a defect, which is not to end the other trials
        (folder / "error.txt").write_text(traceback.format_exc())
        first = str(error).strip().split("\n")[0]
        end = {ENDED: False, REASON: f"{type(error).__name__}: {first} (see {folder / 'error.txt'})"}
    voice.close()
    tune.report(end)


class _Voice:
    """Sends a trial's news to the driver, and tells Tune at every look."""

    def __init__(self, number: int, around: Circumstances) -> None:
        self._number, self._mailbox, self._reported = number, around.mailbox, around.reported
        self._refs: list[Any] = []

    def hear(self, item: News) -> None:
        """Pass an item on; comes back after a checkpoint's or a look's when the driver has kept all till then."""
        news = TrialNews(self._number, item)
        look = self._look(item)
        if look or isinstance(item, Saving):
            self.settle()
            ray.get(self._mailbox.settle.remote(news))
        else:
            self._refs.append(self._mailbox.send.remote(news))
        if len(self._refs) > _REFS_KEPT:
            done, self._refs = ray.wait(self._refs, num_returns=len(self._refs), timeout=0)
            ray.get(done)
        if look:
            # Where Tune stops the trial this raises SystemExit, which ends the training that told of the look.
            tune.report(look)

    def _look(self, item: News) -> dict[str, float] | None:
        """What Tune hears of a look."""
        if self._reported is None or not isinstance(item, StepNews | Evaluated) or self._reported not in item.measured:
            return None
        return {STEP: item.step, self._reported: item.measured[self._reported]}

    def settle(self) -> None:
        """Come back when all that was sent has arrived."""
        refs, self._refs = self._refs, []
        ray.get(refs)

    def close(self) -> None:
        """Come back when the driver has heard all."""
        self.settle()
        ray.get(self._mailbox.settle.remote(TrialNews(self._number, None)))


def _measured(job: TrialJob) -> dict[str, float]:
    """The dev split's figures, by a process that holds what it takes."""
    if job.config.training.workers[1] == 1:
        return measure_on_dev(job)
    # The workers' places are free again; those of the trial, to which its tasks are bound by default, hold nothing.
    task = ray.remote(num_cpus=1, num_gpus=min(1, gpus()), scheduling_strategy="DEFAULT")(measure_on_dev)
    found: dict[str, float] = ray.get(task.remote(job, Workplace()))
    return found


def measure_on_dev(job: TrialJob, workplace: Workplace | None = None) -> dict[str, float]:
    """The metrics of a trial's model on the dev split of its first data set, the whole corpus searched."""
    if workplace is not None:
        workplace.enter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = open_dataset(job.places[0], [job.config.data.dev_split])
    model = ModelConfig(model=str(Path(job.folder) / "model"))
    retriever = load_for_encoding(model, choose_precision(job.config.training.precision, device), device)
    found = DenseSystem(dataset, model, retriever).evaluate(job.config.data.dev_split, Protocol())
    return {name: float(value) for name, value in found.metrics.items()}
