"""W&B tracker: runs of W&B under ids of their own, in the modes of `WANDB_MODE`, with `step` as their x-axis.

W&B sends from a process of its own, which stores what it has in a folder of the run first. What a dying process had
handed over may be missing there. So each row has as W&B's `_step` the number of its last point in the run: a server, or
without one the folder, says at each start which points it has, and the others are sent again.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from raytriever.errors import ConfigError, setting
from raytriever.masking import masked
from raytriever.reading.wandb_file import read_history
from raytriever.tracking.mlflow_tracker import PROJECT, REASON_CHARACTERS
from raytriever.tracking.tracker import DatasetRecord, Point, RemoteRun, TrackerClient, described, rows_of

# Seconds to wait for W&B when a run is created and when it ends.
INIT_SECONDS, FINISH_SECONDS = 30.0, 60.0
OFFLINE = ("offline", "dryrun", "disabled")


def check_key() -> None:
    """Raise `ConfigError` unless W&B has a key, or needs none because it is offline."""
    settings = _set_up()
    if settings.mode in OFFLINE or settings.api_key or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return
    from wandb.sdk.lib.wbauth.wbnetrc import read_netrc_auth

    if not read_netrc_auth(host=settings.base_url):
        raise ConfigError(
            f"W&B has no key for {settings.base_url}",
            setting("tracker", "wandb"),
            "run `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline",
        )


def _set_up() -> Any:
    """Return the settings of W&B in this process, from its variables and files."""
    # W&B prints before it reads settings, and sends reports on itself.
    for name, value in (("WANDB_SILENT", "true"), ("WANDB_ERROR_REPORTING", "false")):
        os.environ.setdefault(name, value)
    import wandb

    return wandb.setup(_settings()).settings


def _settings() -> Any:
    """Return settings under which W&B prints nothing and collects nothing but what it is sent."""
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        finish_timeout_raises=True,
    )


class WandbClient(TrackerClient):
    """W&B's server, or its folders of runs on this machine."""

    name, title = "wandb", "W&B"

    def __init__(self) -> None:
        import wandb

        settings = _set_up()
        self._wandb = wandb
        self._is_offline = settings.mode in OFFLINE
        self._folder = Path(settings.wandb_dir)
        self.address = str(self._folder) if self._is_offline else str(settings.base_url)
        self._runs: dict[str, Any] = {}

    def connect(self, run_name: str, run_id: str | None, parent: str | None, key: str, points: int) -> WandbRun:
        """See `TrackerClient`; the key of the run is its id."""
        run_id = run_id or key
        if run_id in self._runs:
            self._restart(self._runs.pop(run_id))
        try:
            run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                id=run_id,
                name=run_name,
                group=parent or run_id,
                resume="allow",
                reinit="create_new",
                settings=_settings(),
            )
        except Exception as error:
            self._stop_process()  # it would refuse the run at the next try, because its id is in use
            reason = textwrap.shorten(masked(str(error)), REASON_CHARACTERS, placeholder=" ...")
            raise ConfigError(
                f"W&B does not answer ({reason})", self.address, "correct WANDB_API_KEY, or set WANDB_MODE=offline"
            ) from error
        self._runs[run_id] = run
        stored = self._stored_points(run_id) if self._is_offline else run.starting_step
        return WandbRun(run, stored)

    def _restart(self, run: Any) -> None:
        """End a run that failed, or W&B's process if it does not answer."""
        try:
            run.finish()
        except Exception:
            self._stop_process()

    def _stop_process(self) -> None:
        """Stop W&B's process. Its other runs fail, and are resumed in the next one."""
        self._runs.clear()
        with suppress(Exception):
            self._wandb.teardown()

    def _stored_points(self, run_id: str) -> int:
        """Return how many points the folders of a run have."""
        files = self._folder.glob(f"*-{run_id}*/run-{run_id}.wandb")  # a second folder of one second ends in -1
        steps = (int(row["_step"]) for row in read_history(files))
        return max((step + 1 for step in steps), default=0)


class WandbRun(RemoteRun):
    """One run of W&B, which has some of its points."""

    def __init__(self, run: Any, points: int) -> None:
        self._run, self.run_id, self.points = run, str(run.id), points
        self._next = points
        run.define_metric("*", step_metric="step")

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        """Log settings, data and tags as the run's configuration."""
        self._run.config.update(described(config, dataset, tags), allow_val_change=True)

    def log(self, points: Sequence[Point]) -> None:
        """Log a row for each step and time, then wait until W&B's process has them."""
        for row in rows_of(points):
            self._next += len(row)
            values = {point.name: point.value for point in row}
            times = {"step": row[0].step, "_timestamp": row[0].milliseconds / 1000}
            self._run.log(values | times, step=self._next - 1, commit=True)
        self._run.step  # noqa: B018  a question to W&B's process, which it answers after the rows

    def log_file(self, path: Path, folder: str = "") -> None:
        """Copy a file into the run's files, from where it is sent."""
        copy = Path(self._run.dir) / folder / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        self._run.save(str(copy), base_path=self._run.dir, policy="now")

    def finish(self, status: str) -> None:
        """End the run when W&B has everything."""
        self._run.finish(exit_code=0 if status == "FINISHED" else 1)
