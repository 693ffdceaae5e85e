"""Texts of like length side by side, so that little of what an encoder computes is padding.

A batch is cut, in order of length, into a few parts of equal size, each padded to its own longest text; the answer
is put back in the order of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from raytriever.models.encoder import TokenBatch

# Fewer texts than this in a part leave a processor's cores, let alone a GPU, without enough to do.
PART = 16
PARTS = 4


@dataclass(frozen=True)
class Buckets:
    """One side of a batch, tokenised.

    Args:
        parts: padded batches, shortest texts first.
        places: where each text of the batch stands in the parts laid end to end.
    """

    parts: list[TokenBatch]
    places: Int64[Tensor, " texts"]

    def to(self, device: torch.device) -> Buckets:
        """The same on a device."""
        parts = [{name: tensor.to(device) for name, tensor in part.items()} for part in self.parts]
        return Buckets(parts, self.places.to(device))


def fill_buckets(token_ids: Sequence[Sequence[int]], pad: Callable[[Sequence[Sequence[int]]], TokenBatch]) -> Buckets:
    """Sort the texts of a batch by length into padded parts."""
    count = max(1, min(PARTS, len(token_ids) // PART))
    order = torch.tensor([len(ids) for ids in token_ids]).argsort(stable=True)
    parts = [pad([token_ids[row] for row in rows]) for rows in order.tensor_split(count)]
    return Buckets(parts, order.argsort())
