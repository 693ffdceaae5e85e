"""Evaluate checkpoints during training: one evaluation in one process, and the Ray actor that runs them.

`Validations` needs no Ray. The actor uses a GPU where one is free, and otherwise shares the processors with training at
a lower priority. Killed, it starts again, possibly on another node, and repeats its checkpoint; killed too often over
one checkpoint, it reports none for that one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray
import torch

from raytriever.cluster.event_queue import EventQueue, ValidationEvent
from raytriever.cluster.gauges import Gauges, run_label
from raytriever.cluster.session import DriverContext
from raytriever.cluster.train.dev_sets import DEV, DevSet, dev_protocol, digest_of
from raytriever.config import Config
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import UserError
from raytriever.evaluation.corpus_sample import sample_corpus
from raytriever.evaluation.evaluate import evaluate_embeddings
from raytriever.evaluation.protocol import read_best_metric
from raytriever.losses.engine.workers import Workers
from raytriever.mining.bm25 import Bm25Index
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.writer import write_model
from raytriever.storage import read_manifest
from raytriever.training.checkpoint import WEIGHTS, read_slices
from raytriever.training.config import DEV_LOSS
from raytriever.training.parallel.model_state import load_snapshot, whole_tensors
from raytriever.training.validation.records import FOLDER, Answer, Record, ValidationPlan, read_record, write_record

# How the objective, which is what checkpoints hold, calls the retriever.
_RETRIEVER = "retriever."


class Validations:
    """All evaluations of a run, by one process.

    Args:
        config: the experiment.
        sets: what is evaluated on.
        folder: where records stand.
    """

    def __init__(self, config: Config, sets: Sequence[DevSet], folder: Path) -> None:
        self._config, self._sets, self._folder = config, sets, folder
        self._protocol = dev_protocol(config.training.best_metric)

    def run(self, step: int, checkpoint: Path) -> Record:
        """Evaluate a checkpoint and write the record; one that is written is not made again.

        Args:
            step: of the checkpoint.
            checkpoint: committed.

        Raises:
            UserError: the checkpoint is damaged, the disk is full, or an embedding is not finite.
        """
        if (known := read_record(self._folder, step)) is not None:
            return known
        began = time.monotonic()
        retriever = self._load(checkpoint)
        rows = {one.name: self._measure(retriever, one, *self._datasets[one.name]) for one in self._sets}
        metrics = {name: float(np.mean([row[name] for row in rows.values()])) for name in self._protocol.metrics}
        measured = {f"{DEV}{name}": value for name, value in metrics.items()}
        if len(rows) > 1:
            measured |= {f"{DEV}{one}/{name}": value for one, row in rows.items() for name, value in row.items()}
        measured = {name: value for name, value in measured.items() if value == value}  # no AUC without negatives
        best = self._config.training.best_metric
        value = float("nan") if best == DEV_LOSS else metrics[read_best_metric(best)]
        record = Record(step, value, {**measured, "evaluation_seconds": time.monotonic() - began})
        write_record(self._folder, record)
        return record

    @cached_property
    def _datasets(self) -> dict[str, tuple[RetrievalDataset, str]]:
        """Each data set with its split, its corpus cut down where that is asked for."""
        most, seed = self._config.validation.eval_corpus, self._config.training.seed
        found = {}
        for one in self._sets:
            dataset = open_dataset(one.place, [one.split])
            if most is not None:
                dataset = sample_corpus(dataset, one.split, most, seed, lambda all: Bm25Index(all.passages()))
            found[one.name] = (dataset, one.split)
        return found

    def _measure(self, retriever: Retriever, one: DevSet, dataset: RetrievalDataset, split: str) -> dict[str, float]:
        positions = dataset.relevant_queries(split)
        queries = encode_texts(retriever, [dataset.queries.texts[int(query)] for query in positions], "query", one.name)
        documents = encode_texts(retriever, dataset.passages(), "passage", one.name)
        return evaluate_embeddings(dataset, split, queries, documents, self._protocol).metrics

    def _load(self, checkpoint: Path) -> Retriever:
        """The encoder of a checkpoint as it would be loaded from `model/`: the same embeddings, to the bit."""
        config = self._config
        read_manifest(checkpoint)
        trained = load_retriever(config.model)
        prepare_for_training(trained, config.model, config.training.seed)
        weights = {
            name.removeprefix(_RETRIEVER): values.float().numpy()
            for name, values in whole_tensors(read_slices(checkpoint, WEIGHTS))
            if name.startswith(_RETRIEVER)
        }
        load_snapshot(trained, weights)
        self._folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self._folder, prefix=".model-") as written:
            write_model(trained.eval(), Path(written))
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            precision = choose_precision(config.training.precision, device)
            return load_for_encoding(ModelConfig(model=written), precision, device)


# An evaluator that was killed does its checkpoint again so often before there is no verdict.
TRIES = 3
# Below that of training where both want the same cores; while training waits they are its own.
NICENESS = 10


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=TRIES)
class CheckpointEvaluator:
    """Does one evaluation after another."""

    def __init__(self, config: Config, sets: Sequence[DevSet], folder: str, workplace: DriverContext) -> None:
        workplace.enter()
        with suppress(OSError):
            os.nice(NICENESS)
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # Ray leaves a process one
        for left in Path(folder).glob(".model-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._validations = Validations(config, sets, Path(folder))

    def evaluate(self, step: int, checkpoint: str) -> Answer:
        """One checkpoint."""
        try:
            return Answer(self._validations.run(step, Path(checkpoint)))
        except UserError as error:
            return Answer(reason=str(error))


class RayEvaluator:
    """A `validation_plan.Evaluator` that hands checkpoints to the actor.

    Args:
        actor: who evaluates.
        gauges: of the run; those who watch for steps are to know that these may wait.
    """

    def __init__(self, actor: Any, gauges: Gauges) -> None:
        self._actor, self._gauges = actor, gauges
        self._answer: Any = None

    def begin(self, step: int, checkpoint: Path) -> None:
        """See `Evaluator`."""
        self._tell(True)
        self._answer = self._actor.evaluate.remote(step, str(checkpoint))

    def answer(self) -> Answer | None:
        """See `Evaluator`."""
        if not ray.wait([self._answer], timeout=0)[0]:
            return None
        self._tell(False)
        try:
            found: Answer = ray.get(self._answer)
        except ray.exceptions.RayError as error:  # a defect, or it died too often
            return Answer(reason=str(error).strip().splitlines()[-1])
        return found

    def _tell(self, evaluates: bool) -> None:
        self._gauges.set("evaluation_running", evaluates, "1 while a checkpoint is evaluated, else 0")


@contextmanager
def validating(config: Config, sets: Sequence[DevSet], folder: Path, say: Callable[[str], None]) -> Iterator[Any]:
    """An evaluator for the length of a run, on the driver; None where nothing is evaluated.

    Args:
        config: the experiment.
        sets: what is evaluated on.
        folder: the run directory.
        say: hears where it has its place, when that is not one of its own.
    """
    if not sets:
        yield None
        return
    there = ray.cluster_resources()
    free = ray.available_resources() or there  # of a session that has just begun nothing may be known yet
    workers = config.training.workers[1]
    # Of those nobody holds now: an actor that asks for what another job has would wait for it in silence.
    gpus = 1.0 if free.get("GPU", 0) > workers + _gpus_of_refresh(config) else 0.0
    if not gpus and there.get("GPU", 0):
        say(f"checkpoints are evaluated on a processor: no GPU is left beside {workers} workers")
    elif not gpus and len([node for node in ray.nodes() if node["Alive"]]) == 1:
        say("checkpoints are evaluated on the cores that train, at a lower priority: steps are slower meanwhile")
    evaluator = CheckpointEvaluator.options(num_gpus=gpus, scheduling_strategy="SPREAD")  # type: ignore[attr-defined]
    actor = evaluator.remote(config, tuple(sets), str(folder.resolve() / FOLDER), DriverContext())
    try:
        yield actor
    finally:
        ray.kill(actor)


def validation_plan(
    job: Mapping[str, Any], config: Config, folder: Path, workers: Workers, device: torch.device, queue: EventQueue
) -> ValidationPlan | None:
    """A worker's plan; every worker makes the call.

    Args:
        job: of `train_on_cluster`: its `evaluator`, its `dev_sets`, its `queue`, and what earlier calls `told` of.
        config: the experiment.
        folder: the run directory.
        workers, device: the group, and where its collectives take their tensors.
        queue: of this worker.
    """
    if not job["dev_sets"]:
        return None
    told = max(job["told"], queue.last_step())
    told = int(workers.maximum(torch.tensor(told, device=device)))
    return ValidationPlan(
        folder / FOLDER,
        config.validation.eval_behind,
        RayEvaluator(job["evaluator"], Gauges(run_label(folder))) if workers.rank == 0 else None,
        lambda step, metrics: queue.send(ValidationEvent(step, dict(metrics))),
        told,
        digest_of(job["dev_sets"], config),
    )


def _gpus_of_refresh(config: Config) -> int:
    return 0 if config.refresh.refresh_every is None else config.refresh.pool[1]
