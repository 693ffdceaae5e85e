"""Memory of one training worker that follows from the settings and the number of weights, on any device.

Two callers add the activations to it. The memory plan simulates them before a run. The search for a chunk size
measures them at the start of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raytriever.losses.score_matrix import panel_height
from raytriever.training.training_settings import TrainingConfig

FLOAT = 4
# Number of values per message of ZeRO. DeepSpeed's default is ten times as large, and would reserve 2 GB of float32.
ZERO_BUCKET = 50_000_000


@dataclass(frozen=True)
class StateBytes:
    """Bytes in addition to the gathered weights: one worker's shard of the weights, its gradients and optimizer states.

    - Shard: `zero3` and `fsdp2` store a shard of the weights on each worker. During a step, `zero3` gathers all
      weights and `fsdp2` a block at a time.
    - Gradients: the sum over the chunks (float32, trained weights only), and the copy that DDP synchronizes between
      workers. Instead of that copy, ZeRO has a message buffer; `zero3` also has the worker's shard of the
      gradients, and the gradient of the largest parameter. `fsdp2` has only the worker's shard of the gradients.
    - Optimizer: the two moments of AdamW in float32. ZeRO and `fsdp2` divide them by the number of workers. ZeRO adds a
      float32 copy of the worker's shard of the trained weights. Offloaded states use no GPU memory."""

    local: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Sum over all fields."""
        return self.local + self.gradients + self.optimizer

    @classmethod
    def of(
        cls, settings: TrainingConfig, workers: int, weights: int, trained: Sequence[int], cached: bool
    ) -> StateBytes:
        """Return the bytes of one worker.

        Args:
            weights: bytes of all weights.
            trained: number of values of each trained parameter.
            cached: True if gradients are summed over chunks.
        """
        own, strategy = FLOAT * sum(trained), settings.strategy
        gradients = own * cached
        if strategy == "fsdp2":
            return cls(weights // workers, own // workers, -(-2 * own // workers))
        if strategy in ("zero1", "zero2", "zero3"):
            local = 0
            gradients += FLOAT * ZERO_BUCKET
            if strategy == "zero3":
                local = weights // workers
                gradients += own // workers + FLOAT * max(trained)
            return cls(local, gradients, 0 if settings.offload_optimizer else -(-3 * own // workers))
        return cls(0, gradients + own * (workers > 1), 2 * own)


@dataclass(frozen=True)
class WorkerTexts:
    """Texts of at most `tokens` tokens that one worker encodes and scores in a step, with embeddings of `dim`
    dimensions."""

    queries: int
    passages: int
    workers: int
    tokens: int
    dim: int

    @property
    def texts(self) -> int:
        """Number of queries and passages."""
        return self.queries + self.passages


def batch_bytes(local: WorkerTexts, device: str) -> int:
    """Return the bytes of the embeddings of the whole batch and of the scores, in float32, on a type of device.

    Three copies of a worker's own embeddings exist at once: by chunk, joined, and in the order of the batch. The loss
    has three tensors: scaled or gathered embeddings, their gradient, and the scaled gradient. Each is as large as the
    embeddings of this worker's queries and of all workers' passages. The loss also has one block of scores, whose size
    depends on the type of device, and a temporary tensor of the same size."""
    candidates = local.workers * local.passages
    panel = candidates * panel_height(local.queries, FLOAT * candidates, device)
    return FLOAT * (3 * local.dim * (local.texts + local.queries + candidates) + 2 * panel)


def guide_bytes(weights: int, precision: str, dim: int, local: WorkerTexts) -> int:
    """Return the bytes of a guide: its weights, and its embeddings of this worker's texts and all workers' passages."""
    embeddings = FLOAT * dim * (local.texts + local.workers * local.passages)
    return weights * (2 if precision == "bf16" else FLOAT) + embeddings
