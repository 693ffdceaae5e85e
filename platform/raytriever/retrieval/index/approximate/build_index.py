"""Builder of approximate indexes. An index never changes: a changed corpus needs a new one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, DataError, setting
from raytriever.core.progress import Progress, activity
from raytriever.retrieval.index.approximate.ann_index import AnnIndex, ApproximateIndex
from raytriever.retrieval.index.approximate.faiss_indexes import Flat, Hnsw, Ivf, default_code_bytes
from raytriever.retrieval.index.approximate.index_settings import IndexConfig
from raytriever.retrieval.index.approximate.roargraph import RoarGraph
from raytriever.retrieval.index.approximate.vamana import Vamana
from raytriever.retrieval.index.pair_scores import check_finite

BLOCK = 1 << 16


def fill(ann_index: Ivf | Hnsw, embeddings: Float32[ndarray, "rows dim"], threads: int) -> Ivf | Hnsw:
    """Add all rows to an ANN index, block by block, because the embeddings may be memory-mapped. Return the index."""
    with Progress("index", len(embeddings), "passage") as progress:
        for start in range(0, len(embeddings), BLOCK):
            block = np.ascontiguousarray(embeddings[start : start + BLOCK])
            ann_index.add(block, threads)
            progress.advance(len(block))
    return ann_index


@activity("building the index")
def build_index(
    embeddings: Float32[ndarray, "documents dim"],
    config: IndexConfig,
    training: Float32[ndarray, "training dim"] | None,
    seed: int,
    threads: int,
    ties: Int64[ndarray, " documents"] | None = None,
) -> ApproximateIndex:
    """Build an approximate index.

    Args:
        embeddings: embeddings of all documents, at least one.
        training: queries from which RoarGraph is built; other kinds ignore them.
        threads: number of threads; only the graph of HNSW depends on it.
        ties: result of `index.exact_top_k.tie_order`; by default equal scores are ordered by position.

    Raises:
        DataError: there are no documents.
        ModelError: an embedding is not finite.
        ConfigError: a setting does not suit the corpus, RoarGraph has no training queries, or a library is missing.
    """
    if not len(embeddings):
        raise DataError("there are no documents to index", remedy="encode a data set with documents")
    check_finite(embeddings, "document")
    embeddings = np.ascontiguousarray(embeddings, np.float32)
    ann_index = _ann_index(embeddings, config, training, seed, threads)
    ties = np.arange(len(embeddings)) if ties is None else ties
    return ApproximateIndex(ann_index, embeddings, ties, config.value("search_size"))


def _ann_index(embeddings: ndarray, config: IndexConfig, training: ndarray | None, seed: int, threads: int) -> AnnIndex:
    m, ef_construction, dim = config.value("m"), config.value("ef_construction"), embeddings.shape[1]
    if config.index == "flat":
        return Flat(embeddings)
    if config.index in ("ivf", "ivfpq"):
        code_bytes = (config.code_bytes or default_code_bytes(dim)) if config.index == "ivfpq" else None
        return fill(Ivf.trained(embeddings, config.lists, code_bytes, seed, threads), embeddings, threads)
    if config.index == "hnsw":
        return fill(Hnsw.empty(dim, m, ef_construction, seed, len(embeddings)), embeddings, threads)
    if config.index == "vamana":
        return Vamana.build(embeddings, m, ef_construction, threads)
    if training is None or not len(training):
        remedy = f"name a split that has queries, or use {setting('index')} hnsw"
        what = "RoarGraph is built from training queries, and there are none"
        raise ConfigError(what, setting("training_split"), remedy)
    return RoarGraph.build(embeddings, training, m, config.value("nearest"), ef_construction, seed, threads)
