"""Workers that are threads of one process and meet in every collective."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Literal, TypeVar

import torch

from raytriever.losses.distributed import WorkerGroup

T = TypeVar("T")


class Threads(WorkerGroup):
    """One of several workers that are threads and meet in every collective; no gradient passes."""

    def __init__(self, rank: int, size: int, table: list[torch.Tensor | None], meeting: Barrier) -> None:
        super().__init__(rank=rank, size=size)
        self._table, self._meeting = table, meeting

    def _all(self, rows: torch.Tensor) -> list[torch.Tensor]:
        self._table[self.rank] = rows.detach()
        self._meeting.wait()
        results = list(self._table)
        self._meeting.wait()
        return results

    def all_gather(self, rows: torch.Tensor, sent: torch.dtype | None = None) -> torch.Tensor:
        return torch.cat(self._all(rows.to(sent or rows.dtype))).to(rows.dtype)

    def all_reduce(self, value: torch.Tensor, op: Literal["sum", "max"] = "sum") -> torch.Tensor:
        values = torch.stack(self._all(value))
        return values.sum(0) if op == "sum" else values.amax(0)


def on_workers(size: int, work: Callable[[Threads], T]) -> list[T]:
    """Return the result of each of `size` workers."""
    table, meeting = [None] * size, Barrier(size, timeout=30)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(Threads(rank, size, table, meeting)), range(size)))
