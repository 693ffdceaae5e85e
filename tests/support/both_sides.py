"""Embeddings of queries and passages by one module, as data-parallel wrappers need it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raytriever.models.packing import Buckets
from raytriever.models.retriever import Retriever


class BothSides(nn.Module):
    """Retriever whose forward pass encodes both sides of a batch."""

    def __init__(self, retriever: Retriever) -> None:
        super().__init__()
        self.retriever = retriever

    def forward(self, queries: Buckets, passages: Buckets) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the queries and of the passages."""
        embeddings = [
            torch.cat([self.retriever.encode(bucket, side) for bucket in texts.buckets])[texts.indices]
            for texts, side in self.retriever.passes(queries, passages)
        ]
        return torch.cat(embeddings).split([len(queries.indices), len(passages.indices)])
