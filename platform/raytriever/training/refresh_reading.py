"""A round's table, read beside the steps: a large one takes longer than a step does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

from raytriever.data.negatives_table import NegativesTable
from raytriever.errors import UserError
from raytriever.training.refresh_statistics import overlap
from raytriever.training.refresh_words import News, Word


class Reading:
    """A thread that reads one round's table, and what it has come to: a late one tells no later round.

    Args:
        read: the table in a committed directory.
        path: of the table.
        before: the table in use.
    """

    def __init__(self, read: Callable[[Path], NegativesTable], path: Path, before: NegativesTable | None) -> None:
        self._read, self._path, self._before = read, path, before
        self._table: NegativesTable | None = None
        self.word = Word()
        self.overlap = 0.0
        self.reason = ""
        self._thread = Thread(target=self._run, name="refresh", daemon=True)
        self._thread.start()

    @property
    def table(self) -> NegativesTable:
        """What was read, when the word says so."""
        assert self._table is not None
        return self._table

    @property
    def reads(self) -> bool:
        """Whether the thread is still at it, be what it reads wanted or not."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._table = self._read(self._path)
            self.overlap = overlap(self._table, self._before)
            self.word = Word(News.DONE, int(self._table.digest[:12], 16))
        except Exception as error:
            self.reason, self.word = told(error), Word(News.FAILED)


def told(error: Exception) -> str:
    """A round's failure never ends the training, whatever it is; a person reads why in a line."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
