"""One evaluation of one checkpoint: its weights read, written as a model, loaded to encode, measured. Knows no Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from raytriever.cluster.validation_sets import DEV, DevSet, dev_protocol
from raytriever.config import Config
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.open import open_dataset
from raytriever.models.config import ModelConfig
from raytriever.models.layout import write_model
from raytriever.models.precision import choose_precision
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.negatives.bm25 import Bm25Index
from raytriever.parallel.shards import whole_tensors
from raytriever.retrieval.encode import encode_texts
from raytriever.retrieval.evaluate import evaluate_embeddings
from raytriever.retrieval.evaluation_corpus import part_of_corpus
from raytriever.retrieval.loading import load_for_encoding
from raytriever.retrieval.metric_words import deciding_metric
from raytriever.storage import read_manifest
from raytriever.training.checkpoint import WEIGHTS, read_slices
from raytriever.training.config import DEV_LOSS
from raytriever.training.refresh_snapshot import load_snapshot
from raytriever.training.validation_record import Record, read_record, write_record

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
        value = float("nan") if best == DEV_LOSS else metrics[deciding_metric(best)]
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
                dataset = part_of_corpus(dataset, one.split, most, seed, lambda all: Bm25Index(all.passages()))
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
