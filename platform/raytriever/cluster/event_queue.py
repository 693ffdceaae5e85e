"""Event queue from the workers to the driver, without making a step wait: messages, restarts, in-process variant.

Ray Train's own `report` is a barrier of all workers, too slow for every step. Here the worker sends and continues; the
driver polls, shows the progress and is the only writer of the tracker. Only a checkpoint waits, in the thread that
writes it: it is committed when the driver has stored all earlier events, because a resumed run does not repeat those
steps. Events after the driver's last poll are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytriever.errors import UserError


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


# Beginnings in a row that may end before a step that was never done before.
IDLE_RESTARTS = 3


class Restarts:
    """Decides whether a group may begin.

    Args:
        idle: beginnings in a row that may fail without a new step.
    """

    def __init__(self, idle: int = IDLE_RESTARTS) -> None:
        self._most = idle
        self._reached = 0  # the furthest step ever done
        self._reached_before = 0  # as it was when a group last failed
        self._idle = 0
        self._failed = False
        self.reason = ""  # of the last failure

    @property
    def reached(self) -> int:
        """The furthest step that was ever done."""
        return self._reached

    def reach(self, step: int) -> None:
        """A step was done, perhaps not for the first time."""
        self._reached = max(self._reached, step)

    def fail(self, reason: str) -> None:
        """A group failed; told several times of one group, it counts once."""
        self._failed, self.reason = True, reason

    def begin(self) -> bool:
        """Whether the next group may begin; one that begins without a failure before it (it was resized) always may."""
        if self._failed:
            self._idle = 0 if self._reached > self._reached_before else self._idle + 1
            self._reached_before = self._reached
            self._failed = False
        return self._idle <= self._most


POLL_SECONDS = 0.25
_REFS_KEPT = 256


@ray.remote(num_cpus=0)
class Mailbox:
    """Keeps what was sent until it is asked for, and knows whether the workers may begin again."""

    def __init__(self) -> None:
        self._news: list[Any] = []
        self._sent = self._heard = 0
        self._closed = self._over = False
        self._urgent, self._changed = asyncio.Event(), asyncio.Event()
        self._restarts, self._died = Restarts(), False
        self._controller: Any = None

    async def send(self, item: Any) -> int:
        """Put one item at the end; answers its number.

        Raises:
            RuntimeError: nobody listens any more.
        """
        if self._closed:
            raise RuntimeError("the driver listens no more")
        self._news.append(item)
        self._sent += 1
        if isinstance(item, StepNews):
            self._restarts.reach(item.step)
        self._over |= isinstance(item, UserError | GivenUp)
        return self._sent

    async def settle(self, item: Any) -> None:
        """Put one item at the end, and come back when the driver has done with it; raises as `send` does."""
        number = await self.send(item)
        self._urgent.set()
        while self._heard < number:
            if self._closed:
                raise RuntimeError("the driver listens no more")
            await self._changed.wait()

    async def take(self, heard: int) -> list[Any]:
        """Take everything out, in the order it came, after a moment or as soon as somebody waits.

        Args:
            heard: how many of the items ever taken are done with.
        """
        self._did(heard)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._urgent.wait(), POLL_SECONDS)
        self._urgent.clear()
        items, self._news = self._news, []
        return items

    async def close(self, heard: int) -> list[Any]:
        """Take everything out for the last time; what is sent from now on is refused."""
        self._closed = True
        self._did(heard)
        items, self._news = self._news, []
        return items

    async def begin(self) -> bool:
        """Whether a group of workers may begin; asked once a group."""
        if self._closed or self._over:
            return False
        if not self._restarts.begin():
            await self.send(GivenUp(self._restarts.reached, self._died, self._restarts.reason))
            return False
        self._died = False
        return True

    async def reached(self) -> int:
        """The furthest step that was ever told of."""
        return self._restarts.reached

    async def fail(self, reason: str, died: bool) -> None:
        """The group of workers failed; a process of it died, or raised something."""
        self._died |= died
        self._restarts.fail(reason)

    async def introduce(self, controller: Any) -> None:
        """Keep who starts the workers."""
        self._controller = controller

    async def controller(self) -> Any:
        """Who starts the workers; None until that was told."""
        return self._controller

    def _did(self, heard: int) -> None:
        self._heard = heard
        self._changed.set()  # wakes all who wait, who look and wait again
        self._changed.clear()


class Sender:
    """A worker's side of a mailbox.

    Args:
        mailbox: of `listening`.
    """

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox
        self._refs: list[Any] = []

    def tell(self, item: News) -> None:
        """Send without waiting."""
        self._refs.append(self._mailbox.send.remote(item))
        if len(self._refs) > _REFS_KEPT:
            done, self._refs = ray.wait(self._refs, num_returns=len(self._refs), timeout=0)
            ray.get(done)

    def step(self, step: int, measured: dict[str, float]) -> None:
        """Tell what was measured after a step."""
        self.tell(StepNews(step, measured))

    def evaluated(self, step: int, measured: dict[str, float]) -> None:
        """Tell what the checkpoint of a step was worth."""
        self.tell(Evaluated(step, measured))

    def notice(self, text: str) -> None:
        """Tell the person something."""
        self.tell(Notice(text))

    def phase(self, text: str) -> None:
        """Report what is done until the next step."""
        self.tell(Phase(text))

    def settle(self, step: int) -> None:
        """Come back when the driver has kept all that was told, so that the checkpoint of a step may be committed.

        Raises:
            Exception: nobody listens any more, and the checkpoint must not stand.
        """
        refs, self._refs = self._refs, []
        ray.get(refs)
        ray.get(self._mailbox.settle.remote(Saving(step)))


@dataclass(frozen=True)
class Listening:
    """A mailbox that is being emptied.

    Args:
        mailbox: where items are sent.
        broken: set when an item could not be dealt with; nothing is heard from then on.
    """

    mailbox: Any
    broken: threading.Event


@contextmanager
def listening(hear: Callable[[Any], None]) -> Iterator[Listening]:
    """A mailbox whose items are heard, in order, on a thread of the driver; all of them when the block ends.

    Raises:
        Exception: whatever `hear` raised; it is raised again at the end of the block.
        UserError: the actor was killed, by a person or because the memory was used up.
    """
    # Where the driver is: any other node may be lost without the run.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    mailbox = Mailbox.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]
    over, broken = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def listen() -> None:
        heard = 0
        try:
            while not over.is_set():
                for item in ray.get(mailbox.take.remote(heard)):
                    hear(item)
                    heard += 1
            for item in ray.get(mailbox.close.remote(heard)):
                hear(item)
        except Exception as error:  # handed to the block's own thread below
            failures.append(_actor_died(error) if isinstance(error, RayActorError) else error)
            broken.set()
            mailbox.close.remote(heard)

    thread = threading.Thread(target=listen, name="raytriever-monitor", daemon=True)
    thread.start()
    try:
        yield Listening(mailbox, broken)
    finally:
        over.set()
        thread.join()
        ray.kill(mailbox)
    if failures:
        raise failures[0]


def _actor_died(error: RayActorError) -> UserError:
    """The error in one line. The actor is not started again: it held steps that were not in `steps.jsonl` yet."""
    mended = UserError(
        "the Ray actor that passes steps from the workers to this command was killed",
        remedy="look whether memory was used up, and give the same command again: it continues from the checkpoint",
    )
    mended.__cause__ = error
    return mended


class _Method:
    """Called as an actor's is, with a reference for an answer."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer

    def remote(self, *words: Any) -> Any:
        return ray.put(self._answer(*words))


class InlineMailbox:
    """What `monitor.Mailbox` is to one worker that may begin once.

    Args:
        hear: called with every item, by whoever sends it.
    """

    def __init__(self, hear: Callable[[Any], None]) -> None:
        self._hear, self._reached = hear, 0
        self.send, self.settle = _Method(self._take), _Method(self._take)
        self.begin, self.reached = _Method(lambda: True), _Method(lambda: self._reached)

    def _take(self, item: Any) -> None:
        if isinstance(item, StepNews):
            self._reached = max(self._reached, item.step)
        self._hear(item)


@contextmanager
def inline(hear: Callable[[Any], None]) -> Iterator[Listening]:
    """As `monitor.listening`, in this process; what `hear` raises ends the training that told it."""
    yield Listening(InlineMailbox(hear), threading.Event())
