"""Validation of a checkpoint: its encoder is evaluated on the dev sets of the run. Imports no Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from raytriever.cluster.train.dev_sets import DEV, DevSet, dev_protocol
from raytriever.config import Config
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.encode import encode_queries, encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.evaluation.datasets import sample_corpus
from raytriever.evaluation.protocol import read_best_metric
from raytriever.evaluation.systems import evaluate_embeddings
from raytriever.mining.bm25 import Bm25Index
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision, default_device
from raytriever.models.retriever import Retriever
from raytriever.training.config import DEV_LOSS
from raytriever.training.validation import Record, read_record, write_record


class Validations:
    """Validations of a run, in one process; `folder` is that of their records."""

    def __init__(self, config: Config, dev_sets: Sequence[DevSet], folder: Path) -> None:
        self._config, self._dev_sets, self._folder = config, dev_sets, folder
        self._protocol = dev_protocol(config.training.best_metric)

    def run(self, step: int, checkpoint: Path) -> Record:
        """Evaluate a checkpoint and write its record, unless the record exists."""
        if (stored := read_record(self._folder, step)) is not None:
            return stored
        began = time.monotonic()
        device = default_device()
        precision = choose_precision(self._config.training.precision, device)
        retriever = load_for_encoding(ModelConfig(str(checkpoint)), precision, device)
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
