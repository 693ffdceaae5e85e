"""Memory plan of one training worker: bytes by purpose, and the largest chunk of gradient caching that fits.

The bytes are those at the peak of a step. The peak is in the backward pass of a chunk, while the gradients of earlier
chunks and the embeddings of the whole batch exist.

- Weights: as prepared for training. `fsdp2` gathers two blocks at a time, the current and the next one, by messages
  that are copies of them. A worker stores only its shard of the gradients, and frees a chunk's gradients one by one.
- The worker's shard of the weights, its gradients and its optimizer states: see `StateBytes`.
- Cast weights: bf16 copies of float32 weights, which autocast makes and keeps for a pass over all chunks.
- Batch: embeddings in float32 and one block of scores; see `batch_bytes`.
- Guide: all weights of the encoder that masks false negatives, and its embeddings.
- Activations and temporary tensors: simulated from the architecture; see `simulated_encoder`. Temporary tensors
  include autograd's gradients of a chunk."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, cached_property

from raytriever.training.memory.memory_of_states import StateBytes, WorkerTexts, batch_bytes
from raytriever.training.memory.simulated_encoder import SimulatedEncoder
from raytriever.training.training_settings import TrainingConfig

# Fraction of the memory that stays free for the CUDA context, fragmentation, and workspaces of libraries. On a CPU,
# oneDNN packs the operands of a bf16 product into up to 1 MB.
MARGIN = 0.1


@dataclass(frozen=True)
class StepMemory:
    """Bytes of one worker at the peak of a step, by purpose."""

    weights: int
    gradients: int
    optimizer: int
    cast: int
    batch: int
    guide: int
    activations: int
    temporary: int

    @property
    def total(self) -> int:
        """Sum over all purposes."""
        return sum(getattr(self, field.name) for field in fields(self))


class MemoryPlan:
    """Memory of one worker as a function of the chunk size.

    Args:
        encoder: the simulated encoder. If there are two towers, it is the passage tower.
        towers: number of separate towers, 1 or 2.
        guide: bytes of the guide; see `guide_bytes`.
    """

    def __init__(
        self, encoder: SimulatedEncoder, towers: int, training: TrainingConfig, local: WorkerTexts, guide: int = 0
    ) -> None:
        self.encoder, self.towers, self.training, self.local, self.guide = encoder, towers, training, local, guide
        self._chunk = cache(lambda texts: encoder.chunk_bytes(texts, local.tokens, training.strategy == "fsdp2"))

    @cached_property
    def trained(self) -> int:
        """Number of trained weights."""
        return self.towers * sum(parameter.numel() for parameter in self.encoder.trained)

    @cached_property
    def weights(self) -> dict[str, int]:
        """Number of weights by type, such as `bfloat16`."""
        counts: dict[str, int] = {}
        for tensor in self.encoder.encoder.parameters():
            name = str(tensor.dtype).removeprefix("torch.")
            counts[name] = counts.get(name, 0) + self.towers * tensor.numel()
        return counts

    def parts(self, texts: int) -> StepMemory:
        """Return the bytes if a chunk has `texts` texts. With all texts in one chunk, gradients are not cached."""
        settings, workers = self.training, self.local.workers
        weights = self.towers * sum(p.nbytes for p in self.encoder.encoder.parameters())
        sizes = [parameter.numel() for parameter in self.encoder.trained] * self.towers
        state = StateBytes.of(settings, workers, weights, sizes, texts < self.local.texts)
        if settings.strategy == "fsdp2":
            # Peak: the weights outside blocks, plus their message or two blocks and a message, whichever is larger.
            sizes = [sum(p.nbytes for p in block.parameters()) for block in self.encoder.encoder.blocks]
            rest = weights - self.towers * sum(sizes)
            weights = rest + max(rest, 3 * max(sizes, default=0))
        chunk = self._chunk(texts)
        return StepMemory(
            weights + state.local,
            state.gradients,
            state.optimizer,
            chunk.cast,
            batch_bytes(self.local, self.encoder.device),
            self.guide,
            chunk.kept,
            chunk.peak - chunk.kept - chunk.cast,
        )

    def largest(self, budget: int) -> int:
        """Return the number of texts in the largest chunk whose bytes are at most `budget`, or up to 2 % fewer texts.

        All texts have the greatest length. The result is 0 if not even one text fits. Bytes are almost linear in the
        number of texts, so few chunks are simulated."""
        parts, fits, fails = self.parts, 1, self.local.texts
        if parts(fails).total <= budget:  # the most frequent case needs only one simulation
            return fails
        if parts(fits).total > budget:
            return 0
        step = 1
        while fails - fits > 1 + fits // 50:
            low, high = parts(fits).total, max(parts(fails).total, budget + 1)
            line = fits + int((budget - low) / (high - low) * (fails - fits))
            texts = min(max(line, fits + step), fails - 1)
            if parts(texts).total <= budget:
                fits, step = texts, 2 * step
            else:
                fails, step = texts, 1
        return fits
