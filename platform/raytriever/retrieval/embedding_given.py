"""Embeddings that a user names: held to what they are to be used for."""

from __future__ import annotations

from pathlib import Path

from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import StorageError
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever
from raytriever.retrieval.corpus import plan_embeddings
from raytriever.retrieval.embeddings import EmbeddingStore

# By what a plan names: what the store holds where it differs.
_DIFFERS = {
    "side": "queries",
    "data_digest": "another data set",
    "model_digest": "another model's embeddings",
    "prefix": "embeddings of texts with another prefix",
    "length": "embeddings of texts cut at another length",
    "pooling": "embeddings of another pooling",
    "similarity": "embeddings for another similarity",
    "width": "embeddings of another width",
}


def open_given(path: Path, config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset) -> EmbeddingStore:
    """A finished store of a data set's passages, made by a retriever in whatever arithmetic and storage.

    Args:
        path: of the store.
        config: names the directory the weights came from.
        retriever: loaded from there.
        dataset: the data set.

    Raises:
        StorageError: it holds something else, was never finished, or is damaged.
    """
    store = EmbeddingStore.open(path)
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32")
    for name, what in _DIFFERS.items():
        there, here = store.meta[name], getattr(plan, name)
        if there != here:
            told = "" if name.endswith("digest") else f" ({there!r}, here {here!r})"
            remedy = f"name the passages of {dataset.name} as jobs/encode.py encoded them with {config.model}"
            raise StorageError(f"holds {what}{told}", str(path), remedy)
    return store
