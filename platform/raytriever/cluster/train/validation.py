"""Validation of checkpoints on the cluster: the evaluation of one checkpoint, and the actor that runs it.

`Validations` needs no Ray. The actor uses a GPU where one is free. Where training uses all GPUs, there is no actor: see
`clients`. Without GPUs it shares the CPU cores with training, at a lower priority. A killed actor restarts, possibly
on another node, and repeats its checkpoint. If it is killed too often, the validation of that checkpoint fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray
import torch

from raytriever.cluster.placement import SPREAD, count_gpus, spare_gpus
from raytriever.cluster.session import DriverContext, result_or_error
from raytriever.cluster.train.dev_sets import DEV, DevSet, dev_protocol
from raytriever.config import Config
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.encode import encode_queries, encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import UserError
from raytriever.evaluation.datasets import sample_corpus
from raytriever.evaluation.protocol import read_best_metric
from raytriever.evaluation.systems import evaluate_embeddings
from raytriever.machine import usable_cores
from raytriever.mining.bm25 import Bm25Index
from raytriever.models.config import ModelConfig
from raytriever.models.precision import base_type, choose_precision, default_device
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.writer import write_model
from raytriever.store.commit import remove
from raytriever.training.checkpoint import WEIGHTS, check_checkpoint, read_slices
from raytriever.training.config import DEV_LOSS
from raytriever.training.parallel.model_state import load_snapshot, whole_tensors
from raytriever.training.validation import FOLDER, Record, read_record, write_record

_RETRIEVER = "retriever."  # prefix of the encoder's weights in a checkpoint


class Validations:
    """Validations of a run, in one process; `folder` is that of their records."""

    def __init__(self, config: Config, dev_sets: Sequence[DevSet], folder: Path) -> None:
        self._config, self._dev_sets, self._folder = config, dev_sets, folder
        self._protocol = dev_protocol(config.training.best_metric)
        for leftover in folder.glob(".model-*"):  # of a killed process
            remove(leftover)

    def run(self, step: int, checkpoint: Path) -> Record:
        """Evaluate a checkpoint and write its record, unless the record exists."""
        if (stored := read_record(self._folder, step)) is not None:
            return stored
        began = time.monotonic()
        retriever = self._load(checkpoint)
        rows = {one.name: self._measure(retriever, one, *self._datasets[one.name]) for one in self._dev_sets}
        metrics = {name: float(np.mean([row[name] for row in rows.values()])) for name in self._protocol.metrics}
        measured = {f"{DEV}{name}": value for name, value in metrics.items()}
        if len(rows) > 1:
            measured |= {f"{DEV}{one}/{name}": value for one, row in rows.items() for name, value in row.items()}
        measured = {name: value for name, value in measured.items() if value == value}  # NaN: no AUC without negatives
        best = self._config.training.best_metric
        value = float("nan") if best == DEV_LOSS else metrics[read_best_metric(best)]
        record = Record(step, value, {**measured, "evaluation_seconds": time.monotonic() - began})
        write_record(self._folder, record)
        return record

    @cached_property
    def _datasets(self) -> dict[str, tuple[RetrievalDataset, str]]:
        """Each data set with its split, its corpus sampled where the settings say so."""
        most, seed = self._config.validation.eval_corpus, self._config.training.seed
        datasets = {}
        for one in self._dev_sets:
            dataset = open_dataset(one.path, [one.split], bm25_language=self._config.data.bm25_language)
            if most is not None:
                dataset = sample_corpus(dataset, one.split, most, seed, lambda all: Bm25Index.of(all.documents))
            datasets[one.name] = (dataset, one.split)
        return datasets

    def _measure(self, retriever: Retriever, one: DevSet, dataset: RetrievalDataset, split: str) -> dict[str, float]:
        positions = dataset.relevant_queries(split)
        prompts = retriever.prompts_of(dataset.name)
        queries = encode_queries(retriever, dataset, positions, one.name)
        documents = encode_texts(retriever, dataset.passages(), "passage", one.name, prompts.passage)
        return evaluate_embeddings(dataset, split, queries, documents, self._protocol).metrics

    def _load(self, checkpoint: Path) -> Retriever:
        """Return the encoder of a checkpoint as it would be loaded from `model/`, with bitwise equal embeddings."""
        config = self._config
        check_checkpoint(checkpoint)
        device = default_device()
        precision = choose_precision(config.training.precision, device)
        trained = load_retriever(config.model, base_type(config.model.lora_rank, precision))
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
            return load_for_encoding(ModelConfig(model=written), precision, device)


TRIES = 3  # times that a killed evaluator repeats its checkpoint before the validation fails
NICENESS = 10  # training on the same cores has priority; while training waits, the evaluator uses all of them


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=TRIES)
class CheckpointEvaluator:
    """Actor that evaluates one checkpoint after another."""

    def __init__(self, config: Config, dev_sets: Sequence[DevSet], folder: str, driver: DriverContext) -> None:
        driver.enter()
        with suppress(OSError):
            os.nice(NICENESS)
        torch.set_num_threads(usable_cores())  # Ray gives a process one
        self._validations = Validations(config, dev_sets, Path(folder))

    def evaluate(self, step: int, checkpoint: str) -> Record | UserError:
        """Evaluate the checkpoint of a step; returns its record or a user error."""
        return result_or_error(lambda: self._validations.run(step, Path(checkpoint)))


@contextmanager
def start_evaluator(
    config: Config, dev_sets: Sequence[DevSet], folder: Path, log: Callable[[str], None]
) -> Iterator[Any]:
    """Run an evaluator actor for the duration of a run.

    Yields None where nothing is evaluated, and where training leaves no GPU free: then the first worker evaluates; see
    `clients`.
    """
    if not dev_sets:
        yield None
        return
    workers = config.training.workers[1]
    encoders = 0 if config.refresh.refresh_every is None else config.refresh.pool[1]
    # Only of the free ones: an actor that asks for the GPU of another job would wait for it without a message.
    gpus = 1.0 if spare_gpus(workers + encoders) else 0.0
    if not gpus and count_gpus():
        log("Checkpoints are evaluated on the GPU of the first worker, while training waits.")
        yield None
        return
    if not gpus and len([node for node in ray.nodes() if node["Alive"]]) == 1:
        log("Checkpoints are evaluated on the cores that train, at a lower priority. Meanwhile steps take longer.")
    options = CheckpointEvaluator.options(num_gpus=gpus, **SPREAD)  # type: ignore[attr-defined]
    evaluator = options.remote(config, tuple(dev_sets), str(folder.resolve() / FOLDER), DriverContext())
    try:
        yield evaluator
    finally:
        ray.kill(evaluator)
