"""Pooling: reduce the token states of a text to one float32 vector, by the modes of sentence-transformers.

All modes work with padding on either side and with packed texts. The tokens of the prompt, at the beginning of a text,
can be left out. Packed texts are reduced by torch's segment reductions: each sum is one loop over the tokens of a text,
and each token gets one gradient. So on a GPU, every call gives the same bits. Padding packed texts for `pool` would
need, for each text, the memory of the longest text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

States = Float[Tensor, "texts tokens dim"]
Mask = Int64[Tensor, "texts tokens"]
Pooled = Float[Tensor, "texts dim"]


def pool(states: States, mask: Mask, pooling: str, left_out: int | Tensor = 0) -> Float[Tensor, "texts pooled"]:
    """Return one float32 vector per text.

    Args:
        mask: 1 for tokens, 0 for padding.
        pooling: a mode of `MODES`, or several modes joined by `+`; then their vectors are concatenated.
        left_out: number of first tokens of each text that are not pooled; an integer, or `[texts]`.
    """
    places = mask.cumsum(1)  # 1 for the first token of a text, also after padding
    if isinstance(left_out, Tensor):
        left_out = left_out[:, None]
    kept = mask * (places > left_out)
    return torch.cat([MODES[mode](states, kept, places) for mode in pooling.split("+")], dim=1)


def pool_packed(
    states: Float[Tensor, "tokens dim"], starts: Int32[Tensor, " bounds"], pooling: str, left_out: int | Tensor = 0
) -> Float[Tensor, "texts pooled"]:
    """Return one float32 vector per packed text. The result equals that of `pool`, except for rounding.

    Args:
        starts: index of the first token of each text, and the number of tokens.
        pooling: a mode of `MODES`, or several joined by `+`.
        left_out: number of first tokens of each text that are not pooled; an integer, or `[texts]`.
    """
    starts = starts.long()
    lengths = starts.diff()
    if not isinstance(left_out, Tensor):
        left_out = torch.full_like(lengths, left_out)  # the tensor is made on the device, so nothing is copied
    packed = _Packed(states, starts, lengths, torch.where(left_out < lengths, left_out, lengths))
    return torch.cat([_PACKED_MODES[mode](packed) for mode in pooling.split("+")], dim=1)


@dataclass(frozen=True)
class _Packed:
    """Packed texts."""

    states: Float[Tensor, "tokens dim"]
    starts: Int64[Tensor, " bounds"]  # index of the first token of each text, and the number of tokens
    lengths: Int64[Tensor, " texts"]  # number of tokens of each text
    left_out: Int64[Tensor, " texts"]  # number of first tokens of each text that are not pooled

    def spread(self, values: Int64[Tensor, " texts"]) -> Int64[Tensor, " tokens"]:
        """Repeat the value of each text for all of its tokens."""
        # Without `output_size`, the CPU would wait until the GPU has computed it.
        return values.repeat_interleave(self.lengths, output_size=len(self.states))

    @cached_property
    def places(self) -> Int64[Tensor, " tokens"]:
        """Position of each token in its text, counted from 1."""
        return torch.arange(1, len(self.states) + 1, device=self.states.device) - self.spread(self.starts[:-1])

    @cached_property
    def kept(self) -> Bool[Tensor, " tokens"]:
        """True for the tokens that are pooled."""
        return self.places > self.spread(self.left_out)

    def reduce(self, values: Float[Tensor, "tokens dim"], how: str) -> Pooled:
        """Return the sum or the max of the values of each text."""
        return torch.segment_reduce(values, how, offsets=self.starts, axis=0, unsafe=True)

    def at(self, tokens: Int64[Tensor, " texts"]) -> Pooled:
        """Return the state of one token of each text. If all tokens of a text are left out, return the first state."""
        inside = torch.where(self.left_out < self.lengths, tokens, 0)
        return self.states.index_select(0, self.starts[:-1] + inside).to(torch.float32)

    def mean(self, exponent: float = 1.0, weighted: bool = False) -> Pooled:
        """Return the sum of the states, divided by a power of the sum of their weights."""
        weights = (self.kept * self.places if weighted else self.kept).to(torch.float32)[:, None]
        total = self.reduce(weights, "sum").clamp(min=1)
        return self.reduce(self.states.to(torch.float32) * weights, "sum") / total**exponent

    def max(self) -> Pooled:
        """Return the largest value of each component; 0 for a text without tokens."""
        most = self.reduce(self.states.to(torch.float32).masked_fill(~self.kept[:, None], float("-inf")), "max")
        return most.masked_fill((self.left_out == self.lengths)[:, None], 0.0)


_PACKED_MODES: dict[str, Callable[[_Packed], Pooled]] = {
    "mean": _Packed.mean,
    "cls": lambda packed: packed.at(packed.left_out),
    "last": lambda packed: packed.at(packed.lengths - 1),
    "max": _Packed.max,
    "mean_sqrt_len": lambda packed: packed.mean(exponent=0.5),
    "weightedmean": lambda packed: packed.mean(weighted=True),
}


def _mean(states: States, kept: Mask, places: Mask, exponent: float = 1.0, weighted: bool = False) -> Pooled:
    """Return the sum of the states, divided by a power of the sum of their weights."""
    weight = (kept * places if weighted else kept).unsqueeze(-1).to(torch.float32)
    return (states.to(torch.float32) * weight).sum(1) / weight.sum(1).clamp(min=1) ** exponent


def _max(states: States, kept: Mask) -> Pooled:
    """Return the largest value of each component; 0 for a text without tokens."""
    most = states.to(torch.float32).masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).amax(1)
    return most.masked_fill(kept.amax(1, keepdim=True) == 0, 0.0)


def _at(states: States, tokens: Int64[Tensor, " texts"]) -> Pooled:
    return states[torch.arange(len(states), device=states.device), tokens].to(torch.float32)


# Pooling functions by mode. Arguments: states, mask of the pooled tokens, and place of each token in its text, from 1.
MODES: dict[str, Callable[[States, Mask, Mask], Pooled]] = {
    "mean": _mean,
    "cls": lambda states, kept, places: _at(states, kept.to(torch.int8).argmax(1)),
    "last": lambda states, kept, places: _at(states, (kept * places).argmax(1)),
    "max": lambda states, kept, places: _max(states, kept),
    "mean_sqrt_len": partial(_mean, exponent=0.5),
    # The nth token of a text has the weight n (Muennighoff 2022, arXiv:2202.08904).
    "weightedmean": partial(_mean, weighted=True),
}
