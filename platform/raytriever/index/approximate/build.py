"""Build an approximate index from embeddings and settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.errors import ConfigError, DataError, setting
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.faiss_finders import Flat, Hnsw, Ivf, default_code_bytes
from raytriever.index.approximate.growth import grow
from raytriever.index.approximate.index import ApproximateIndex, Finder
from raytriever.index.approximate.roargraph import RoarGraph
from raytriever.index.approximate.vamana import Vamana
from raytriever.index.score import check_finite


@dataclass(frozen=True)
class DocumentVectors:
    """Documents that are indexed.

    Args:
        embeddings: embeddings of the documents that have one.
        documents: positions of these documents in the corpus, ascending.
        ties: result of `exact.search.tie_order` for the whole corpus.
    """

    embeddings: Float32[ndarray, "rows width"]
    documents: Int64[ndarray, " rows"]
    ties: Int64[ndarray, " documents"]

    @classmethod
    def of(cls, embeddings: Float32[ndarray, "documents width"]) -> DocumentVectors:
        """Create the documents of a corpus without ids; equal scores are ordered by position."""
        positions = np.arange(len(embeddings))
        return cls(embeddings, positions, positions)


@activity("building the index")
def build_index(
    rows: DocumentVectors,
    config: IndexConfig,
    training: Float32[ndarray, "training width"] | None,
    seed: int,
    threads: int,
    folder: Path | None = None,
) -> ApproximateIndex:
    """Build an index.

    Args:
        rows: documents, at least one.
        config: checked settings.
        training: queries from which RoarGraph is built; not used by other kinds.
        seed: seed of the random numbers of the index.
        threads: number of threads; only the graph of HNSW depends on it.
        folder: folder of an unfinished index of FAISS, from which a build that was killed continues; see `growth`.

    Raises:
        DataError: there are no documents.
        ModelError: an embedding is not finite.
        ConfigError: a setting does not suit the corpus, RoarGraph has no training queries, or a library is missing.
    """
    if not len(rows.embeddings):
        raise DataError("there are no documents to index", remedy="encode a data set with documents")
    check_finite(rows.embeddings, "document", rows.documents)
    embeddings = np.ascontiguousarray(rows.embeddings, np.float32)
    finder = _finder(embeddings, config, training, seed, threads, folder)
    return ApproximateIndex(
        finder=finder, embeddings=embeddings, documents=rows.documents, ties=rows.ties, effort=config.value("effort")
    )


def _finder(
    embeddings: ndarray, config: IndexConfig, training: ndarray | None, seed: int, threads: int, folder: Path | None
) -> Finder:
    degree, beam, width = config.value("degree"), config.value("build_beam"), embeddings.shape[1]
    if config.index == "flat":
        return Flat(embeddings)
    if config.index in ("ivf", "ivfpq"):
        code_bytes = (config.code_bytes or default_code_bytes(width)) if config.index == "ivfpq" else None
        train = partial(Ivf.trained, embeddings, config.lists, code_bytes, seed, threads)
        return grow(train, Ivf.load, embeddings, threads, folder)
    if config.index == "hnsw":
        load = partial(Hnsw.load, seed=seed, mapped=True)
        return grow(lambda *_: Hnsw.empty(width, degree, beam, seed), load, embeddings, threads, folder)
    if config.index == "vamana":
        return Vamana.build(embeddings, degree, beam, threads)
    if training is None or not len(training):
        raise ConfigError(
            "RoarGraph is built from training queries, and there are none",
            setting("training_split"),
            f"name a split that has queries, or use {setting('index')} hnsw",
        )
    return RoarGraph.build(embeddings, training, degree, config.value("nearest"), beam, seed, threads)
