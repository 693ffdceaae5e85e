"""Tokens of texts as inputs of the encoder: padded to one length, or packed one after another without padding.

A padded batch has `input_ids` and `attention_mask`, `[texts, tokens]`. A packed batch has these tensors:

- `input_ids`, `position_ids`: `[1, tokens]` int64; the positions of every text start again.
- `starts`: `[texts + 1]` int32; text i has the tokens `starts[i]` to `starts[i + 1] - 1`.
- `left_out`: `[texts]` int64, if prompts are not pooled; the number of first tokens of each text that are left out.
- `lengths`: `[texts]` int64; always on the CPU, so that no code waits for a GPU to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    """Return texts as one packed batch.

    Args:
        token_ids: inputs of the encoder, at least one text.
        first_position: position of the first token of every text.
        prompt_lengths: number of first tokens of each text that are not pooled; None if all are pooled.

    Example:
        >>> pack([np.array([7, 8, 9]), np.array([5])])["position_ids"]
        tensor([[0, 1, 2, 0]])
    """
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)
    starts = np.append(0, lengths.cumsum())
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths) + first_position
    part = {
        "input_ids": torch.from_numpy(np.concatenate(token_ids).astype(np.int64)[None]),
        "position_ids": torch.from_numpy(positions[None]),
        "starts": torch.from_numpy(starts.astype(np.int32)),
        _ON_CPU: torch.from_numpy(lengths),
    }
    if prompt_lengths is not None:
        part["left_out"] = torch.tensor(prompt_lengths, dtype=torch.int64)
    return part


def is_packed(part: TokenBatch) -> bool:
    """Return whether a batch is packed."""
    return "starts" in part


def texts_of(part: TokenBatch) -> int:
    """Return the number of texts of a batch."""
    return len(part[_ON_CPU] if is_packed(part) else part["input_ids"])


def tokens_of(part: TokenBatch) -> int:
    """Return the number of tokens that the encoder computes for a batch, padding included."""
    return part["input_ids"].numel()


def lengths_of(part: TokenBatch) -> Int64[Tensor, " texts"]:
    """Return the number of tokens of each text, without padding; of a packed batch on the CPU."""
    return part[_ON_CPU] if is_packed(part) else part["attention_mask"].sum(1)


def move(part: TokenBatch, copy: Callable[[Tensor], Tensor]) -> TokenBatch:
    """Return a batch whose tensors are copied to a device; `lengths` stays on the CPU."""
    return {name: tensor if name == _ON_CPU else copy(tensor) for name, tensor in part.items()}


def select(part: TokenBatch, start: int, end: int) -> TokenBatch:
    """Return the texts `start` to `end - 1` of a packed batch."""
    first, last = int(part[_ON_CPU][:start].sum()), int(part[_ON_CPU][:end].sum())
    tokens = {name: part[name][:, first:last] for name in ("input_ids", "position_ids")}
    texts = {name: part[name][start:end] for name in (_ON_CPU, "left_out") if name in part}
    return {**tokens, **texts, "starts": part["starts"][start : end + 1] - first}


def join(parts: Sequence[TokenBatch]) -> TokenBatch:
    """Return packed batches as one, in their order; all or none of them have `left_out`."""
    first, *others = parts
    starts, tokens = [first["starts"]], tokens_of(first)
    for part in others:
        starts.append(part["starts"][1:] + tokens)
        tokens += tokens_of(part)
    joined = {name: torch.cat([part[name] for part in parts], dim=-1) for name in first if name != "starts"}
    return {**joined, "starts": torch.cat(starts)}
