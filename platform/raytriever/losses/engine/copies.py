"""Copies from the memory of the CPU to a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_ALIGNMENT = 16  # bytes; of each tensor in the one that is copied


def copy_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return copies of tensors of the CPU on a GPU, made by one copy of pinned memory that nobody waits for.

    The copies share one storage.
    """
    sizes = [-(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    for tensor, piece in zip(tensors, pinned.split(sizes), strict=True):
        piece[: tensor.numel() * tensor.element_size()].view(tensor.dtype).copy_(tensor.reshape(-1))
    pieces = pinned.to(device, non_blocking=True).split(sizes)
    return [
        piece[: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        for tensor, piece in zip(tensors, pieces, strict=True)
    ]


def copy_all(transform: Callable[[Callable[[Tensor], Tensor]], T], device: torch.device) -> T:
    """Return what `transform` makes of copies of its tensors on a device; to a GPU all go in one copy.

    Args:
        transform: calls its argument with each tensor, always in the same order, and uses the result in its place.
        device: of the copies.
    """
    if device.type != "cuda":
        return transform(lambda tensor: tensor.to(device))
    tensors = list[Tensor]()

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    transform(collect)
    copies = iter(copy_together(tensors, device))
    return transform(lambda _: next(copies))
