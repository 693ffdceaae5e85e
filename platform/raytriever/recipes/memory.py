"""What training takes of a worker's memory, in bytes, reckoned before it is tried.

Weights are float32 under every strategy. Of weights, gradients and AdamW's two moments, ZeRO shards the moments (stage
1), the gradients too (2) and the weights too (3) over W workers (Rajbhandari et al., 2020, arXiv:1910.02054, figure 1).
DeepSpeed adds a float32 copy of the weights that a worker updates, though the weights are float32 already. Buffers of
collectives come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.training.config import STRATEGIES

FLOAT32, BFLOAT16 = 4, 2
# What a block keeps of each token for backward, in bytes a component of its width, under bf16 autocast and with
# attention that keeps no scores (`sdpa` on a GPU): counted on XLM-R's blocks, and held to them by a test.
BLOCK = 40
# With dropout a byte more for each of its two masks.
MASKS = 2


@dataclass(frozen=True)
class StateMemory:
    """Bytes on one worker.

    Args:
        weights: the model's, and the copy of them that a sharded optimiser updates.
        gradients: at their most, while backward makes them.
        moments: AdamW's two.
    """

    weights: int
    gradients: int
    moments: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.moments


def state_memory(
    parameters: int, strategy: str = "ddp", workers: int = 1, trained: int | None = None, cached: bool = False
) -> StateMemory:
    """Weights, gradients and moments within a step, on each of W workers.

    Args:
        parameters: of the model.
        strategy: one of `STRATEGIES`.
        workers: W, at least 1.
        trained: those of the parameters that are; all when None, the adapters' under LoRA.
        cached: whether gradients are cached: their sum over the parts is whole on every worker.

    Raises:
        ValueError: there is no such strategy.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"{strategy!r} is none of {', '.join(STRATEGIES)}")
    trained = parameters if trained is None else trained
    stage = int(strategy[-1]) if strategy.startswith("zero") else 0
    weights, gradients, moments = parameters, trained, 2 * trained
    if stage:
        weights += _share(trained, workers)
        moments = 2 * _share(trained, workers)
    if stage >= 2 and not cached:
        gradients = _share(trained, workers)
    if stage == 3:
        # Between steps a worker holds its share alone; within one all of them beside it.
        weights += _share(parameters, workers)
    return StateMemory(FLOAT32 * weights, FLOAT32 * gradients, FLOAT32 * moments)


def activation_memory(tokens: int, width: int, layers: int, checkpointing: bool = False, dropout: bool = True) -> int:
    """What the blocks of an encoder keep for backward, in bf16, on one worker.

    Args:
        tokens: encoded at a time, padding included: texts times length.
        width: of a token's state; the feed-forward layer is four times as wide.
        layers: blocks.
        checkpointing: each block keeps its input alone, in float32, and one block at a time all of it.
        dropout: whether masks are kept.
    """
    block = (BLOCK + (MASKS if dropout else 0)) * width
    return tokens * (FLOAT32 * width * layers + block if checkpointing else block * layers)


def _share(values: int, workers: int) -> int:
    return -(-values // workers)
