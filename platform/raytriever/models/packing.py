"""Tokens of texts as inputs of the encoder: padded in buckets of similar length, or packed without padding.

A padded batch has `input_ids` and `attention_mask`, `[texts, tokens]`, and perhaps `left_out`. A packed batch has these
tensors:

- `input_ids`, `position_ids`: `[1, tokens]` int64. The positions start again with each text.
- `starts`: `[texts + 1]` int32. Text i has the tokens `starts[i]` to `starts[i + 1] - 1`.
- `left_out`: `[texts]` int64, if prompts are not pooled: number of first tokens of each text that are left out.
- `lengths`: `[texts]` int64, always on the CPU, so that no code waits for a GPU to read it.

Buckets. A batch is sorted by length and cut into buckets, each padded to its longest text. The embeddings are then put
back in the order of the batch. Dynamic programming finds the cheapest cut into at most `BUCKETS` buckets: a bucket
costs its number of texts times the cost of its longest text, plus `BUCKET_COST`. The cost of a text is its number of
tokens, with a quadratic term for the attention of texts of more than 512 tokens.

Measured on batches of 64 pairs of SQuAD (queries of at most 64 tokens, passages of at most 256): 7.1 % of the tokens
are padding, instead of 12.4 % with four equal buckets, and 39 % with one per side. A training step of MiniLM on 2 cores
takes 12 % less time than with four equal buckets, and the same time if most passages are truncated to 48 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor

TokenBatch = dict[str, Tensor]
_ON_CPU = "lengths"


def pack(
    token_ids: Sequence[ndarray], first_position: int = 0, prompt_lengths: Sequence[int] | None = None
) -> TokenBatch:
    """Pack texts into one batch.

    Args:
        token_ids: inputs of the encoder, at least one text.
        first_position: position of the first token of every text.
        prompt_lengths: number of first tokens of each text that are not pooled; None if all are pooled.
    """
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)
    starts = np.append(0, lengths.cumsum())
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths) + first_position
    chunk = {
        "input_ids": torch.from_numpy(np.concatenate(token_ids).astype(np.int64)[None]),
        "position_ids": torch.from_numpy(positions[None]),
        "starts": torch.from_numpy(starts.astype(np.int32)),
        _ON_CPU: torch.from_numpy(lengths),
    }
    if prompt_lengths is not None:
        chunk["left_out"] = torch.tensor(prompt_lengths, dtype=torch.int64)
    return chunk


def is_packed(chunk: TokenBatch) -> bool:
    """Return True if a batch is packed."""
    return "starts" in chunk


def texts_of(chunk: TokenBatch) -> int:
    """Return the number of texts of a batch."""
    return len(chunk[_ON_CPU] if is_packed(chunk) else chunk["input_ids"])


def tokens_of(chunk: TokenBatch) -> int:
    """Return the number of tokens that the encoder computes for a batch, including padding."""
    return chunk["input_ids"].numel()


def lengths_of(chunk: TokenBatch) -> Int64[Tensor, " texts"]:
    """Return the number of tokens of each text without padding. For a packed batch, the tensor is on the CPU."""
    return chunk[_ON_CPU] if is_packed(chunk) else chunk["attention_mask"].sum(1)


def move(chunk: TokenBatch, copy: Callable[[Tensor], Tensor]) -> TokenBatch:
    """Return a batch with each tensor replaced by `copy(tensor)`, except `lengths`, which stays on the CPU."""
    return {name: tensor if name == _ON_CPU else copy(tensor) for name, tensor in chunk.items()}


def join(chunks: Sequence[TokenBatch]) -> TokenBatch:
    """Join packed batches, in their order. All or none of them have `left_out`."""
    first, *others = chunks
    starts, tokens = [first["starts"]], tokens_of(first)
    for chunk in others:
        starts.append(chunk["starts"][1:] + tokens)
        tokens += tokens_of(chunk)
    joined = {name: torch.cat([chunk[name] for chunk in chunks], dim=-1) for name in first if name != "starts"}
    return {**joined, "starts": torch.cat(starts)}


# -------------------------------------------------------------------------------------------------------------- buckets


BUCKETS = 8
# Cost of one more bucket, forward and backward, in tokens. For MiniLM on 2 cores, one more small bucket costs 100 to
# 210 tokens, and one more bucket that keeps the cores busy costs nothing.
BUCKET_COST = 128
# In texts of about this number of tokens, attention costs as much as the rest of a layer, forward and backward. On one
# core, with 128 to 4,096 tokens, the number was 1,900 in ModernBERT-base and 2,400 in Qwen3-Embedding-0.6B. Local
# attention saves nothing, because torch's fused attention computes the masked scores too.
ATTENTION = 2_048
# Up to this length, the cost of a text is its number of tokens: attention is at most a fifth of the whole cost.
SHORT = 512
# Maximum number of distinct lengths that `cut_points` considers, so that a call takes less than a millisecond.
LEVELS = 128
_NEVER = 2**60


@dataclass(frozen=True)
class Buckets:
    """Tokens of the queries or the passages of a batch, in buckets."""

    buckets: list[TokenBatch]  # padded batches, beginning with the shortest texts; or one packed batch
    indices: Int64[Tensor, " texts"]  # index of each text of the batch in the concatenated buckets

    def to(self, device: torch.device) -> Buckets:
        """Return a copy on a device."""
        buckets = [move(bucket, lambda tensor: tensor.to(device)) for bucket in self.buckets]
        return Buckets(buckets, self.indices.to(device))


def join_sides(queries: Buckets, passages: Buckets) -> Buckets:
    """Join the packed texts of both sides to one packed batch, queries first."""
    indices = torch.cat([queries.indices, passages.indices + len(queries.indices)])
    return Buckets([join([*queries.buckets, *passages.buckets])], indices)


def fill_buckets(
    token_ids: Sequence[ndarray],
    pad: Callable[..., TokenBatch],
    most: int | None = None,
    prompt_lengths: Sequence[int] | None = None,
    tokens: int | None = None,
) -> Buckets:
    """Sort the texts of a batch by length into padded buckets.

    Args:
        token_ids: inputs of the encoder.
        pad: function that pads some of the texts to one batch. Its second argument is their prompt lengths, or None.
        most: maximum cost per bucket, in tokens. Larger buckets are split evenly. None for no limit.
        prompt_lengths: number of first tokens of each text that are not pooled; None if all are pooled.
        tokens: maximum number of tokens per bucket, with padding; None for no limit. A longer text has its own bucket.
    """
    columns = [token_ids] if prompt_lengths is None else [token_ids, prompt_lengths]
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)
    order = lengths.argsort(kind="stable")
    buckets = np.split(order, cut_points(lengths[order]))

    def split(chunks: Sequence[int]) -> list[ndarray]:
        return [rows for bucket, count in zip(buckets, chunks, strict=True) for rows in np.array_split(bucket, count)]

    if most:
        costs = [len(bucket) * int(token_cost(lengths[bucket[-1]])) for bucket in buckets]
        buckets = split([min(len(bucket), -(-cost // most)) for bucket, cost in zip(buckets, costs, strict=True)])
    if tokens:
        buckets = split([-(-len(bucket) // max(1, tokens // int(lengths[bucket[-1]]))) for bucket in buckets])
    padded = [pad(*([column[row] for row in rows] for column in columns)) for rows in buckets]
    return Buckets(padded, torch.from_numpy(order.argsort()))


def spans(lengths: Sequence[int], tokens: int | None) -> Iterator[slice]:
    """Divide packed texts into ranges of at most `tokens` tokens in total. A longer text is a range of its own."""
    start, total = 0, 0
    for index, length in enumerate(lengths):
        if tokens is not None and index > start and total + length > tokens:
            yield slice(start, index)
            start, total = index, 0
        total += length
    yield slice(start, len(lengths))


def token_cost(lengths: ndarray) -> ndarray:
    """Return the cost of a text of each length. A token of a short text costs 1. Shape and type do not change."""
    return lengths + np.maximum(lengths * lengths - SHORT * SHORT, 0) // ATTENTION


def cut_points(lengths: Int64[ndarray, " texts"]) -> list[int]:
    """Return the cheapest cut of texts of ascending lengths: the first text of each bucket, except the first bucket. If
    several cuts cost the same, return one with the fewest buckets."""
    if not len(lengths):
        return []
    # Texts of equal length (one level) stay together: to split them costs a bucket and saves nothing.
    step = -(-int(lengths[-1] - lengths[0] + 1) // LEVELS)
    starts = np.unique((lengths - lengths[0]) // step, return_index=True)[1]
    ends = np.append(starts[1:], len(lengths))
    # cost[i, j]: cost of a bucket of the levels i to j.
    cost = (ends - starts[:, None]) * token_cost(lengths[ends - 1]) + BUCKET_COST
    cost[np.tri(len(starts), k=-1, dtype=bool)] = _NEVER
    best, first_levels = [cost[0]], []
    for _ in range(min(BUCKETS, len(starts)) - 1):
        # total[i, j]: cost of the best buckets up to level i - 1, and one more bucket of the levels i to j.
        total = np.append(_NEVER, best[-1][:-1])[:, None] + cost
        first_levels.append(total.argmin(axis=0))
        best.append(total.min(axis=0))
    level, cuts = len(starts), []
    for first in reversed(first_levels[: int(np.argmin([row[-1] for row in best]))]):
        level = int(first[level - 1])
        cuts.append(int(starts[level]))
    return cuts[::-1]
