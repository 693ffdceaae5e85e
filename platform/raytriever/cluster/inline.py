"""A mailbox for training in the driver's own process: what is sent is heard at once, by the caller's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from raytriever.cluster.monitor import Listening
from raytriever.cluster.news import StepNews


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
