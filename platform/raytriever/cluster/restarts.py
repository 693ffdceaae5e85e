"""How often a group of workers that failed begins again: as often as it likes, so long as it gets further each time.

A long run on machines that may be taken away sees many deaths, none of which is a reason to end; a mistake that
strikes at the same step every time is one after a few. So what is counted is beginnings without a new step between.
"""

from __future__ import annotations

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
