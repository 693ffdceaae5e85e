"""Gradient caching: a batch of any size in the memory of one part (Gao et al., 2021, arXiv:2101.06983).

1. Encode every part without keeping activations, remembering where the dropout generators stood.
2. The loss of all embeddings gives dL/dembedding, and the gradients of the loss's own parameters.
3. Encode every part again, with the same dropout, and carry its dL/dembedding back to the parameters, where the
   parts add up. The last parts, as many as a chunk holds together, are still at hand from 1 and not encoded twice.

All of this happens in forward. What is returned is the loss's value as a function of the parameters whose gradient is
known already, as in the engine of the losses: its backward delivers every gradient once. So a data-parallel wrapper
sees one forward and one backward, synchronises once, and needs neither `no_sync` nor an accumulation boundary; and a
cached step equals one that is not cached over the same parts, dropout included, because both draw their masks part by
part, in the same order, from the same generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from raytriever.losses.loss import LossOutput
from raytriever.models.buckets import Buckets
from raytriever.models.encoder import TokenBatch
from raytriever.models.retriever import Side
from raytriever.parallel.dropout_state import DropoutState

Encode = Callable[[TokenBatch, Side], Tensor]


def cached_loss(
    queries: Buckets,
    passages: Buckets,
    encode: Encode,
    precision: Callable[[], AbstractContextManager[Any]],
    reduce: Callable[[Tensor, Tensor], LossOutput],
    encoder: Sequence[nn.Parameter],
    loss: Sequence[nn.Parameter],
    keep: int = 1,
) -> LossOutput:
    """The loss of a batch whose parts are encoded one at a time.

    Args:
        queries: parts of one side.
        passages: parts of the other.
        encode: one part to embeddings `[texts, width]`, float32.
        precision: the context of `encode`; entered once a pass, so that weights are cast once a pass.
        reduce: embeddings of queries and passages, in the order of the batch, to the loss.
        encoder: trained parameters behind `encode`.
        loss: trained parameters behind `reduce`.
        keep: how many of the last parts are encoded once, their activations kept over the loss; at least 1.
    """
    parts: list[tuple[TokenBatch, Side]] = [(part, "query") for part in queries.parts]
    parts += [(part, "passage") for part in passages.parts]
    earlier, last = parts[:-keep], parts[-keep:]
    device = queries.places.device
    states, found = [], []
    # A cast made where nothing is differentiated must not serve a pass that differentiates: two contexts.
    with torch.no_grad(), precision():
        for part in earlier:
            states.append(DropoutState.now(device))
            found.append(encode(*part))
    kept = [encode(*part) for part in last]
    after = DropoutState.now(device)

    embeddings = torch.cat([*found, *(one.detach() for one in kept)]).requires_grad_()
    sides = embeddings.split([len(queries.places), len(passages.places)])
    output = reduce(sides[0][queries.places], sides[1][passages.places])
    by_embedding, *by_loss = torch.autograd.grad(output.value, [embeddings, *loss], allow_unused=True)

    total = _Total(encoder)
    pieces = by_embedding.split([len(part["input_ids"]) for part, _ in parts])
    while kept:
        total.add(kept.pop(), pieces[len(earlier) + len(kept)])
    with precision():
        for part, state, piece in zip(earlier, states, pieces, strict=False):
            state.restore()
            total.add(encode(*part), piece)
    after.restore()
    return LossOutput(_deliver(output.value, [*encoder, *loss], [*total.gradients, *by_loss]), output.statistics)


class _Total:
    """The gradient of some parameters, summed over the parts."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._parts = [0] * len(parameters)
        self.gradients: list[Tensor | None] = [None] * len(parameters)

    def add(self, embeddings: Tensor, gradient: Tensor) -> None:
        """Carry a part's gradient back; a tower that did not encode it gets none."""
        found: Iterable[Tensor | None] = torch.autograd.grad(embeddings, self._parameters, gradient, allow_unused=True)
        for place, one in enumerate(found):
            held = self.gradients[place]
            if one is None:
                continue
            # What autograd answers may be shared between parameters: only a sum of our own is added to in place.
            if held is None:
                self.gradients[place] = one
            elif self._parts[place] == 1:
                self.gradients[place] = held + one
            else:
                held += one
            self._parts[place] += 1


def _deliver(value: Tensor, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> Tensor:
    known = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    delivered: Tensor = _Delivery.apply(value.detach(), [gradient for _, gradient in known], *(p for p, _ in known))
    return delivered


class _Delivery(torch.autograd.Function):
    """A value with a gradient that is known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # One at a time, so that scaling takes the memory of one parameter.
        gradients = ctx.gradients[::-1]
        ctx.gradients = []
        return None, None, *(gradients.pop() * grad for _ in range(len(gradients)))
