"""The tracker of a job whose directory appears whole at its end: what it tells waits in a hidden folder beside that.

The folder goes when the server has everything. What an earlier call left there, because no server answered, is sent by
the next one before it begins.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from raytriever.storage import disk_errors
from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.spool import Say, Spool, send_what_waits


class SpoolBeside(Spool):
    """A `Spool` that removes its folder when nothing waits."""

    def settle(self, patience: float) -> bool:
        """See `Spool`."""
        done = super().settle(patience)
        if done:
            _remove(self.folder)
        return done


def open_beside(uri: str, output: Path, say: Say) -> Spool:
    """Begin a run for a job that writes `output`.

    Args:
        uri: of the server or database.
        output: need not exist; its name becomes the run's.
        say: hears lines for the person.

    Raises:
        ConfigError: the server does not answer.
        StorageError: nothing can be written beside `output`.
    """
    server = MlflowServer(uri)
    name = output.resolve().name
    place = output.resolve().with_name(f".{name}.tracking")
    for left in sorted(place.iterdir()) if place.is_dir() else []:
        if send_what_waits(left, uri, say):
            _remove(left)
    folder = place / secrets.token_hex(6)
    with disk_errors(folder):
        folder.mkdir(parents=True)
    try:
        return SpoolBeside.open(server, folder, name, say=say)
    except BaseException:
        _remove(folder)
        raise


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # of others it holds some
        folder.parent.rmdir()
