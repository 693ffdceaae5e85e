"""Gradient caching: a batch of any size in the memory of one chunk (Gao et al., 2021, arXiv:2101.06983).

1. Cut queries and passages into chunks, in the order of their length. A chunk is padded to its own longest text.
2. Encode every chunk without keeping activations; save the state of the dropout generators.
3. Differentiate the loss L: this gives dL/dembedding, and the gradients of the loss's own parameters.
4. Encode every chunk again, with the same dropout, and propagate its dL/dembedding to the parameters, where the
   gradients of the chunks add up. The last chunks are not encoded again: step 2 kept their activations.

All of this happens in the forward pass. Its result is the value of the loss, with gradients that are already computed.
The backward pass only delivers each gradient once. So a data-parallel wrapper synchronizes once, and needs neither
`no_sync` nor an accumulation boundary. With several workers, the backward pass of the smallest chunk is left to the
wrapper, which reduces gradients while that pass computes others. A cached step equals an uncached step over the same
chunks, dropout included: both sample the masks of each chunk from the same generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from raytriever.losses.loss import LossOutput
from raytriever.models.packing import TokenBatch, texts_of, tokens_of
from raytriever.models.prompts import Side
from raytriever.training.parallel.out_of_memory import Vote


@dataclass(frozen=True)
class DropoutState:
    """State of the random generators that dropout uses, on the CPU and on the device."""

    device: torch.device
    on_cpu: Tensor
    on_device: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> DropoutState:
        """Return the current state."""
        on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), on_device)

    def restore(self) -> None:
        """Restore the state."""
        torch.set_rng_state(self.on_cpu)
        if self.on_device is not None:
            torch.cuda.set_rng_state(self.on_device, self.device)


Texts = tuple[TokenBatch, Side]  # one chunk of texts, and the side that they belong to
Encode = Callable[[TokenBatch, Side], Tensor]


@dataclass(eq=False)
class _Chunk:
    """Chunk of a batch, with the results of the passes over it."""

    tokens: TokenBatch
    side: Side
    state: DropoutState = field(init=False)  # dropout state before the first pass; not set if activations are kept
    embeddings: Tensor | None = None  # embeddings with their activations, until they are differentiated
    gradient: Tensor = field(init=False)  # gradient of the loss with respect to the embeddings


def cached_loss(
    texts: Sequence[Texts],
    encode: Encode,
    precision: Callable[[], AbstractContextManager[Any]],
    reduce: Callable[[Tensor], LossOutput],
    encoder: Sequence[nn.Parameter],
    loss: Sequence[nn.Parameter],
    vote: Vote | None,
    keep: int = 1,
    leaves_chunk: bool = False,
) -> LossOutput:
    """Return the loss of a batch whose chunks are encoded one at a time.

    Args:
        texts: texts of each chunk.
        encode: computes the embeddings of one chunk, `[texts, dim]` in float32.
        precision: autocast context of `encode`. Each pass enters it once, so that each pass casts the weights once.
        reduce: computes the loss from the embeddings of all chunks, in their order.
        encoder: trained parameters that `encode` uses.
        loss: trained parameters that `reduce` uses.
        vote: vote of the workers on whether one ran out of memory; None if chunks communicate (FSDP2). Then each chunk
            has its own backward pass, which adds its gradients to the parameters.
        keep: number of last chunks that are encoded only once: their activations are kept until backward; at least 1.
        leaves_chunk: leave the backward pass of the smallest chunk to the backward pass of the result. A wrapper can
            then reduce the gradients that are complete while it computes the others.

    Raises:
        OutOfMemory: a worker ran out of memory; no gradient has been delivered.
    """
    chunks = [_Chunk(tokens, side) for tokens, side in texts]
    earlier, last, device = chunks[:-keep], chunks[-keep:], chunks[0].tokens["input_ids"].device

    def encode_all() -> list[Tensor]:
        embeddings = []
        # Two contexts, because autocast caches the cast weights: a pass with gradients needs casts made with gradients.
        with torch.no_grad(), precision():
            for chunk in earlier:
                chunk.state = DropoutState.now(device)
                embeddings.append(encode(chunk.tokens, chunk.side))
        for chunk in last:
            chunk.embeddings = encode(chunk.tokens, chunk.side)
            embeddings.append(chunk.embeddings.detach())
        return embeddings

    embeddings = torch.cat(encode_all() if vote is None else vote.run(encode_all)).requires_grad_()
    after = DropoutState.now(device)
    output = reduce(embeddings)
    by_embedding, *by_loss = torch.autograd.grad(output.value, [embeddings, *loss], allow_unused=True)
    for chunk, gradient in zip(chunks, by_embedding.split([texts_of(chunk.tokens) for chunk in chunks]), strict=True):
        chunk.gradient = gradient
    # The smallest chunk is left for the backward pass of the result. It fits into memory, as larger chunks have fitted.
    left = min(chunks, key=lambda chunk: tokens_of(chunk.tokens)) if leaves_chunk else None
    total = None if vote is None else _Total(encoder)

    def differentiate() -> None:
        """Add up the gradients of all chunks except `left`, and encode `left` last."""
        add = torch.autograd.backward if total is None else total.add
        for chunk in reversed(last):
            if chunk is not left and chunk.embeddings is not None:
                add(chunk.embeddings, chunk.gradient)
                chunk.embeddings = None
        with precision():
            for chunk in sorted(earlier, key=lambda chunk: chunk is left):
                chunk.state.restore()
                embeddings = encode(chunk.tokens, chunk.side)
                if chunk is left:
                    chunk.embeddings = embeddings
                else:
                    add(embeddings, chunk.gradient)

    if vote is None:
        differentiate()
    else:
        vote.run(differentiate)
    after.restore()
    known: list[tuple[Any, Tensor | None]] = list(zip(loss, by_loss, strict=True))
    if total is not None:
        known = [*zip(encoder, total.gradients, strict=True), *known]
    if left is not None:
        known.append((left.embeddings, left.gradient))
    return LossOutput(_deliver(output.value, known), output.statistics)


def count_kept(texts: Sequence[Texts], tokens: int) -> int:
    """Return the largest number of last chunks with at most `tokens` tokens in total, but at least 1."""
    kept = total = 0
    for chunk, _ in reversed(texts):
        total += tokens_of(chunk)
        if kept and total > tokens:
            break
        kept += 1
    return kept


class _Total:
    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._chunks = [0] * len(parameters)
        self.gradients: list[Tensor | None] = [None] * len(parameters)

    def add(self, embeddings: Tensor, gradient: Tensor) -> None:
        """Add the gradients of a chunk. A tower that did not encode the chunk gets none."""
        gradients: Iterable[Tensor | None] = torch.autograd.grad(
            embeddings, self._parameters, gradient, allow_unused=True
        )
        totals, others = list[Tensor](), list[Tensor]()
        for index, of_chunk in enumerate(gradients):
            total = self.gradients[index]
            if of_chunk is None:
                continue
            # Autograd may return one tensor for several parameters. So only sums made here are changed in place.
            if total is None:
                self.gradients[index] = of_chunk
            elif self._chunks[index] == 1:
                self.gradients[index] = total + of_chunk
            else:
                totals.append(total)
                others.append(of_chunk)
            self._chunks[index] += 1
        if totals:
            torch._foreach_add_(totals, others)  # one kernel launch for many parameters


def _deliver(value: Tensor, known: Iterable[tuple[Any, Tensor | None]]) -> Tensor:
    """Return `value` as a function of the `known` tensors, so that backward delivers their gradients."""
    existing = [(tensor, gradient) for tensor, gradient in known if gradient is not None]
    delivered: Tensor = _Delivery.apply(
        value.detach(), [gradient for _, gradient in existing], *(tensor for tensor, _ in existing)
    )
    return delivered


class _Delivery(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Gradients are scaled and released one at a time, so that scaling takes the memory of only one parameter.
        gradients = ctx.gradients[::-1]
        ctx.gradients = []
        return None, None, *(gradients.pop() * grad for _ in range(len(gradients)))
