"""Events that the workers of a run and the controller of their group send to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepEvent:
    """Metrics of a training step, or of the validation on dev batches at that step."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class ValidationEvent:
    """Retrieval metrics of a step's checkpoint on dev data. Events of later steps may arrive earlier."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class LogMessage:
    """Line for the user."""

    text: str


@dataclass(frozen=True)
class LostWorker(LogMessage):
    """Line about a worker that died or failed. Trackers store it as a tag of the run."""


@dataclass(frozen=True)
class StatusMessage:
    """Activity of the first worker, such as `loading the encoder`, until its next step; shown if it takes long."""

    text: str


@dataclass(frozen=True)
class CheckpointEvent:
    """The checkpoint of a step is written. It is committed once the driver has stored all earlier events."""

    step: int


@dataclass(frozen=True)
class GroupWanted:
    """The controller asks Ray for the processes of a worker group, perhaps again. Each reserves `resources`, such as
    CPUs and GPUs. Before the request, the cluster had room for `room` of them."""

    workers: int
    resources: Mapping[str, float]
    room: int


@dataclass(frozen=True)
class GroupStarted:
    """All workers of a group have started. `hosts` has their hosts by rank."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class RestartsExhausted:
    """Worker groups failed too often without a new step, because a process died or, by a defect, an exception was
    raised."""

    last_step: int
    process_died: bool
    reason: str


@dataclass(frozen=True)
class MissingWorkers:
    """Number of workers that training waits for because the cluster has no room for them; 0 when all run."""

    workers: int


Event = StepEvent | ValidationEvent | LogMessage | StatusMessage | CheckpointEvent | MissingWorkers
