"""Events that the workers of a run and the controller of their group send to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepEvent:
    """Metrics of a training step or of its validation on dev batches."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class ValidationEvent:
    """Retrieval metrics of the checkpoint of a step on dev data. Events of later steps may have come before."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class LogMessage:
    """Line for the user."""

    text: str


@dataclass(frozen=True)
class LostWorker(LogMessage):
    """Line about a worker that died or failed; trackers keep it as a tag of the run."""


@dataclass(frozen=True)
class StatusMessage:
    """Current activity of the first worker until its next step, as `loading the encoder`; shown when it takes long."""

    text: str


@dataclass(frozen=True)
class CheckpointEvent:
    """The checkpoint of a step is written. It is committed after the driver has stored all earlier events."""

    step: int


@dataclass(frozen=True)
class GroupWanted:
    """The controller asks Ray for the processes of a worker group, perhaps again.

    Args:
        resources: CPUs, GPUs and others that each of them reserves.
        room: number of processes that the cluster has room for, before any is reserved.
    """

    workers: int
    resources: Mapping[str, float]
    room: int


@dataclass(frozen=True)
class GroupStarted:
    """All workers of a group have started, on these hosts, by rank."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class RestartsExhausted:
    """Worker groups failed too often without a new step.

    Args:
        process_died: whether a process died. Otherwise an exception was raised, which is a defect.
    """

    last_step: int
    process_died: bool
    reason: str


@dataclass(frozen=True)
class MissingWorkers:
    """Number of workers that training waits for, because the cluster has no room for them; 0 when all run."""

    workers: int


Event = StepEvent | ValidationEvent | LogMessage | StatusMessage | CheckpointEvent | MissingWorkers
