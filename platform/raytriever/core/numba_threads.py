"""Compiled functions in several threads, without numba's `prange`, which takes seconds to compile."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch

# Parts of the work per thread. With several parts, a thread on a fast core can do more of them than one on a slow core.
PARTS = 4


def in_threads(kernel: Callable[..., None], count: int, *arguments: Any, threads: int | None = None) -> None:
    """Call `kernel(first, last, *arguments)` for parts of `range(count)`, by default in as many threads as torch uses.
    The kernel releases the GIL. A thread that is done takes the next part, because cores are not equally fast."""
    threads = max(1, min(threads or torch.get_num_threads(), count))
    parts = 1 if threads == 1 else min(PARTS * threads, count)
    bounds = [count * number // parts for number in range(parts + 1)]
    ranges = iter([*pairwise(bounds)])  # a list's iterator is thread-safe: each part goes to one thread

    def work() -> None:
        for first, last in ranges:
            kernel(first, last, *arguments)

    others = [thread_pool(threads).submit(work) for _ in range(1, threads)]
    work()
    for other in others:
        other.result()


@cache
def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Return a thread pool. Later calls with the same number of threads get the same pool."""
    return ThreadPoolExecutor(threads)


os.register_at_fork(after_in_child=thread_pool.cache_clear)  # threads do not survive a fork
