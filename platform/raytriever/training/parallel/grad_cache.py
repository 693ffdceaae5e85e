"""Gradient caching: a batch of any size in the memory of one chunk (Gao et al., 2021, arXiv:2101.06983).

1. Cut each side of the batch into chunks. A chunk is padded to its own longest text; the chunks are in order of length.
2. Encode every chunk without keeping activations; save the state of the dropout generators.
3. The loss of all embeddings gives dL/dembedding, and the gradients of the loss's own parameters.
4. Encode every chunk again, with the same dropout, and propagate its dL/dembedding to the parameters, where the
   gradients of the chunks add up. The last chunks are not encoded again: their activations are in memory from step 2.

All of this happens in forward. The result is the value of the loss as a function of the parameters, whose gradients
are known already: its backward delivers every gradient once. So a data-parallel wrapper sees one forward and one
backward, synchronizes once, and needs neither `no_sync` nor an accumulation boundary. Where it has several workers, the
backward pass of the smallest chunk is left to it, and it reduces gradients while it computes that one. A cached step
equals an uncached step over the same chunks, dropout included: both draw their masks chunk by chunk from the same
generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss import LossOutput
from raytriever.models.files import first_line
from raytriever.models.memory import is_out_of_memory
from raytriever.models.packing import TokenBatch, texts_of, tokens_of
from raytriever.prompts import Side


@dataclass(frozen=True)
class DropoutState:
    """State of the random generators of dropout: of the CPU, and of the device."""

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


T = TypeVar("T")
Encode = Callable[[TokenBatch, Side], Tensor]


def cached_loss(
    parts: Sequence[tuple[TokenBatch, Side]],
    encode: Encode,
    precision: Callable[[], AbstractContextManager[Any]],
    reduce: Callable[[Tensor], LossOutput],
    encoder: Sequence[nn.Parameter] | None,
    loss: Sequence[nn.Parameter],
    agreement: Agreement | None,
    keep: int = 1,
    leaves_part: bool = False,
) -> LossOutput:
    """Return the loss of a batch whose parts are encoded one at a time.

    Args:
        parts: chunks, each with its side.
        encode: one part to embeddings `[texts, width]`, float32.
        precision: the context of `encode`; entered once a pass, so that weights are cast once a pass.
        reduce: embeddings of all parts, in their order, to the loss.
        encoder: trained parameters behind `encode`; None where each part has a backward pass, which adds its gradients
            to them.
        loss: trained parameters behind `reduce`.
        agreement: Agreement of the workers on whether one ran out of memory; None where parts communicate.
        keep: how many of the last parts are encoded once, their activations kept over the loss; at least 1.
        leaves_part: leave the backward pass of the smallest part to that of the result. Then gradients are complete one
            after another, and a wrapper can reduce the first ones while it computes the others.

    Raises:
        OutOfMemory: a worker ran out of memory; no gradient has been delivered.
    """
    earlier, last = parts[:-keep], parts[-keep:]
    device = parts[0][0]["input_ids"].device
    states, earlier_embeddings = list[DropoutState](), list[Tensor]()

    def encode_all() -> list[Tensor]:
        """Return the embeddings of the last parts, with their activations."""
        # A cast made where nothing is differentiated must not serve a pass that differentiates: two contexts.
        with torch.no_grad(), precision():
            for part in earlier:
                states.append(DropoutState.now(device))
                earlier_embeddings.append(encode(*part))
        return [encode(*part) for part in last]

    last_embeddings = encode_all() if agreement is None else agreement.run(encode_all)
    after = DropoutState.now(device)

    embeddings = torch.cat([*earlier_embeddings, *(one.detach() for one in last_embeddings)]).requires_grad_()
    output = reduce(embeddings)
    by_embedding, *by_loss = torch.autograd.grad(output.value, [embeddings, *loss], allow_unused=True)

    pieces = by_embedding.split([texts_of(part) for part, _ in parts])
    # Smaller than others that fit: its backward pass, outside the agreement, does not run out of memory.
    left = min(range(len(parts)), key=lambda index: tokens_of(parts[index][0])) if leaves_part else None

    def differentiate() -> tuple[list[Tensor | None], list[Tensor]]:
        """Return the gradients of the encoder, summed over the parts; none where the parts add them up themselves.

        The second result are the embeddings of the part that is left.
        """
        total = None if encoder is None else _Total(encoder)
        add = torch.autograd.backward if total is None else total.add
        left_embeddings = list[Tensor]()
        while last_embeddings:
            embeddings, index = last_embeddings.pop(), len(earlier) + len(last_embeddings)
            if index == left:
                left_embeddings.append(embeddings)
            else:
                add(embeddings, pieces[index])
        with precision():
            for index in sorted(range(len(earlier)), key=lambda index: index == left):
                states[index].restore()
                embeddings = encode(*parts[index])
                if index == left:
                    left_embeddings.append(embeddings)
                else:
                    add(embeddings, pieces[index])
        return [] if total is None else total.gradients, left_embeddings

    gradients, left_embeddings = differentiate() if agreement is None else agreement.run(differentiate)
    after.restore()
    by_left = [pieces[left]] if left is not None else []
    value = _deliver(output.value, [*(encoder or ()), *loss, *left_embeddings], [*gradients, *by_loss, *by_left])
    return LossOutput(value, output.statistics)


class _Total:
    """Sum of the gradients of some parameters over the parts."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._parts = [0] * len(parameters)
        self.gradients: list[Tensor | None] = [None] * len(parameters)

    def add(self, embeddings: Tensor, gradient: Tensor) -> None:
        """Add the gradient of a part; a tower that did not encode it gets none."""
        gradients: Iterable[Tensor | None] = torch.autograd.grad(
            embeddings, self._parameters, gradient, allow_unused=True
        )
        totals, others = list[Tensor](), list[Tensor]()
        for index, part in enumerate(gradients):
            total = self.gradients[index]
            if part is None:
                continue
            # What autograd answers may be shared between parameters: only a sum of our own is added to in place.
            if total is None:
                self.gradients[index] = part
            elif self._parts[index] == 1:
                self.gradients[index] = total + part
            else:
                totals.append(total)
                others.append(part)
            self._parts[index] += 1
        if totals:
            torch._foreach_add_(totals, others)  # one launch for many parameters


def _deliver(value: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    existing = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    delivered: Tensor = _Delivery.apply(
        value.detach(), [gradient for _, gradient in existing], *(p for p, _ in existing)
    )
    return delivered


class _Delivery(torch.autograd.Function):
    """Value whose gradient is known."""

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


# -------------------------------------------------------------------------------------------------------- out of memory


class OutOfMemory(MemoryError):
    """A step ran out of memory on at least one worker."""


class Agreement:
    """Agreement of all workers on whether one of them ran out of memory, before any of them waits for another.

    One worker may run out of memory alone, because its texts are longer or its GPU is shared. The others would then
    wait for it in a collective for ever. So with gradient caching the workers agree twice a step, where no collective
    has begun: after all parts are encoded, and before the gradients are synchronized. They agree over gloo, in the
    memory of the CPU, so no worker waits for its GPU.

    A step that ran out of memory is repeated with half the chunk: `Strategy.abandon` discards what it left,
    `ChunkChoice.smaller` halves the chunk and stores it, and the loop does the step again. Elsewhere, with FSDP2 by
    block, and with FSDP2 of a torch before 2.13, a worker that runs out of memory raises. Ray Train then ends the
    others and restarts the group, with a smaller chunk.

    Args:
        workers: the group, for tensors in the memory of the CPU; all call the object in the same order.
    """

    def __init__(self, workers: WorkerGroup) -> None:
        self._workers = workers

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of this worker's own work, which calls no collective.

        Raises:
            OutOfMemory: a worker ran out of memory.
        """
        results: list[T] = []
        reason = "another worker ran out of memory"
        try:
            results.append(work())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)  # not the error: its traceback would keep the tensors of the step
        if self.maximum(not results):
            raise OutOfMemory(reason)
        return results[0]

    def maximum(self, number: int) -> int:
        """Return the largest number of all workers, without a wait for a GPU; all workers call it."""
        return int(self._workers.all_reduce(torch.tensor([number], dtype=torch.int32), "max"))
