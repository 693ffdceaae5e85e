"""What workers tell the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepNews:
    """What was measured after a step."""

    step: int
    measured: Mapping[str, float]


@dataclass(frozen=True)
class Evaluated:
    """What the checkpoint of a step was worth in retrieval from dev data; later steps may have been told of by then."""

    step: int
    measured: Mapping[str, float]


@dataclass(frozen=True)
class Notice:
    """A line for the person."""

    text: str


@dataclass(frozen=True)
class Phase:
    """What the first worker does until its next step, as `loading the encoder`; shown when it takes long."""

    text: str


@dataclass(frozen=True)
class Saving:
    """The checkpoint of a step is written and about to be committed: all that was told before must stand by then."""

    step: int


@dataclass(frozen=True)
class GivenUp:
    """Workers failed too often without a new step between.

    Args:
        reached: the furthest step that was ever done.
        died: whether a process died; else something was raised, which is a defect.
        reason: what the last group failed with.
    """

    reached: int
    died: bool
    reason: str


News = StepNews | Evaluated | Notice | Phase | Saving
