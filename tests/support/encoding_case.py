"""An encoder and a data set whose passages are encoded to stores in a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever
from raytriever.retrieval.encoding.embed_corpus import embed_corpus, encode_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import EmbeddingPlan, EmbeddingStore
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def plan_of(embeddings: ndarray, shard_rows: int, dtype: str = "fp32") -> EmbeddingPlan:
    """Plan of a store of these embeddings, with an encoder and a data set that are not there."""
    return EmbeddingPlan(
        model="m", model_digest="", dataset="d", data_digest="", side="passage", prefix="", length=8, pooling="mean",
        similarity="dot", precision="fp32", dtype=dtype, rows=len(embeddings), dim=embeddings.shape[1],
        shard_rows=shard_rows,
    )  # fmt: skip


def write_shards(writer: StoreWriter, embeddings: ndarray, numbers: Iterable[int]) -> None:
    for number in numbers:
        rows = writer.plan.rows_of(number)
        writer.write(number, embeddings[rows.start : rows.stop], np.zeros((len(rows), 2), np.uint64))


def write_store(path: Path, embeddings: ndarray, shard_rows: int, dtype: str = "fp32") -> EmbeddingStore:
    writer = StoreWriter(path, plan_of(embeddings, shard_rows, dtype))
    writer.begin()
    write_shards(writer, embeddings, range(writer.plan.shards))
    return writer.finish()


@dataclass
class Case:
    """With the data set `tiny_dataset` the plan has four shards, the last one short."""

    config: ModelConfig
    retriever: Retriever
    dataset: RetrievalDataset
    folder: Path
    shard_rows: int = 48
    batch_tokens: int | None = None

    @property
    def plan(self) -> EmbeddingPlan:
        whole = plan_embeddings(self.config, self.retriever, self.dataset, "passage", "fp32")
        return replace(whole, shard_rows=self.shard_rows, batch_tokens=self.batch_tokens)

    def encode(self, name: str = "store", **changes: object) -> EmbeddingStore:
        writer = StoreWriter(self.folder / name, replace(self.plan, **changes))  # type: ignore[arg-type]
        return encode_store(writer, self.config, self.retriever, self.dataset)

    def embed(self) -> EmbeddingStore:
        """Return the embeddings in the cache."""
        return embed_corpus(self.config, self.retriever, self.dataset)
