"""An encoder and a data set whose passages are encoded to stores in a folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.encoding.corpus import embed_corpus, encode_store, plan_embeddings
from raytriever.encoding.store import EmbeddingPlan, EmbeddingStore
from raytriever.encoding.writer import StoreWriter
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever


def write_store(path: Path, embeddings: ndarray, shard_rows: int, dtype: str = "fp32") -> EmbeddingStore:
    """Write a store as encoding makes it, with an encoder and a data set that are not there."""
    plan = EmbeddingPlan(
        model="m", model_digest="", dataset="d", data_digest="", side="passage", prefix="", length=8, pooling="mean",
        similarity="dot", precision="fp32", dtype=dtype, rows=len(embeddings), width=embeddings.shape[1],
        shard_rows=shard_rows,
    )  # fmt: skip
    writer = StoreWriter(path, plan)
    writer.begin()
    for number in range(plan.shards):
        rows = plan.rows_of(number)
        writer.write(number, embeddings[rows.start : rows.stop], np.zeros((len(rows), 2), np.uint64))
    return writer.finish()


@dataclass
class Case:
    """With the data set `tiny_dataset` the plan has four shards, the last one short."""

    config: ModelConfig
    retriever: Retriever
    dataset: RetrievalDataset
    folder: Path

    @property
    def plan(self) -> EmbeddingPlan:
        whole = plan_embeddings(self.config, self.retriever, self.dataset, "passage", "fp32")
        return replace(whole, shard_rows=48)

    def encode(self, name: str = "store", **changes: object) -> EmbeddingStore:
        writer = StoreWriter(self.folder / name, replace(self.plan, **changes))  # type: ignore[arg-type]
        return encode_store(writer, self.config, self.retriever, self.dataset)

    def embed(self) -> EmbeddingStore:
        """Return the embeddings in the cache."""
        return embed_corpus(self.config, self.retriever, self.dataset)
