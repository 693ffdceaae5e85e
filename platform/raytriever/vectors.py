"""Vector code for numba, written as LLVM's own: products of matrices, exponentials, GELU, transposition.

numba finds no such loops by itself. The code is compiled for the processor with vectors of any length. A panel is 16
columns of a matrix, `[rows, 16]`, contiguous. Pointers are an array and the number of an element. `in_threads` calls
compiled functions in parallel, because those with `prange` take seconds to compile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Columns of a panel, and steps per turn of the loop of a product.
LANES, UNROLL = 16, 4
# Parts of the work of a thread.
PARTS = 4
# exp(x) = 2^n exp(r) with |r| <= log(2) / 2; the polynomial's relative error is below 2e-7.
_TERMS = (1.0, 1.0, 0.5, 1 / 6, 1 / 24, 1 / 120, 1 / 720)
_ERROR_SCALE, _ERROR_TERMS = 0.3275911, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_MOST = 20.0  # beyond it the normal distribution is 0 or 1
_LOWEST = -87.0  # exp of it is the smallest normal float32
_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves an integer in the lowest bits


def in_threads(kernel: Callable[..., None], count: int, *arguments: Any, threads: int | None = None) -> None:
    """Call `kernel(first, last, *arguments)` for parts of `range(count)`, by default in as many threads as torch uses.

    The kernel releases the GIL. A thread that is done takes the next part, because cores are not equally fast.
    """
    threads = max(1, min(threads or torch.get_num_threads(), count))
    parts = 1 if threads == 1 else min(PARTS * threads, count)
    bounds = [count * number // parts for number in range(parts + 1)]
    ranges = iter([*pairwise(bounds)])  # of a list, whose iterator gives each element to one thread

    def work() -> None:
        for first, last in ranges:
            kernel(first, last, *arguments)

    others = [_pool(threads).submit(work) for _ in range(1, threads)]
    work()
    for other in others:
        other.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def product(rows: int) -> Any:
    """Return a function of numba that multiplies `rows` rows of a matrix and a panel.

    Its arguments are `left, row, stride, panel, at, steps, out, to, line, is_first`: add the product to `out`, or write
    it if it is the first. `row`, `at` and `to` are numbers of elements; `stride` and `line` are the lengths of the rows
    of `left` and `out`. `steps` is a multiple of `UNROLL`. On AVX2 the sums of 4 or 6 rows fit into the registers.
    """

    @intrinsic
    def multiply(typing, left, row, stride, panel, at, steps, out, to, line, is_first):  # type: ignore[no-untyped-def]
        number = types.intp
        signature = types.void(left, number, number, panel, number, number, out, number, number, types.boolean)

        def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
            left, row, stride, panel, at, steps, out, to, line, is_first = values
            word, zero = steps.type, _constant(0.0)
            left, panel, out = (
                address_of(context, builder, signature.args[i], array, first)
                for i, array, first in ((0, left, row), (3, panel, at), (6, out, to))
            )
            starts = [builder.gep(left, [builder.mul(stride, word(i))]) for i in range(rows)]
            outs = [_vector(builder, builder.gep(out, [builder.mul(line, word(i))]), LANES) for i in range(rows)]
            before = [builder.select(is_first, zero, builder.load(pointer, align=4)) for pointer in outs]

            def turn(step: Any, sums: Sequence[Any]) -> list[Any]:
                totals = list(sums)
                for offset in range(UNROLL):
                    k = builder.add(step, word(offset))
                    factors = load_vector(builder, panel, builder.mul(k, word(LANES)))
                    for i in range(rows):
                        factor = splat(builder, builder.load(builder.gep(starts[i], [k])))
                        term = builder.fmul(factor, factors, flags=["contract"])
                        totals[i] = builder.fadd(term, totals[i], flags=["contract"])
                return totals

            for total, pointer in zip(build_loop(builder, steps, UNROLL, before, turn), outs, strict=True):
                builder.store(total, pointer, align=4)
            return context.get_dummy_value()

        return signature, generate

    return multiply


@intrinsic
def maxima(typing, panel, rows, bias, at, out, to):  # type: ignore[no-untyped-def]
    """Add `bias[at + i]` to each row i of a panel, and write the largest element of each column to `out`."""
    signature = types.void(panel, types.intp, bias, types.intp, out, types.intp)

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        panel, rows, bias, at, out, to = values
        kinds = signature.args
        panel = address_of(context, builder, kinds[0], panel, rows.type(0))
        bias = address_of(context, builder, kinds[2], bias, at)

        def turn(row: Any, largest: Sequence[Any]) -> list[Any]:
            place = builder.mul(row, row.type(LANES))
            added = splat(builder, builder.load(builder.gep(bias, [row])))
            total = builder.fadd(load_vector(builder, panel, place), added)
            store_vector(builder, total, panel, place)
            return [builder.select(builder.fcmp_ordered(">", total, largest[0]), total, largest[0])]

        (largest,) = build_loop(builder, rows, 1, [_constant(-3e38)], turn)
        store_vector(builder, largest, address_of(context, builder, kinds[4], out, to), rows.type(0))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def exponentials(typing, panel, rows, shift, at, out, to):  # type: ignore[no-untyped-def]
    """Replace the elements x of column j of a panel by exp(x - shift[at + j]), and write the sums of columns to `out`.

    Elements more than 87 below the shift become 1e-38.
    """
    signature = types.void(panel, types.intp, shift, types.intp, out, types.intp)

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        panel, rows, shift, at, out, to = values
        kinds = signature.args
        panel = address_of(context, builder, kinds[0], panel, rows.type(0))
        shifts = load_vector(builder, address_of(context, builder, kinds[2], shift, at), rows.type(0))

        def turn(row: Any, sums: Sequence[Any]) -> list[Any]:
            place = builder.mul(row, row.type(LANES))
            weights = _exp(builder, builder.fsub(load_vector(builder, panel, place), shifts))
            store_vector(builder, weights, panel, place)
            return [builder.fadd(sums[0], weights)]

        (sums,) = build_loop(builder, rows, 1, [_constant(0.0)], turn)
        store_vector(builder, sums, address_of(context, builder, kinds[4], out, to), rows.type(0))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def softmax_gradients(typing, panel, weights, rows, shift, at):  # type: ignore[no-untyped-def]
    """Replace elements x of column j of a panel by w (x - shift[at + j]), with w of the panel `weights`."""
    signature = types.void(panel, weights, types.intp, shift, types.intp)

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        panel, weights, rows, shift, at = values
        kinds = signature.args
        panel, weights = (
            address_of(context, builder, kind, array, rows.type(0))
            for kind, array in zip(kinds[:2], (panel, weights), strict=True)
        )
        shifts = load_vector(builder, address_of(context, builder, kinds[3], shift, at), rows.type(0))

        def turn(row: Any, _: Sequence[Any]) -> list[Any]:
            place = builder.mul(row, row.type(LANES))
            difference = builder.fsub(load_vector(builder, panel, place), shifts)
            store_vector(builder, builder.fmul(load_vector(builder, weights, place), difference), panel, place)
            return []

        build_loop(builder, rows, 1, [], turn)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def transpose(typing, rows, at, stride, out, to, line):  # type: ignore[no-untyped-def]
    """Write 8 x 8 elements of `rows`, transposed; `stride` and `line` are the lengths of rows of `rows` and `out`."""
    signature = types.void(rows, types.intp, types.intp, out, types.intp, types.intp)

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        rows, at, stride, out, to, line = values
        word = at.type
        source = address_of(context, builder, signature.args[0], rows, at)
        target = address_of(context, builder, signature.args[3], out, to)
        some = [
            builder.load(_vector(builder, builder.gep(source, [builder.mul(stride, word(i))]), 8), align=4)
            for i in range(8)
        ]
        for _ in range(3):  # log2(8) times, interleave each row of the upper half with its row of the lower half
            some = [
                builder.shuffle_vector(
                    some[i // 2],
                    some[i // 2 + 4],
                    ir.Constant(
                        ir.VectorType(ir.IntType(32), 8), [4 * (i % 2) + j // 2 + 8 * (j % 2) for j in range(8)]
                    ),
                )
                for i in range(8)
            ]
        for i, column in enumerate(some):
            builder.store(column, _vector(builder, builder.gep(target, [builder.mul(line, word(i))]), 8), align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def gelu(typing, values, out, at, count):  # type: ignore[no-untyped-def]
    """Write x Phi(x) of `count` numbers x, a multiple of 16, to `out`, from element `at` on.

    Phi is the normal distribution, with an error function that has errors below 3e-7 (Abramowitz & Stegun, 1964,
    equation 7.1.26). `out` may be `values`.
    """
    signature = types.void(values, out, types.intp, types.intp)

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        values, out, at, count = values
        values, out = (
            address_of(context, builder, kind, array, at)
            for kind, array in zip(signature.args[:2], (values, out), strict=True)
        )

        def turn(number: Any, _: Sequence[Any]) -> list[Any]:
            value = load_vector(builder, values, number)
            store_vector(builder, builder.fmul(value, _normal(builder, value)), out, number)
            return []

        build_loop(builder, count, LANES, [], turn)
        return context.get_dummy_value()

    return signature, generate


def _normal(builder: Any, value: Any) -> Any:
    """Return the normal distribution at a vector of numbers."""
    one, most = _constant(1.0), _constant(_MOST)
    is_negative = builder.fcmp_ordered("<", value, _constant(0.0))
    size = builder.select(is_negative, builder.fneg(value), value)
    size = builder.select(builder.fcmp_ordered(">", size, most), most, size)  # keeps a NaN
    share = builder.fdiv(one, _multiply_add(builder, size, _constant(_ERROR_SCALE / 2**0.5), one))
    total = _constant(_ERROR_TERMS[-1])
    for term in reversed((0.0, *_ERROR_TERMS[:-1])):
        total = _multiply_add(builder, total, share, _constant(term))
    bell = _exp(builder, builder.fmul(builder.fmul(size, size), _constant(-0.5)))
    # The distribution at -|x| is half of the complement of the error function.
    tail = builder.fmul(builder.fmul(bell, total), _constant(0.5))
    return builder.select(is_negative, tail, builder.fsub(one, tail))


# ------------------------------------------------------------------------------------------------------------- building


def build_loop(
    builder: Any, end: Any, step: int, starts: Sequence[Any], turn: Callable[[Any, Sequence[Any]], list[Any]]
) -> list[Any]:
    """Write a loop over 0, `step`, ... below `end`, at least once, and return the carried values after it."""
    word = end.type
    before, loop, after = builder.block, *(builder.append_basic_block() for _ in range(2))
    builder.branch(loop)
    builder.position_at_end(loop)
    number, *carried = builder.phi(word), *(builder.phi(start.type) for start in starts)
    results = turn(number, carried)
    following = builder.add(number, word(step))
    for phi, start, result in zip([number, *carried], [word(0), *starts], [following, *results], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(result, loop)
    builder.cbranch(builder.icmp_signed("<", following, end), loop, after)
    builder.position_at_end(after)
    return results


def _exp(builder: Any, values: Any) -> Any:
    """Return exp of a vector of numbers of at most 0."""
    lowest = _constant(_LOWEST)
    values = builder.select(builder.fcmp_ordered("<", values, lowest), lowest, values)  # keeps a NaN
    rounded = _multiply_add(builder, values, _constant(1.4426950408889634), _constant(_ROUND))
    power = builder.fsub(rounded, _constant(_ROUND))
    rest = _multiply_add(builder, power, _constant(-0.693359375), values)
    rest = _multiply_add(builder, power, _constant(2.12194440e-4), rest)
    total = _constant(_TERMS[-1])
    for term in reversed(_TERMS[:-1]):
        total = _multiply_add(builder, total, rest, _constant(term))
    words = ir.VectorType(ir.IntType(32), LANES)
    exponent = builder.shl(builder.bitcast(rounded, words), ir.Constant(words, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(total, words), exponent), total.type)


def _multiply_add(builder: Any, one: Any, other: Any, added: Any) -> Any:
    return builder.fadd(builder.fmul(one, other, flags=["contract"]), added, flags=["contract"])


def _constant(value: float) -> Any:
    return ir.Constant(ir.VectorType(ir.FloatType(), LANES), [value] * LANES)


def splat(builder: Any, value: Any) -> Any:
    """Return a vector of one value."""
    zero, lanes = _constant(0.0), ir.VectorType(ir.IntType(32), LANES)
    single = builder.insert_element(zero, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, zero, ir.Constant(lanes, None))


def address_of(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Return the pointer to an element of a contiguous array, by its number."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


def _vector(builder: Any, pointer: Any, lanes: int) -> Any:
    return builder.bitcast(pointer, ir.VectorType(ir.FloatType(), lanes).as_pointer())


def load_vector(builder: Any, pointer: Any, at: Any) -> Any:
    """Return the 16 numbers from an element on."""
    return builder.load(_vector(builder, builder.gep(pointer, [at]), LANES), align=4)


def store_vector(builder: Any, value: Any, pointer: Any, at: Any) -> None:
    """Write 16 numbers from an element on."""
    builder.store(value, _vector(builder, builder.gep(pointer, [at]), LANES), align=4)
