"""Unfinished work that is kept from time to time, from which the same work continues after it was killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from raytriever.capacity import check_disk
from raytriever.errors import StorageError
from raytriever.storage import committed_directory, disk_errors, read_manifest
from raytriever.terminal import warn

# Work is kept after so many seconds, or later: keeping it takes at most this share of the time.
LEAST_SECONDS, MOST_SHARE = 20.0, 0.05


@dataclass
class UnfinishedWork:
    """Directory of work that is not finished.

    Attributes:
        folder: of the work, named after all that decides the result; None to keep nothing.
        work: what is done, for the warning that it cannot be kept: "a search".
        began: when the work was begun or kept last.
        seconds: that keeping it took last.
    """

    folder: Path | None
    work: str
    began: float = field(default_factory=monotonic)
    seconds: float = 0.0

    @property
    def pause(self) -> float:
        """Seconds from one time that the work is kept to the next."""
        return max(LEAST_SECONDS, self.seconds / MOST_SHARE)

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata that was kept with the work; empty if there is none or it is damaged."""
        if self.folder is not None:
            with suppress(StorageError), disk_errors(self.folder, reading=True):
                return dict(read_manifest(self.folder)["meta"])
        return {}

    def offer(self, write: Callable[[Path], None], size: int, meta: dict[str, int]) -> bool:
        """Keep the work if it is time; return whether it was kept. After work that cannot be kept, none is.

        Args:
            write: writes the files of the work into a directory.
            size: bytes that the disk must have room for.
            meta: how far the work is.
        """
        if self.folder is None or monotonic() - self.began < self.pause:
            return False
        before = monotonic()
        try:
            check_disk(self.folder, size, f"copies of {self.work} that is not finished")
            with disk_errors(self.folder):
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                with committed_directory(self.folder, meta, replace=True) as aside:
                    write(aside)
        except StorageError as error:
            warn(f"{self.work} is not kept while it runs, so one that is stopped begins again: {error}")
            self.folder = None
        self.began = monotonic()
        self.seconds = self.began - before
        return self.folder is not None

    def remove(self) -> None:
        """Remove the kept work, once it is finished."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
