"""Collectives that a loss uses in a data-parallel group: four operations, and a global mean from them.

Gradient convention, as in PyTorch's differentiable all-gather: `gather` returns gradients to their owner as a sum. The
loss of each worker is the share of its own rows times the number of workers. The data-parallel average then gives the
gradients of one process with the whole global batch."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class WorkerGroup(Protocol):
    """Data-parallel group, seen from one worker. All workers call every collective in the same order."""

    @property
    def rank(self) -> int:
        """Rank of this worker, from 0."""

    @property
    def size(self) -> int:
        """Number of workers."""

    def gather(self, rows: Tensor, sent: torch.dtype | None = None) -> Tensor:
        """Return the rows of all workers in rank order. The gradient of a row returns to its owner, summed.

        Args:
            rows: of this worker.
            sent: type to which rows and returned gradients are rounded on their way, with any number of workers; None
                for that of the rows. Sums have the type of the rows.
        """

    def gather_values(self, rows: Tensor) -> Tensor:
        """Return the rows of all workers in rank order, without gradient."""

    def sum(self, value: Tensor) -> Tensor:
        """Return the elementwise sum over the workers, without gradient."""

    def maximum(self, value: Tensor) -> Tensor:
        """Return the elementwise maximum over the workers, without gradient."""


class _Alone:
    """Group of one worker: every collective is the identity."""

    rank = 0
    size = 1

    def gather(self, rows: Tensor, sent: torch.dtype | None = None) -> Tensor:
        return rows if sent is None else rows.to(sent).to(rows.dtype)

    def gather_values(self, rows: Tensor) -> Tensor:
        return rows.detach()

    def sum(self, value: Tensor) -> Tensor:
        return value.detach()

    def maximum(self, value: Tensor) -> Tensor:
        return value.detach()


ALONE: WorkerGroup = _Alone()


def sum_shares(share: Float[Tensor, ""], workers: WorkerGroup) -> Float[Tensor, ""]:
    """Return the sum of all workers' shares. Its gradient is `workers.size` times that of this worker's share.

    The average of the gradients over the workers divides by their number again, so parameters receive the gradient of
    the sum.
    """
    if workers.size == 1:
        return share
    scaled = share * workers.size
    return workers.sum(share) + (scaled - scaled.detach())
