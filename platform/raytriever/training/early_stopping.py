"""Early stopping: which checkpoint is the best, and after which validation training stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainerState:
    """Progress of a run: the step, and the state of early stopping."""

    step: int = 0  # number of optimizer steps done
    best_step: int = 0  # step of the best checkpoint (the earliest if several are equal); 0 before the first validation
    # Value of the metric `best_metric` at `best_step`; higher is better, so a dev loss is negated.
    best_value: float = float("-inf")
    validations_without: int = 0  # number of validations since the best checkpoint
    stopped: bool = False  # True if early stopping has ended the run

    def after_validation(self, step: int, value: float, patience: int) -> TrainerState:
        """Return the trainer state after the validation at `step`. NaN is never better than another value."""
        if value > self.best_value:
            return TrainerState(step, step, value)
        without = self.validations_without + 1
        return TrainerState(step, self.best_step, self.best_value, without, without >= patience)


def summarize(values: Mapping[int, float], patience: int) -> TrainerState:
    """Return the trainer state after validations. `values` has the value of each step; a higher value is better. Values
    are used in the order of the steps until patience is exhausted."""
    trainer_state = TrainerState()
    for step, value in sorted(values.items()):
        trainer_state = trainer_state.after_validation(step, value, patience)
        if trainer_state.stopped:
            break
    return trainer_state
