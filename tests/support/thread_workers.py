"""Workers that are threads of one process and meet in every collective."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch

T = TypeVar("T")


class Threads:
    """One of several workers that are threads and meet in every collective."""

    def __init__(self, rank: int, size: int, table: list[torch.Tensor | None], meeting: Barrier) -> None:
        self.rank, self.size, self._table, self._meeting = rank, size, table, meeting

    def _all(self, rows: torch.Tensor) -> list[torch.Tensor]:
        self._table[self.rank] = rows.detach()
        self._meeting.wait()
        results = list(self._table)
        self._meeting.wait()
        return results

    def gather(self, rows: torch.Tensor, sent: torch.dtype | None = None) -> torch.Tensor:
        return self.gather_values(rows.to(sent or rows.dtype)).to(rows.dtype)

    def gather_values(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._all(rows))

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(value)).sum(0)

    def maximum(self, value: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(value)).amax(0)


def on_workers(size: int, work: Callable[[Threads], T]) -> list[T]:
    """Return the result of each of `size` workers."""
    table, meeting = [None] * size, Barrier(size, timeout=30)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(Threads(rank, size, table, meeting)), range(size)))
