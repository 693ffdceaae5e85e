from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raytriever.data.keys import KeyIndex, key_of, keys_of

# Few values in each word, so that keys repeat and keys share their first word only.
WORDS = st.integers(0, 3)
KEYS = st.lists(st.tuples(WORDS, WORDS), max_size=30)


def array(keys: list[tuple[int, int]]) -> np.ndarray:
    return np.array(keys, dtype=np.uint64).reshape(-1, 2)


@given(KEYS, KEYS)
def test_the_first_of_equal_keys_is_found(keys: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    first = {key: len(keys) - 1 - position for position, key in enumerate(reversed(keys))}
    index = KeyIndex(array(keys))
    assert index.find(array(asked)).tolist() == [first.get(key, -1) for key in asked]
    assert index.first().tolist() == [first[key] for key in keys]


def test_texts_do_not_run_together() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("", "abc"), key_of("abc", "")}) == 5
    assert keys_of([key_of("a"), key_of("b")]).shape == (2, 2)


def test_an_array_of_keys_needs_no_object_for_each() -> None:
    tracemalloc.start()
    try:
        keys = keys_of(key_of(str(number)) for number in range(100_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(keys) == 100_000
    assert peak < 40 * len(keys)  # 16 bytes each, and room to grow
