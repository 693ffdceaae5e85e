"""Mining and validation in the process of the first worker, where training leaves no GPU for other processes.

The worker's own GPU encodes and searches between two steps, while training waits. No second process takes memory of the
GPU, and the memory of a job is given back before the next step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Generic, TypeVar

import torch

from raytriever.cluster.gauges import Gauges
from raytriever.cluster.train.mining_round import MiningRounds, SnapshotLoader
from raytriever.cluster.train.validation import Validations
from raytriever.encoding.shards import ShardEncoder, encode_in_process
from raytriever.encoding.writer import StoreWriter
from raytriever.errors import UserError
from raytriever.models.files import first_line
from raytriever.training.background import JobError
from raytriever.training.parallel.model_state import Snapshot
from raytriever.training.refresh.job import RoundResult
from raytriever.training.validation.job import EvaluationResult

Result = TypeVar("Result")


class _Thread(Generic[Result]):
    """Thread that does one job after another on the device of a worker.

    Args:
        device: Device of the worker.
        show: called with whether a job is running.
    """

    def __init__(self, device: torch.device, show: Callable[[bool], None]) -> None:
        self._device, self._show = device, show
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="between-steps")
        self._job: Future[Result]

    def start(self, work: Callable[[], Result]) -> None:
        """Start a job."""
        self._show(True)
        self._job = self._thread.submit(self._run, work)

    def poll(self) -> Result | None:
        """Return the result of the job; None while it is running."""
        if not self._job.done():
            return None
        self._show(False)
        return self._job.result()

    def _run(self, work: Callable[[], Result]) -> Result:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread
        try:
            return work()
        except Exception as error:  # a defect, or the GPU has too little memory: the job fails, training does not
            reason = first_line(error)  # not the error: its traceback would keep the tensors of the job
        finally:
            torch.cuda.empty_cache()
        raise JobError(reason)


class LocalMiner:
    """Miner in the process of the first worker; see `MinerClient`.

    Args:
        open_rounds: opens the data sets, at the first round.
        device: Device of the worker.
        gauges: Gauges of the run; see `RayMinerClient`.
    """

    def __init__(self, open_rounds: Callable[[], MiningRounds], device: torch.device, gauges: Gauges) -> None:
        self._open_rounds, self._gauges = open_rounds, gauges
        self._thread = _Thread[RoundResult](device, self._set_gauges)

    @cached_property
    def _rounds(self) -> MiningRounds:
        return self._open_rounds()

    def submit(self, number: int, snapshot: Snapshot) -> None:
        """See `MinerClient.submit`."""
        self._thread.start(lambda: self._mine(number, snapshot))

    def poll(self) -> RoundResult | None:
        """See `MinerClient.poll`."""
        return self._thread.poll()

    def _mine(self, number: int, snapshot: Snapshot) -> RoundResult:
        try:
            return self._rounds.run(number, snapshot, partial(_encode, snapshot))
        except UserError as error:
            return RoundResult(reason=str(error))

    def _set_gauges(self, is_running: bool) -> None:
        self._gauges.set("refresh_running", is_running, "1 while a round is under way, else 0")
        self._gauges.set("refresh_waiting", is_running, "1 while steps wait for a round, else 0")


class LocalEvaluator:
    """Evaluator in the process of the first worker; see `EvaluatorClient`.

    Args:
        validations: Validations of the run.
        device: Device of the worker.
        gauges: Gauges of the run; see `RayEvaluatorClient`.
    """

    def __init__(self, validations: Validations, device: torch.device, gauges: Gauges) -> None:
        self._validations = validations
        about = "1 while a checkpoint is evaluated, else 0"
        self._thread = _Thread[EvaluationResult](device, lambda runs: gauges.set("evaluation_running", runs, about))

    def submit(self, step: int, checkpoint: Path) -> None:
        """See `EvaluatorClient.submit`."""
        self._thread.start(lambda: self._evaluate(step, checkpoint))

    def poll(self) -> EvaluationResult | None:
        """See `EvaluatorClient.poll`."""
        return self._thread.poll()

    def _evaluate(self, step: int, checkpoint: Path) -> EvaluationResult:
        try:
            return EvaluationResult(self._validations.run(step, checkpoint))
        except UserError as error:
            return EvaluationResult(reason=str(error))


def _encode(snapshot: Snapshot, store: StoreWriter, load: SnapshotLoader, dataset: str, missing: list[int]) -> None:
    """Encode shards in this process; see `mining_round.Encode`."""
    encode_in_process(ShardEncoder(store, partial(load, snapshot), dataset), missing, lambda texts: None)
