"""An exact index agrees with an exact search, and a forked process is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from numpy import ndarray

from raytriever.index.exact.search import ExactIndex, top_k


def embeddings(rng: np.random.Generator, count: int, kind: str) -> ndarray:
    if kind == "ties":
        return rng.integers(-1, 2, (count, 8)).astype(np.float32)
    if kind == "copies":
        return rng.standard_normal((3, 8)).astype(np.float32)[rng.integers(0, 3, count)]
    return rng.standard_normal((count, 8)).astype(np.float32) * (1e30 if kind == "huge" else 1)


@pytest.mark.parametrize("kind", ["plain", "ties", "copies", "huge"])
@pytest.mark.parametrize("k", [1, 10_000])
def test_an_exact_index_has_the_bytes_of_an_exact_search(kind: str, k: int) -> None:
    rng = np.random.default_rng(k)
    queries, documents = embeddings(rng, 9, kind), embeddings(rng, 700, kind)
    ties, exclude = rng.permutation(700), rng.integers(-1, 700, 9)
    pieces = [(400, documents[400:]), (0, documents[:400])]
    expected = top_k(queries, documents, k, ties, exclude)
    results = ExactIndex(lambda: pieces, ties).search(queries, k, exclude)
    assert [array.tobytes() for array in results] == [array.tobytes() for array in expected]


FORK = """
import os, sys
import numpy as np
from raytriever.errors import ConfigError
from raytriever.index.exact.search import top_k
one = np.ones((1, 4), np.float32)
search = lambda: top_k(one, one, 1, np.arange(1))
def in_child():
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        search()
    except ConfigError as error:
        os._exit(3 if "spawn" in str(error) else 4)
    os._exit(0)
assert in_child() == 0  # nobody has searched yet
search()
assert in_child() == 3
"""


@pytest.mark.slow
def test_a_process_forked_from_one_that_searched_is_refused() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=100)
