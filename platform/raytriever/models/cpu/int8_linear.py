"""Linear layers of an encoder on a CPU with products of 8-bit integers.

Weights are quantised once, one scale for each output, and states at every call, one scale for each token: the largest
absolute value becomes 127 (LLM.int8(), Dettmers et al., 2022, arXiv:2208.07339, section 2.1, without its outliers in
16 bits). Sums are exact in 32 bits. So the result of a token does not depend on the other tokens of the batch.

AVX2 has no exact product of bytes: its `vpmaddubsw` saturates sums of two at 16 bits. There the 8-bit numbers are held
in 16 bits and multiplied by `vpmaddwd`, at twice the peak rate of float32. With VNNI they are bytes, at four times this
rate. Both give the same integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from raytriever.integer_vectors import integer_product, multiplies_bytes, scale_sums
from raytriever.vectors import LANES, gelu, in_threads

LARGEST = 127
# Rows of a product and of a block of states, and inputs of a part of a panel, which stays in the first-level cache.
ROWS, BLOCK, INPUTS = 6, 48, 384
PRODUCT = integer_product(ROWS, INPUTS)
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it leaves an integer in the lowest bits


class WeightPanels(NamedTuple):
    """Weights of a layer in panels of 16 outputs; missing outputs and inputs are 0.

    Args:
        weight: integers, `[outputs / 16, inputs * 16]`, of 16 bits; of 8 bits if states are bytes.
        starts: numbers that are added to the products of integers, `[outputs]`.
        scales, bias: of the outputs.
        states: empty array of the type of the states: int16, or uint8.
    """

    weight: ndarray
    starts: ndarray
    scales: ndarray
    bias: ndarray
    states: ndarray


def quantise(linear: nn.Linear, as_bytes: bool) -> WeightPanels:
    """Quantise the weights of a layer; `as_bytes` needs a processor with VNNI."""
    weight = linear.weight.detach().float()
    scales = weight.abs().amax(1) / LARGEST
    # The scale of an output without weights is 0. A NaN stays in the scale, so that embeddings show it.
    integers = (weight / scales.where(scales != 0, 1)[:, None]).nan_to_num().round().numpy()
    bias = np.zeros(len(scales), np.float32) if linear.bias is None else linear.bias.detach().float().numpy()
    kind, states, group = (np.int8, np.uint8, 4) if as_bytes else (np.int16, np.int16, 2)
    outputs, inputs = -len(scales) % LANES, -weight.shape[1] % 4
    panels = np.pad(integers, ((0, outputs), (0, inputs))).astype(kind)
    # Bytes of states have no sign: they are 128 larger.
    starts = (-128 if as_bytes else 0) * panels.sum(1, dtype=np.int32)
    panels = panels.reshape(-1, LANES, panels.shape[1] // group, group).transpose(0, 2, 1, 3)
    padded_scales, padded_bias = (np.pad(each, (0, outputs)) for each in (scales.numpy(), bias))
    flat = np.ascontiguousarray(panels).reshape(len(panels), -1)
    return WeightPanels(flat, starts, padded_scales, padded_bias, np.empty(0, states))


class Int8Linear(nn.Module):
    """Linear layer of 8-bit integers.

    Args:
        linear: layer in float32.
        as_bytes: multiply bytes, which needs VNNI; by default where the processor has it.
    """

    def __init__(self, linear: nn.Linear, as_bytes: bool | None = None) -> None:
        super().__init__()
        self._outputs = linear.out_features
        self._panels = quantise(linear, multiplies_bytes() if as_bytes is None else as_bytes)

    def forward(self, states: Float[Tensor, "*texts inputs"]) -> Float[Tensor, "*texts outputs"]:
        """Apply the layer."""
        return _compute(states, self._outputs, self._panels, self._panels, False)


class Int8FeedForward(nn.Module):
    """Linear layer, GELU and linear layer of 8-bit integers, for a block of tokens at a time, in the cache."""

    def __init__(self, up: nn.Linear, down: nn.Linear, as_bytes: bool | None = None) -> None:
        super().__init__()
        self._outputs, as_bytes = down.out_features, multiplies_bytes() if as_bytes is None else as_bytes
        self._up, self._down = quantise(up, as_bytes), quantise(down, as_bytes)

    def forward(self, states: Float[Tensor, "*texts inputs"]) -> Float[Tensor, "*texts outputs"]:
        """Apply the layers."""
        return _compute(states, self._outputs, self._up, self._down, True)


def _compute(states: Tensor, outputs: int, first: WeightPanels, last: WeightPanels, is_double: bool) -> Tensor:
    rows = states.reshape(-1, states.shape[-1]).contiguous()
    results = torch.empty(len(rows), len(last.bias))
    in_threads(_apply, -(-len(rows) // ROWS), rows.numpy(), first, last, is_double, results.numpy())
    return results[:, :outputs].contiguous().view(*states.shape[:-1], outputs)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _apply(start, end, states, up, down, is_double, results):  # type: ignore[no-untyped-def]
    """Compute the rows of the tiles `start` to `end - 1`: of the layer `up` alone, or of both with a GELU between."""
    between = np.empty((BLOCK, len(up.bias)), np.float32)
    inputs, others = _parts(up), _parts(down)
    for top in range(start * ROWS, min(end * ROWS, len(states)), BLOCK):
        count = min(BLOCK, end * ROWS - top, len(states) - top)
        if is_double:
            _multiply(states, top, count, inputs, up, between, 0)
            gelu(between, between, 0, count * between.shape[1])
            _multiply(between, 0, count, others, down, results, top)
        else:
            _multiply(states, top, count, inputs, up, results, top)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _parts(panels):  # type: ignore[no-untyped-def]
    """Return memory for the integers of a block of states, in parts of `INPUTS`; those of missing inputs are 0."""
    size = panels.weight.shape[1] // LANES
    return np.zeros(((size + INPUTS - 1) // INPUTS, BLOCK, INPUTS), panels.states.dtype)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _multiply(states, top, count, quantised, panels, results, to):  # type: ignore[no-untyped-def]
    """Apply one layer to `count` rows from `top` on, and write the results from row `to` on."""
    weight, starts, scales, bias, _ = panels
    size, line = weight.shape[1] // LANES, results.shape[1]
    factors, sums = np.empty(BLOCK, np.float32), np.empty((BLOCK, LANES), np.int32)
    scratch = np.empty(states.shape[1], np.float32)
    for row in range(count):
        factors[row] = _quantise(states, top + row, scratch, quantised, row)
    for panel in range(len(weight)):
        column = panel * LANES
        for part in range(len(quantised)):
            first = part * INPUTS
            at, steps = panel * weight.shape[1] + first * LANES, min(INPUTS, size - first) * weight.itemsize // 4
            for row in range(0, count, ROWS):
                PRODUCT(quantised, (part * BLOCK + row) * INPUTS, weight, at, steps, sums, row * LANES, part == 0)
        for row in range(count):
            place = (to + row) * line + column
            scale_sums(sums, row * LANES, starts, scales, bias, column, factors[row], results, place)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _quantise(states, row, scratch, quantised, to):  # type: ignore[no-untyped-def]
    """Write the integers of a row, as bytes plus 128, to row `to` of each part, and return the factor of the row."""
    bits, largest, count = states.view(np.uint32), np.uint32(0), states.shape[1]
    for i in range(count):  # absolute values are ordered like their bits, and NaN is the largest
        largest = max(largest, bits[row, i] & np.uint32(0x7FFFFFFF))
    scratch.view(np.uint32)[0] = largest
    factor = scratch[0] / np.float32(LARGEST)
    inverse = np.float32(LARGEST) / scratch[0] if factor > 0 else np.float32(0)
    for i in range(count):
        scratch[i] = states[row, i] * inverse + _ROUND
    integers, offset = scratch.view(np.int32), 128 if quantised.itemsize == 1 else 0
    for part in range(len(quantised)):
        start = part * INPUTS
        for i in range(min(INPUTS, count - start)):
            quantised[part, to, i] = integers[start + i] + offset
    return factor
