"""Attention of short texts on a CPU, in the processor's cache: in float32 forward and backward, in bfloat16 forward.

One head of one text at a time: the scores of 16 queries and all keys are computed, weighted and multiplied with the
values before those of the next 16, so no scores are written to memory; the backward pass computes them again from the
sums of the softmax, as flash attention does (Dao et al., 2022, arXiv:2205.14135, section 3.1). Scores are stored
transposed, a panel of 16 queries, so maxima and sums over keys are those of vectors.

Tokens after the last one that is attended to (padding) are not computed: their results are 0, and the result of a text
does not depend on the length to which it is padded. States in bfloat16 are read as float32, and only results are
rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from raytriever.models.cpu.dropout import LEVELS, draw_factors, draw_key
from raytriever.vectors import LANES, exponentials, in_threads, maxima, product, softmax_gradients, transpose

ROWS = 6
WIDE, NARROW = product(ROWS), product(4)
MASKED = -1e30


def supports(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether `attend` can compute an attention, by types and shapes of `[texts, heads, tokens, width]`."""
    states = (query, key, value)
    same = all(each.shape == query.shape and each.dtype == query.dtype for each in states)
    is_computed = query.dtype == torch.float32 or (
        query.dtype == torch.bfloat16 and not (torch.is_grad_enabled() and any(each.requires_grad for each in states))
    )
    return same and is_computed and query.device.type == "cpu" and query.shape[3] % LANES == 0


def attend(
    query: Float[Tensor, "texts heads tokens width"],
    key: Float[Tensor, "texts heads tokens width"],
    value: Float[Tensor, "texts heads tokens width"],
    mask: Float[Tensor, "texts 1 _ tokens"] | Bool[Tensor, "texts 1 _ tokens"] | None,
    scaling: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "texts tokens heads width"]:
    """Return softmax(query key^T scaling + mask) value, in the type of the states.

    Args:
        query, key, value: states, in float32; in bfloat16 without gradients.
        mask: keys that queries attend to: true, or numbers that are added to the scores. All queries of a text attend
            to the same keys. None for all keys.
        scaling: factor of the scores; 1 / sqrt(width) by default.
        dropout: probability with which a weight of the softmax becomes 0, below 1; see `models.cpu.dropout`.
    """
    texts, _, tokens, width = query.shape
    bias = torch.full((texts, tokens + ROWS), MASKED)
    if mask is None:
        bias[:, :tokens] = 0
    elif mask.dtype == torch.bool:
        bias[:, :tokens].masked_fill_(mask[:, 0, 0], 0)
    else:
        bias[:, :tokens] = mask[:, 0, 0].clamp(min=MASKED)
    states = (each.transpose(1, 2).contiguous() for each in (query, key, value))
    threshold = min(round(dropout * LEVELS), LEVELS - 1)
    key_of_mask = draw_key() if threshold else 0
    dropped = _Dropped(np.uint64(key_of_mask), np.uint16(threshold), np.float32(LEVELS / (LEVELS - threshold)))
    mixed: Tensor = _Attention.apply(*states, bias, width**-0.5 if scaling is None else scaling, dropped)
    return mixed


class _Dropped(NamedTuple):
    """Mask of the weights: its key, the random bits below which a weight is dropped, and the factor of the others."""

    key: np.uint64
    threshold: np.uint16
    scale: np.float32


class _Attention(torch.autograd.Function):
    """Attention of states `[texts, tokens, heads, width]`."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scaling: float, dropped: _Dropped
    ) -> Tensor:
        texts, tokens, heads, _ = query.shape
        mixed, sums = torch.empty_like(query), torch.zeros(texts, heads, tokens + LANES)
        _compute(_forward, texts * heads, scaling, dropped, query, key, value, bias, mixed, sums)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(query, key, value, bias, mixed, sums)
            ctx.scaling, ctx.dropped = scaling, dropped
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: activation checkpointing computes them at each access
        texts, _, heads, _ = saved[0].shape
        gradients = [torch.empty_like(saved[0]) for _ in range(3)]
        _compute(_backward, texts * heads, ctx.scaling, ctx.dropped, *saved, grad.contiguous(), *gradients)
        return *gradients, None, None, None


def _compute(kernel: Callable[..., None], pairs: int, scaling: float, dropped: _Dropped, *tensors: Tensor) -> None:
    """Call a kernel for all pairs of a text and a head.

    Fake tensors have no values, so nothing is computed; the plan of memory counts their bytes.
    """
    if any(isinstance(each, FakeTensor) for each in tensors):
        return
    arrays = (each.view(torch.uint16) if each.dtype == torch.bfloat16 else each for each in tensors)
    in_threads(kernel, pairs, np.float32(scaling), dropped, *(each.detach().numpy() for each in arrays))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _forward(first, last, scale, dropped, query, key, value, bias, mixed, sums):  # type: ignore[no-untyped-def]
    """Write the results, and for each query the logarithm of the sum of its exponentials."""
    tokens, heads, width = query.shape[1:]
    size, one = _size(tokens), np.float32(1)
    rows, keys = np.zeros((size, width), np.float32), np.zeros((size, width), np.float32)
    queries, values = np.zeros((size // LANES, width, LANES), np.float32), np.zeros((width, size), np.float32)
    scores, total = np.zeros((size, LANES), np.float32), np.zeros(LANES, np.float32)
    out, turned = np.zeros((width, LANES), np.float32), np.zeros((LANES, width), np.float32)
    factors, words = np.empty(size * LANES, np.float32), np.empty(size * LANES // 4, np.uint64)
    for pair in range(first, last):
        text, head = pair // heads, pair % heads
        count = _count(bias, text, tokens)
        end, steps = _up(count, ROWS), _up(count, 4)
        _copy(key, text, head, count, scale, keys)
        _copy(query, text, head, count, one, rows)
        _panels(rows, count, queries)
        _copy(value, text, head, count, one, rows)
        _columns(rows, count, values)
        for start in range(0, count, LANES):
            for row in range(0, end, ROWS):
                WIDE(keys, row * width, width, queries, start * width, width, scores, row * LANES, LANES, True)
            at = (text * heads + head) * sums.shape[2] + start
            maxima(scores, end, bias, text * bias.shape[1], sums, at)
            exponentials(scores, end, sums, at, total, 0)
            if dropped.threshold:
                _draw_factors(factors, words, dropped, pair, start, size, end)
                _scale(scores, factors, end)
            for row in range(0, width, 4):
                NARROW(values, row * size, size, scores, 0, steps, out, row * LANES, LANES, True)
            _turn_back(out, turned)
            for lane in range(min(LANES, count - start)):
                sums[text, head, start + lane] += np.log(total[lane])
                _write(turned, lane, one / total[lane], mixed, text, start + lane, head)
        mixed[text, count:, head] = 0


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _backward(  # type: ignore[no-untyped-def]
    first, last, scale, dropped, query, key, value, bias, mixed, sums, grad, by_query, by_key, by_value
):
    """Write the gradients of query, key and value.

    With weights W and factors F of the dropout, `slopes` are W (F grad value^T - grad . mixed), the gradients of the
    scores.
    """
    tokens, heads, width = query.shape[1:]
    size, one = _size(tokens), np.float32(1)
    rows = np.zeros((size, width), np.float32)
    keys = np.zeros((size, width), np.float32)
    values = np.zeros((size, width), np.float32)
    queries = np.zeros((size // LANES, width, LANES), np.float32)
    grads = np.zeros((size // LANES, width, LANES), np.float32)
    query_rows = np.zeros((width // LANES, size, LANES), np.float32)
    grad_rows = np.zeros((width // LANES, size, LANES), np.float32)
    key_columns, inner = np.zeros((width, size), np.float32), np.zeros(size, np.float32)
    unused = np.zeros(LANES, np.float32)
    scores = np.zeros((size, LANES), np.float32)
    slopes = np.zeros((size, LANES), np.float32)
    out, turned = np.zeros((width, LANES), np.float32), np.zeros((LANES, width), np.float32)
    to_keys = np.zeros((size, width), np.float32)
    to_values = np.zeros((size, width), np.float32)
    factors, words = np.empty(size * LANES, np.float32), np.empty(size * LANES // 4, np.uint64)
    for pair in range(first, last):
        text, head = pair // heads, pair % heads
        count = _count(bias, text, tokens)
        end, steps = _up(count, ROWS), _up(count, 4)
        _copy(value, text, head, count, one, values)
        _copy(key, text, head, count, scale, keys)
        _columns(keys, count, key_columns)
        _copy(query, text, head, count, one, rows)
        _panels(rows, count, queries)
        _row_panels(rows, count, scale, query_rows)
        _copy(grad, text, head, count, one, rows)
        _panels(rows, count, grads)
        _row_panels(rows, count, one, grad_rows)
        inner[count:] = 0
        for row in range(count):
            total = np.float32(0)
            for column in range(width):
                total += rows[row, column] * mixed[text, row, head, column]
            inner[row] = total
        for start in range(0, count, LANES):
            for row in range(0, end, ROWS):
                WIDE(keys, row * width, width, queries, start * width, width, scores, row * LANES, LANES, True)
                WIDE(values, row * width, width, grads, start * width, width, slopes, row * LANES, LANES, True)
            maxima(scores, end, bias, text * bias.shape[1], unused, 0)
            exponentials(scores, end, sums, (text * heads + head) * sums.shape[2] + start, unused, 0)
            if dropped.threshold:
                _draw_factors(factors, words, dropped, pair, start, size, end)
                _scale(slopes, factors, end)
            softmax_gradients(slopes, scores, end, inner, start)
            if dropped.threshold:
                _scale(scores, factors, end)
            for row in range(0, width, 4):
                NARROW(key_columns, row * size, size, slopes, 0, steps, out, row * LANES, LANES, True)
            _turn_back(out, turned)
            by_query[text, start : min(start + LANES, count), head] = turned[: min(LANES, count - start)]
            for row in range(0, end, ROWS):
                for column in range(0, width, LANES):
                    at, to = column * size + start * LANES, row * width + column
                    WIDE(scores, row * LANES, LANES, grad_rows, at, LANES, to_values, to, width, start == 0)
                    WIDE(slopes, row * LANES, LANES, query_rows, at, LANES, to_keys, to, width, start == 0)
        for gradients, local in ((by_key, to_keys), (by_value, to_values)):
            gradients[text, :count, head] = local[:count]
            gradients[text, count:, head] = 0
        by_query[text, count:, head] = 0


@numba.njit(cache=True, error_model="numpy")
def _draw_factors(factors, words, dropped, pair, start, size, rows):  # type: ignore[no-untyped-def]
    """Draw the factors of the first rows of a panel of weights; every panel of `size` rows has words of its own."""
    panel = pair * (size // LANES) + start // LANES
    first = panel * size * LANES // 4
    draw_factors(factors, rows * LANES, words, dropped.key, first, dropped.threshold, dropped.scale)


@numba.njit(cache=True, error_model="numpy")
def _scale(panel, factors, rows):  # type: ignore[no-untyped-def]
    for row in range(rows):
        for lane in range(LANES):
            panel[row, lane] *= factors[row * LANES + lane]


@numba.njit(cache=True, error_model="numpy")
def _count(bias, text, tokens):  # type: ignore[no-untyped-def]
    """Return the number of tokens up to the last one that is attended to."""
    count = tokens
    while count and bias[text, count - 1] <= 0.5 * MASKED:
        count -= 1
    return count


@numba.njit(cache=True, error_model="numpy")
def _up(count, multiple):  # type: ignore[no-untyped-def]
    return (count + multiple - 1) // multiple * multiple


@numba.njit(cache=True, error_model="numpy")
def _size(tokens):  # type: ignore[no-untyped-def]
    """Return a number of rows that is a multiple of LANES and holds whole blocks of `ROWS`."""
    return _up(tokens + ROWS, LANES)


@numba.njit(cache=True, error_model="numpy")
def _copy(states, text, head, count, factor, rows):  # type: ignore[no-untyped-def]
    """Copy the states of one head, times a factor; the following rows up to a whole panel become 0."""
    bits = rows.view(np.uint32)
    for row in range(count):
        if states.itemsize == 2:  # bfloat16: the upper half of a float32
            for column in range(rows.shape[1]):
                bits[row, column] = np.uint32(states[text, row, head, column]) << np.uint32(16)
            for column in range(rows.shape[1]):
                rows[row, column] *= factor
        else:
            for column in range(rows.shape[1]):
                rows[row, column] = states[text, row, head, column] * factor
    rows[count : min(_up(count + ROWS, LANES), len(rows))] = 0


@numba.njit(cache=True, error_model="numpy")
def _write(rows, row, factor, mixed, text, token, head):  # type: ignore[no-untyped-def]
    """Write a row times a factor as the result of a token."""
    width = rows.shape[1]
    if mixed.itemsize == 4:
        for column in range(width):
            mixed[text, token, head, column] = rows[row, column] * factor
        return
    for column in range(width):
        rows[row, column] *= factor
    bits = rows.view(np.uint32)
    for column in range(width):  # to the nearest bfloat16, ties to even
        word = bits[row, column]
        odd = (word >> np.uint32(16)) & np.uint32(1)
        mixed[text, token, head, column] = np.uint16((word + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@numba.njit(cache=True, error_model="numpy")
def _panels(rows, count, panels):  # type: ignore[no-untyped-def]
    """Transpose panels of 16 rows: element (row, column) goes to panel row / 16, line column, lane row % 16."""
    width = rows.shape[1]
    for row in range(0, _up(count, LANES), 8):
        for column in range(0, width, 8):
            to = (row // LANES * width + column) * LANES + row % LANES
            transpose(rows, row * width + column, width, panels, to, LANES)


@numba.njit(cache=True, error_model="numpy")
def _columns(rows, count, columns):  # type: ignore[no-untyped-def]
    width, size = columns.shape
    for row in range(0, _up(count, 8), 8):
        for column in range(0, width, 8):
            transpose(rows, row * width + column, width, columns, column * size + row, size)


@numba.njit(cache=True, error_model="numpy")
def _row_panels(rows, count, factor, panels):  # type: ignore[no-untyped-def]
    """Cut rows into panels of 16 columns, times a factor."""
    for panel in range(len(panels)):
        for row in range(_up(count, LANES)):
            for lane in range(LANES):
                panels[panel, row, lane] = rows[row, panel * LANES + lane] * factor


@numba.njit(cache=True, error_model="numpy")
def _turn_back(panel, rows):  # type: ignore[no-untyped-def]
    for row in range(0, len(panel), 8):
        for lane in range(0, LANES, 8):
            transpose(panel, row * LANES + lane, LANES, rows, lane * len(panel) + row, len(panel))
