"""An evaluator that reads the checkpoint it gets and answers when its script says: a value that the weights decide.

Real checkpoints and real records, so that all but the retrieval is what a run meets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raytriever.models.checkpoint import WEIGHTS
from raytriever.models.slices import read_slices
from raytriever.store.commit import read_manifest
from raytriever.training.background import JobError
from raytriever.training.validation import Record, ValidationPlan, read_record, write_record


@dataclass
class ScriptedEvaluator:
    """Answers an evaluation when it has been asked for the answer so often.

    Args:
        folder: of the records.
        values: of each step; where a step has none, a number that its weights decide.
        lag: times it says nothing, one for each evaluation begun here; the last for all that follow.
        fails: steps whose evaluation comes to nothing.
    """

    folder: Path
    values: Mapping[int, float] = field(default_factory=dict)
    lag: Sequence[int] = (0,)
    fails: Sequence[int] = ()
    begun: list[int] = field(default_factory=list)
    asked: int = 0
    before: Callable[[int], None] = lambda step: None

    def submit(self, step: int, checkpoint: Path) -> None:
        read_manifest(checkpoint)
        self.begun.append(step)
        self.asked = 0
        weights = sum(float(one.values.double().abs().sum()) for one in read_slices(checkpoint, WEIGHTS))
        if step not in self.fails and read_record(self.folder, step) is None:
            value = self.values.get(step, weights)
            write_record(self.folder, Record(step, value, {"dev/ndcg_at_10": value, "dev/weights": weights}))

    def poll(self) -> Record | None:
        self.asked += 1
        if self.asked <= self.lag[min(len(self.begun), len(self.lag)) - 1]:
            return None
        step = self.begun[-1]
        self.before(step)
        if step in self.fails:
            raise JobError("the evaluator is gone")
        return read_record(self.folder, step)


def plan(
    evaluator: ScriptedEvaluator,
    on_metrics: Callable[[int, Mapping[str, float]], None],
    behind: int = 2,
    rank: int = 0,
    last_logged_step: int = 0,
) -> ValidationPlan:
    """A plan whose first worker has the evaluator."""
    return ValidationPlan(
        folder=evaluator.folder,
        behind=behind,
        evaluator=evaluator if rank == 0 else None,
        on_metrics=on_metrics,
        last_logged_step=last_logged_step,
        digest="letters",
    )
