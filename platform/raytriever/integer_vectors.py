"""Products of integers for numba, written as LLVM's own code; see `raytriever.vectors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from raytriever.vectors import LANES, address_of, build_loop, load_vector, splat, store_vector

_HALF = LANES // 2
_WORD = ir.IntType(32)
_WORDS = ir.VectorType(_WORD, _HALF)


def multiplies_bytes() -> bool:
    """Return whether numba compiles for a processor that adds four products of bytes in one instruction (VNNI)."""
    features = numba.config.CPU_FEATURES
    if features is None:
        return any(binding.get_host_cpu_features().get(name) for name in ("avx512vnni", "avxvnni"))
    return not {"+avx512vnni", "+avxvnni"}.isdisjoint(features.split(","))


def integer_product(rows: int, stride: int) -> Any:
    """Return a function of numba that multiplies `rows` rows of integers and a panel, exactly.

    Its arguments are `left, row, panel, at, steps, sums, to, is_first`: add the product to `sums`, or write it if it is
    the first. Numbers are as in `vectors.product`; rows of `left` have `stride` elements, those of `sums` 16 int32.
    The integers are of 16 bits, and a step takes two of each row: the panel is `[steps, 16, 2]`. Or, where
    `multiplies_bytes`, they are of 8 bits, without sign in `left`, and a step takes four. No instruction saturates, as
    those do that multiply bytes on processors without VNNI.
    """

    @intrinsic
    def multiply(typing, left, row, panel, at, steps, sums, to, is_first):  # type: ignore[no-untyped-def]
        number = types.intp
        signature = types.void(left, number, panel, number, number, sums, number, types.boolean)
        add_products = _add_bytes if left.dtype.bitwidth == 8 else _add_words
        group = 32 // left.dtype.bitwidth

        def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
            left, row, panel, at, steps, sums, to, is_first = values
            word, kinds = steps.type, signature.args
            left, panel, sums = (
                address_of(context, builder, kinds[i], array, first)
                for i, array, first in ((0, left, row), (2, panel, at), (5, sums, to))
            )
            lefts = [builder.gep(left, [word(i * stride)]) for i in range(rows)]
            lefts = [builder.bitcast(pointer, _WORD.as_pointer()) for pointer in lefts]
            places = [builder.gep(sums, [word(i * _HALF)]) for i in range(2 * rows)]
            places = [builder.bitcast(pointer, _WORDS.as_pointer()) for pointer in places]

            def turn(step: Any, totals: Sequence[Any]) -> list[Any]:
                place = builder.gep(panel, [builder.mul(step, word(LANES * group))])
                place = builder.bitcast(place, _WORDS.as_pointer())
                halves = [builder.load(builder.gep(place, [word(i)]), align=1) for i in (0, 1)]
                some = [_everywhere(builder, builder.load(builder.gep(pointer, [step]), align=1)) for pointer in lefts]
                return [add_products(builder, total, some[i // 2], halves[i % 2]) for i, total in enumerate(totals)]

            # One step a turn: LLVM reorders additions of integers, and then has too few registers.
            zero = ir.Constant(_WORDS, [0] * _HALF)
            before = [builder.select(is_first, zero, builder.load(place, align=4)) for place in places]
            for total, place in zip(build_loop(builder, steps, 1, before, turn), places, strict=True):
                builder.store(total, place, align=4)
            return context.get_dummy_value()

        return signature, generate

    return multiply


@intrinsic
def scale_sums(typing, sums, at, starts, scales, bias, column, factor, out, to):  # type: ignore[no-untyped-def]
    """Write (sums[i] + starts[column + i]) * scales[column + i] * factor + bias[column + i] for 16 numbers to `out`."""
    number = types.intp
    signature = types.void(sums, number, starts, scales, bias, number, types.float32, out, number)

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        sums, at, starts, scales, bias, column, factor, out, to = values
        kinds, zero = signature.args, at.type(0)
        words = ir.VectorType(_WORD, LANES).as_pointer()
        whole, starts = (
            builder.load(builder.bitcast(address_of(context, builder, kinds[i], array, first), words), align=4)
            for i, array, first in ((0, sums, at), (2, starts, column))
        )
        scales, bias = (
            load_vector(builder, address_of(context, builder, kinds[i], array, column), zero)
            for i, array in ((3, scales), (4, bias))
        )
        value = builder.fmul(builder.sitofp(builder.add(whole, starts), scales.type), scales)
        value = builder.fadd(builder.fmul(value, splat(builder, factor)), bias)
        store_vector(builder, value, address_of(context, builder, kinds[7], out, to), zero)
        return context.get_dummy_value()

    return signature, generate


def _everywhere(builder: Any, value: Any) -> Any:
    single = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), value, _WORD(0))
    return builder.shuffle_vector(single, single, ir.Constant(_WORDS, None))


def _add_bytes(builder: Any, total: Any, some: Any, others: Any) -> Any:
    """Add the products of four bytes without sign and four with sign to each lane."""
    name = "llvm.x86.avx512.vpdpbusd.256"
    kind = ir.FunctionType(_WORDS, [_WORDS] * 3)
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, [total, some, others])


def _add_words(builder: Any, total: Any, some: Any, others: Any) -> Any:
    """Add the products of two integers of 16 bits to each lane, in the form that LLVM recognises (`vpmaddwd`)."""
    narrow, wide = (ir.VectorType(ir.IntType(bits), 2 * _HALF) for bits in (16, 32))
    products = builder.mul(*(builder.sext(builder.bitcast(each, narrow), wide) for each in (some, others)))
    even, odd = (ir.Constant(_WORDS, list(range(first, 2 * _HALF, 2))) for first in (0, 1))
    pairs = (builder.shuffle_vector(products, products, lanes) for lanes in (even, odd))
    return builder.add(total, builder.add(*pairs))
