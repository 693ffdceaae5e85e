"""Collectives that a loss uses in a data-parallel group: four operations, and a global mean built on them.

Gradient convention (as in PyTorch's own differentiable all-gather): `gather` returns gradients to their owner as a
sum, every worker's loss is its own rows' share times the number of workers, and the data-parallel average then gives
the gradients of one process that holds the whole global batch."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Workers(Protocol):
    """A data-parallel group seen from one worker. All call every collective, in the same order."""

    @property
    def rank(self) -> int:
        """This worker's place, from 0."""

    @property
    def size(self) -> int:
        """How many workers there are."""

    def gather(self, rows: Tensor) -> Tensor:
        """All workers' rows, in the order of rank; the gradient of a row returns summed to its owner."""

    def gather_values(self, rows: Tensor) -> Tensor:
        """All workers' rows without gradient."""

    def sum(self, value: Tensor) -> Tensor:
        """The elementwise sum over the workers, without gradient."""

    def maximum(self, value: Tensor) -> Tensor:
        """The elementwise maximum over the workers, without gradient."""


class _Alone:
    """A group of one: every collective is the identity."""

    rank = 0
    size = 1

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def gather_values(self, rows: Tensor) -> Tensor:
        return rows.detach()

    def sum(self, value: Tensor) -> Tensor:
        return value.detach()

    def maximum(self, value: Tensor) -> Tensor:
        return value.detach()


ALONE: Workers = _Alone()


def of_global_mean(share: Float[Tensor, ""], workers: Workers) -> Float[Tensor, ""]:
    """The sum of all workers' shares, whose gradient is `workers.size` times this worker's own share.

    Averaging gradients over the workers divides by their number again, so parameters receive the gradient
    of the sum.
    """
    scaled = share * workers.size
    return workers.sum(share) + (scaled - scaled.detach())
