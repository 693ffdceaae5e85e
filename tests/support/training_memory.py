"""Estimates of the memory that training needs on a worker, in bytes; the documentation of recipes quotes them.

Weights are float32 under every strategy. Of weights, gradients and AdamW's two moments, ZeRO shards the moments (stage
1), the gradients too (2) and the weights too (3) over W workers (Rajbhandari et al., 2020, arXiv:1910.02054, figure 1).
DeepSpeed adds a float32 copy of the weights that a worker updates, although the weights are float32 already. FSDP2
shards all of them, and gathers the weights of one block, which are not counted, nor are buffers of collectives.
"""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.training.config import STRATEGIES

FLOAT32, BFLOAT16 = 4, 2
# Bytes that a block keeps for backward, per token and component of its width, under bf16 autocast and with attention
# that keeps no scores (`sdpa` on a GPU).
BLOCK = 40
# Dropout adds one byte for each of its two masks.
MASKS = 2


@dataclass(frozen=True)
class StateMemory:
    """Bytes on one worker.

    Args:
        weights: weights of the model, and the copy that a sharded optimiser updates.
        gradients: gradients at their peak, during backward.
        moments: the two moments of AdamW.
    """

    weights: int
    gradients: int
    moments: int

    @property
    def total(self) -> int:
        """Sum of all."""
        return self.weights + self.gradients + self.moments


def state_memory(
    parameters: int, strategy: str = "ddp", workers: int = 1, trained: int | None = None, cached: bool = False
) -> StateMemory:
    """Return the memory of weights, gradients and moments within a step, on each of W workers.

    Args:
        parameters: number of parameters of the model.
        strategy: one of `STRATEGIES`.
        workers: W, at least 1.
        trained: number of trained parameters, such as those of LoRA adapters; all parameters when None.
        cached: True if gradients are cached: every worker then keeps their whole sum over the chunks.

    Raises:
        ValueError: the strategy is unknown.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"{strategy!r} is none of {', '.join(STRATEGIES)}")
    trained = parameters if trained is None else trained
    stage = int(strategy[-1]) if strategy.startswith("zero") else 0
    weights, gradients, moments = parameters, trained, 2 * trained
    if strategy == "fsdp2":
        weights, gradients = _share(parameters, workers), _share(trained, workers)
        moments = 2 * _share(trained, workers)
    if stage:
        weights += _share(trained, workers)
        moments = 2 * _share(trained, workers)
    if stage >= 2 and not cached:
        gradients = _share(trained, workers)
    if stage == 3:
        # Between steps a worker holds its share only; within a step it holds all weights, too.
        weights += _share(parameters, workers)
    return StateMemory(FLOAT32 * weights, FLOAT32 * gradients, FLOAT32 * moments)


def activation_memory(tokens: int, width: int, layers: int, checkpointing: bool = False, dropout: bool = True) -> int:
    """Return the memory that the blocks of an encoder keep for backward, in bf16, on one worker.

    Args:
        tokens: number of tokens in one pass with padding: texts times length.
        width: width of the state of a token; the feed-forward layer is four times as wide.
        layers: number of blocks.
        checkpointing: True if each block keeps only its input, in float32, and one block at a time keeps everything.
        dropout: True if masks are kept.
    """
    block = (BLOCK + (MASKS if dropout else 0)) * width
    return tokens * (FLOAT32 * width * layers + block if checkpointing else block * layers)


def _share(values: int, workers: int) -> int:
    return -(-values // workers)
