"""The learning rate of step t: a linear rise over the warm-up, then a linear fall to zero."""

from __future__ import annotations


def learning_rate_scale(step: int, warmup_steps: int, total_steps: int) -> float:
    """The factor, 0 to 1, on the highest learning rate at `step` (counted from 0) of `total_steps`."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
