"""Attempts at the pieces of a job, counted in files, because Ray endlessly repeats a task whose process dies."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


class Attempts:
    """Attempts of this process at pieces, as a context manager.

    A process that dies leaves the files of the pieces that it had begun. An exception is no death: it removes them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: set[str] = set()

    def begin(self, name: str) -> int:
        """Count an attempt at a piece, and return the number of processes that died over it before."""
        file = self._folder / f"{name}.begun"
        deaths = 0
        with suppress(OSError, ValueError):
            deaths = int(file.read_text())
        self._begun.add(name)
        # Without fsync, because processes die, not the machine. Renamed, because a process may die while it writes.
        temporary = file.with_suffix(".aside")
        temporary.write_text(str(deaths + 1))
        temporary.replace(file)
        return deaths

    def end(self, name: str) -> None:
        """Forget the attempts at a piece, because it is done."""
        self._begun.discard(name)
        (self._folder / f"{name}.begun").unlink(missing_ok=True)

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._begun]:
            self.end(name)
