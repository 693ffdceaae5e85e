"""Basic systems of an evaluation: BM25, and dense retrievers with their encoders.

`Encoders` loads each model once to check it, and limits the memory of the models that it keeps. `evaluation.composed`
has the systems that combine others or read files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, setting
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.evaluate_split import Evaluation, evaluate
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.requested_models import EvaluatedModel
from raytriever.evaluation.system_names import BM25, Reranking, encoders_of, nodes_of, system_text
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.inference import TextEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import Prompts
from raytriever.models.resolve_model import resolve_model
from raytriever.retrieval.encoding.embed_corpus import Runner, embed_corpus
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.encode_texts import encode_queries
from raytriever.retrieval.encoding.load_for_encoding import open_encoder
from raytriever.retrieval.encoding.shard_encoder import encode_in_process
from raytriever.retrieval.index.exact_top_k import tie_order, top_k
from raytriever.retrieval.index.pair_scores import pair_scores
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.retrieval.mining.bm25_analyzer import Analyzer
from raytriever.retrieval.search.calibration_file import digest_of, encoder_digest
from raytriever.retrieval.search.exact_search import search_store

# Largest number of bytes of weights in memory. One encoder stays in memory even if it is larger.
KEPT_BYTES = 4 * 2**30


# A store, queries, k and the order of ties -> scores and documents; see `search.exact_search.search_store`.
StoreSearch = Callable[[EmbeddingStore, ndarray, int, ndarray], tuple[ndarray, ndarray]]


@dataclass(frozen=True)
class RetrievalBackend:
    """Functions that encode corpora and search embedding stores. The defaults run in this process."""

    encode: Runner = encode_in_process
    search: StoreSearch = search_store


class Encoders:
    """Cache of encoders by their settings. The least recently used encoders are dropped, and loaded again when needed.

    Attributes:
        systems: name of a model -> how it reads texts, and the dimension of its embeddings.
        cross_encoders: cross-encoders of rerankings by name; they stay in memory.
    """

    def __init__(
        self,
        models: Sequence[EvaluatedModel],
        precision: str,
        device: torch.device,
        log: Callable[[str], None],
        backend: RetrievalBackend | None = None,
    ) -> None:
        self._precision, self._device = precision, device
        self.backend = backend or RetrievalBackend()
        self.device_type = device.type
        self._loaded: dict[str, TextEncoder] = {}  # the most recently used encoder is last
        self.systems: dict[str, dict[str, Any]] = {}
        self.cross_encoders: dict[str, CrossEncoder] = {}
        for model in models:
            if model.config is None:
                self.systems[model.name] = {"model": system_text(model.system)}
                for config in encoders_of(model.system):
                    log(f"{model.name}: {config.model}: {self[config].summary()}")
                for node in nodes_of(model.system):
                    if isinstance(node, Reranking) and node.cross_encoder not in self.cross_encoders:
                        directory = resolve_model(node.cross_encoder, node.revision)
                        arithmetic = "fp32" if precision == "int8" else precision  # cross-encoders do not support int8
                        self.cross_encoders[node.cross_encoder] = CrossEncoder(directory, device, arithmetic)
            elif model.variant is not None:
                whole = self.systems[model.variant.model]
                dim = model.variant.dim or whole["dim"]
                self.systems[model.name] = whole | {"dim": dim, "dtype": model.variant.dtype}
            else:
                retriever = self[model.config]
                dim = retriever.dim
                for variant in (
                    system.variant for system in models if system.variant and system.variant.model == model.name
                ):
                    if variant.dim is not None and variant.dim > dim:
                        what = f"{variant.dim} is out of range, embeddings of {model.name} have {dim} components"
                        raise ConfigError(what, setting("truncate_dim"), f"give at most {dim}")
                system = {"model": model.location, "dim": dim, "precision": precision}
                self.systems[model.name] = system | retriever.description.flags()
                log(f"{model.name}: {retriever.summary()}")

    def __getitem__(self, config: ModelConfig) -> TextEncoder:
        name = repr(config)
        retriever = self._loaded.pop(name, None)
        if retriever is None:
            retriever = open_encoder(config, self._precision, self._device)
        self._loaded[name] = retriever
        while len(self._loaded) > 1 and sum(encoder.nbytes for encoder in self._loaded.values()) > KEPT_BYTES:
            del self._loaded[next(iter(self._loaded))]
        return retriever


@dataclass
class DenseSystem:
    """Dense retriever on one data set: a `System`. It encodes the corpus and each query only once.

    `prompts` are the prompts for the data set; None means that its name chooses them."""

    dataset: RetrievalDataset
    config: ModelConfig
    retriever: TextEncoder
    backend: RetrievalBackend = RetrievalBackend()
    prompts: Prompts | None = None

    def __post_init__(self) -> None:
        self._row = np.full(len(self.dataset.queries), -1)  # row of each query in `_queries`, -1 if not yet encoded
        self._queries = np.zeros((0, self.retriever.dim), np.float32)
        self._store: EmbeddingStore | None = None

    def prepare(self) -> None:
        """See `PreparedSystem.prepare`."""
        self.encode_corpus()

    def encode_corpus(self) -> EmbeddingStore:
        """Return the store of the documents' embeddings; encode the documents first if necessary."""
        if self._store is None:
            self._store = embed_corpus(self.config, self.retriever, self.dataset, self.backend.encode, self.prompts)
        return self._store

    def encode(self, queries: Int64[ndarray, " queries"]) -> Float32[ndarray, "queries dim"]:
        """Return the embeddings of queries, given by position; encode those that are not encoded yet."""
        new = np.unique(queries[self._row[queries] < 0])
        if len(new):
            self._row[new] = len(self._queries) + np.arange(len(new))
            embeddings = encode_queries(self.retriever, self.dataset, new, prompts=self.prompts)
            self._queries = np.concatenate([self._queries, embeddings])
        return self._queries[self._row[queries]]

    @cached_property
    def ties(self) -> Int64[ndarray, " documents"]:
        """Rank of each document among documents with the same score."""
        return tie_order(self.dataset.documents.ids)

    @property
    def digest(self) -> str:
        """See `PreparedSystem.digest`."""
        return encoder_digest(self.config, self.dataset.name, int8=self.retriever.is_int8, prompts=self.prompts)

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """See `System.search`."""
        return self.backend.search(self.encode_corpus(), self.encode(queries), depth, self.ties)

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """See `System.score`."""
        return score_pairs(self.encode, self.encode_corpus().read, queries, documents)


def score_pairs(
    encode: Callable[[ndarray], ndarray], read: Callable[[ndarray], ndarray], queries: ndarray, documents: ndarray
) -> Float32[ndarray, " pairs"]:
    """Return the score of each pair. `encode` returns embeddings of queries, `read` of documents."""
    asked, rows = np.unique(queries, return_inverse=True)
    distinct, index = np.unique(documents, return_inverse=True)
    return pair_scores(encode(asked), read(distinct), rows, index)


@dataclass(frozen=True)
class EmbeddedSystem:
    """`System` that searches with embeddings in memory: of the queries of a split and of all documents."""

    dataset: RetrievalDataset
    positions: Int64[ndarray, " queries"]
    queries: Float32[ndarray, "queries dim"]
    documents: Float32[ndarray, "documents dim"]

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """See `System.search`."""
        return top_k(self._encode(queries), self.documents, depth, tie_order(self.dataset.documents.ids))

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """See `System.score`."""
        return score_pairs(self._encode, self.documents.__getitem__, queries, documents)

    def _encode(self, queries: ndarray) -> ndarray:
        return self.queries[np.searchsorted(self.positions, queries)]


def evaluate_embeddings(
    dataset: RetrievalDataset,
    split: str,
    queries: Float32[ndarray, "split_queries dim"],
    documents: Float32[ndarray, "documents dim"],
    protocol: Protocol | None = None,
) -> Evaluation:
    """Evaluate a dense retriever from the embeddings of `dataset.relevant_queries(split)` and of all documents."""
    dataset = replace(dataset, unanswerable={})
    system = EmbeddedSystem(dataset, dataset.relevant_queries(split), queries, documents)
    return evaluate(dataset, split, system, protocol)


@dataclass(frozen=True)
class Bm25System:
    """BM25 on one data set: a `System`. If no index is passed, the first search builds it."""

    dataset: RetrievalDataset
    built: Bm25Index | None = None

    @cached_property
    def index(self) -> Bm25Index:
        """Index of the documents."""
        return Bm25Index.of(self.dataset.documents) if self.built is None else self.built

    def prepare(self) -> None:
        """See `PreparedSystem.prepare`."""
        _ = self.index  # built here, so that the search time excludes it

    @property
    def digest(self) -> str:
        """See `PreparedSystem.digest`."""
        return digest_of(BM25, Analyzer.of(self.dataset.documents).settings)

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """See `System.search`."""
        scores, documents = self.index.search(self._texts(queries), depth)
        order = np.lexsort((tie_order(self.dataset.documents.ids)[documents], -scores), axis=1)
        return np.take_along_axis(scores, order, 1), np.take_along_axis(documents, order, 1)

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """See `System.score`."""
        distinct, row, counts = np.unique(queries, return_inverse=True, return_counts=True)
        table = np.full((len(distinct), counts.max()), -1)
        order = np.argsort(row, kind="stable")
        column = np.arange(len(queries)) - np.repeat(np.cumsum(counts) - counts, counts)
        table[row[order], column] = documents[order]
        scores = np.empty(len(queries), np.float32)
        scores[order] = self.index.scores_of(self._texts(distinct), table)[row[order], column]
        return scores

    def _texts(self, queries: ndarray) -> list[str]:
        return [self.dataset.queries.texts[query] for query in queries]
