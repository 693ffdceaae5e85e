"""Which table of hard negatives the batch of each step draws from.

A new version begins at a step that no worker has drawn yet, so the batch of step s is the same whenever it is made:
before the version came, after it, by this call or by the one that continues it.
"""

from __future__ import annotations

from typing import NamedTuple

from raytriever.training.batches import BatchSource


class _Version(NamedTuple):
    first: int
    source: BatchSource


class Versions:
    """Sources by the first step that draws from them; read by the loader's thread while the loop adds to them.

    Args:
        source: of step 0.
    """

    def __init__(self, source: BatchSource) -> None:
        # Replaced whole: a reader sees the old versions or the new ones.
        self._all: tuple[_Version, ...] = (_Version(0, source),)

    @property
    def newest(self) -> BatchSource:
        """The source of the last version there is."""
        return self._all[-1].source

    def at(self, step: int) -> BatchSource:
        """The source of the batch of `step`."""
        return next(version.source for version in reversed(self._all) if version.first <= step)

    def add(self, first: int, source: BatchSource) -> None:
        """A version from step `first` on; what no step from the next one on will draw from may be forgotten."""
        if first < self._all[-1].first:
            raise ValueError(f"a version from step {first} behind one from step {self._all[-1].first}")
        self._all = (*(version for version in self._all if version.first < first), _Version(first, source))

    def forget(self, step: int) -> None:
        """Drop what only steps before `step` drew from."""
        later = [number for number, version in enumerate(self._all) if version.first <= step]
        self._all = self._all[later[-1] :]
