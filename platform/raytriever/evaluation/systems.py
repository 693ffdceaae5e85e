"""Systems that an evaluation measures: BM25, and dense retrievers with the encoders they load.

`Encoders` loads each model once to check it, and keeps no more of them than memory should hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.encoding.corpus import Runner, embed_corpus
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.encoding.shards import encode_in_process
from raytriever.encoding.store import EmbeddingStore
from raytriever.evaluation.evaluate import Evaluation, evaluate
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.request import BM25, EvaluatedModel
from raytriever.index.exact.search import tie_order
from raytriever.index.score import pair_scores
from raytriever.mining.analyser import ANALYSER
from raytriever.mining.bm25 import Bm25Index
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever
from raytriever.search.exact import search_store

KEPT_BYTES = 4 * 2**30  # of weights; one encoder is kept however large


class Encoders:
    """Retrievers by the names of their models, those used longest ago loaded anew.

    Args:
        models: all of an evaluation; each is loaded here.
        precision, device: of encoding.
        kept_bytes: of weights.

    Raises:
        ModelError: one cannot be loaded.
    """

    def __init__(
        self, models: Sequence[EvaluatedModel], precision: str, device: torch.device, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._models = {model.name: model for model in models if model.config}
        self._precision, self._device, self._most = precision, device, kept_bytes
        self.device_type = device.type
        self._loaded: dict[str, Retriever] = {}  # the one used last stands last
        self.systems: dict[str, dict[str, Any]] = {}  # how each model reads texts, and the width of its embeddings
        for model in models:
            if model.config is None:
                self.systems[model.name] = {"model": BM25, "analyser": ANALYSER}
                continue
            retriever = self[model.name]
            system = {"model": model.config.model, "width": retriever.width, "precision": precision}
            self.systems[model.name] = system | asdict(retriever.description)

    def __getitem__(self, name: str) -> Retriever:
        retriever = self._loaded.pop(name, None)
        if retriever is None:
            config = self._models[name].config
            assert config is not None
            retriever = load_for_encoding(config, self._precision, self._device)
        self._loaded[name] = retriever
        while len(self._loaded) > 1 and sum(map(_bytes, self._loaded.values())) > self._most:
            del self._loaded[next(iter(self._loaded))]
        return retriever


def _bytes(retriever: Retriever) -> int:
    tensors = [*retriever.parameters(), *retriever.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# As `search_store.search_store`: a store, queries, k, ties; scores and documents.
StoreSearch = Callable[[EmbeddingStore, ndarray, int, ndarray], tuple[ndarray, ndarray]]


@dataclass(frozen=True)
class Workers:
    """Who encodes and who searches; by default this process."""

    encode: Runner = encode_in_process
    search: StoreSearch = search_store


@dataclass(frozen=True)
class DenseSystem:
    """A dense retriever on one data set, its corpus encoded once for all splits."""

    dataset: RetrievalDataset
    config: ModelConfig
    retriever: Retriever
    workers: Workers = Workers()

    @cached_property
    def _store(self) -> EmbeddingStore:
        return embed_corpus(self.config, self.retriever, self.dataset, self.workers.encode)

    @cached_property
    def _ties(self) -> Int64[ndarray, " documents"]:
        return tie_order(self.dataset.documents.ids)

    def evaluate(self, split: str, protocol: Protocol | None = None) -> Evaluation:
        """Encode the split's queries, search the store exactly, measure.

        Raises:
            ModelError: an embedding is not finite.
            DataError: as `evaluate.evaluate`.
        """
        positions = self.dataset.relevant_queries(split)
        embeddings = encode_texts(self.retriever, self._texts(positions), "query", "queries")
        row = np.full(len(self.dataset.queries), -1)
        row[positions] = np.arange(len(positions))

        def search(wanted: ndarray, depth: int) -> tuple[ndarray, ndarray]:
            return self.workers.search(self._store, embeddings[row[wanted]], depth, self._ties)

        def score(of: ndarray, to: ndarray) -> Float32[ndarray, " pairs"]:
            documents, place = np.unique(to, return_inverse=True)
            return pair_scores(embeddings, self._store.read(documents), row[of], place)

        return evaluate(self.dataset, split, search, score, protocol)

    def _texts(self, positions: ndarray) -> list[str]:
        return [self.dataset.queries.texts[query] for query in positions]


def evaluate_retriever(dataset: RetrievalDataset, split: str, config: ModelConfig, retriever: Retriever) -> Evaluation:
    """Encode the corpus and the split's queries, search exactly, measure; `retriever` was loaded by `config`."""
    return DenseSystem(dataset, config, retriever).evaluate(split)


def evaluate_bm25(
    dataset: RetrievalDataset, split: str, index: Bm25Index, protocol: Protocol | None = None
) -> Evaluation:
    """The lexical yardstick, by the same protocol."""
    texts = dataset.queries.texts
    ties = tie_order(dataset.documents.ids)

    def search(wanted: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        scores, documents = index.search([texts[query] for query in wanted], depth)
        order = np.lexsort((ties[documents], -scores), axis=1)
        return np.take_along_axis(scores, order, 1), np.take_along_axis(documents, order, 1)

    def score(of: ndarray, to: ndarray) -> ndarray:
        queries, place, counts = np.unique(of, return_inverse=True, return_counts=True)
        wanted = np.full((len(queries), counts.max()), -1)
        order = np.argsort(place, kind="stable")
        column = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        wanted[place[order], column] = to[order]
        found = np.empty(len(of), np.float32)
        found[order] = index.scores_of([texts[query] for query in queries], wanted)[place[order], column]
        return found

    return evaluate(dataset, split, search, score, protocol)
