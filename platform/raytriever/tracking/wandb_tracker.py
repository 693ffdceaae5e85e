"""W&B tracker: runs of W&B in the modes of `WANDB_MODE`, with `step` as their x-axis.

The `_step` of a row at W&B is the number of the row's last point. So a server knows how many points it has, and takes
no point twice. Without a server, a resumed run is written again from its first point, and replaces the old folder."""

from __future__ import annotations

import os
import shlex
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, setting
from raytriever.core.masking import masked
from raytriever.tracking.mlflow_tracker import PROJECT, REASON_CHARACTERS
from raytriever.tracking.tracker import DatasetRecord, Point, RemoteRun, TrackerClient, described, rows_of

OFFLINE = ("offline", "dryrun", "disabled")
_REMEDY = "run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline"
# With these settings, W&B prints nothing, and stores only what raytriever sends.
_QUIET: dict[str, Any] = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
_QUIET |= {"x_disable_stats": True, "init_timeout": 30.0, "finish_timeout": 60.0, "finish_timeout_raises": True}


def read_settings() -> Any:
    """Return the settings of W&B in this process. Raise `ConfigError` if W&B needs an API key but has none."""
    for name, value in (("WANDB_SILENT", "true"), ("WANDB_ERROR_REPORTING", "false")):
        os.environ.setdefault(name, value)
    import wandb
    from wandb.sdk.lib.wbauth.wbnetrc import read_netrc_auth

    settings = wandb.setup(wandb.Settings(**_QUIET)).settings
    has_key = settings.api_key or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    if settings.mode not in OFFLINE and not has_key and not read_netrc_auth(host=settings.base_url):
        raise ConfigError(f"W&B has no API key for {settings.base_url}", setting("tracker", "wandb"), _REMEDY)
    return settings


class WandbClient(TrackerClient):
    """Server of W&B, or the folder of its runs on this machine."""

    name, title = "wandb", "W&B"

    def __init__(self) -> None:
        settings = read_settings()
        self._is_offline, self._folder = settings.mode in OFFLINE, Path(settings.wandb_dir)
        self.address = str(self._folder) if self._is_offline else str(settings.base_url)
        self._connected = set[str]()

    def connect(self, run_name: str, run_id: str | None, parent: str | None, key: str, points: int) -> WandbRun:
        """See `TrackerClient`. W&B gets `key` as the id of a new run."""
        import wandb

        run_id = run_id or key
        if run_id in self._connected:  # the connection failed before, and W&B's process still uses the id
            self._end_process()
        for file in self._folder.glob(f"*-{run_id}*/run-{run_id}.wandb") if self._is_offline else ():
            shutil.rmtree(file.parent)
        names = {"project": os.environ.get("WANDB_PROJECT") or PROJECT, "id": run_id, "name": run_name}
        options: dict[str, Any] = {**names, "group": parent or run_id, "settings": wandb.Settings(**_QUIET)}
        try:
            run = wandb.init(**options, resume="allow", reinit="create_new")
        except Exception as error:
            self._end_process()
            reason = textwrap.shorten(masked(str(error)), REASON_CHARACTERS, placeholder=" ...")
            raise ConfigError(f"W&B does not answer ({reason})", self.address, _REMEDY) from error
        self._connected.add(run_id)
        view = f"wandb sync {shlex.quote(str(Path(run.dir).parent))}" if self._is_offline else str(run.url)
        return WandbRun(run, view, 0 if self._is_offline else run.starting_step)

    def _end_process(self) -> None:
        """End the process of W&B. Other runs in this process then fail, and connect again."""
        import wandb

        self._connected.clear()
        with suppress(Exception):
            wandb.teardown()


class WandbRun(RemoteRun):
    """One run of W&B, which may already have some of its points."""

    def __init__(self, run: Any, view: str, points: int) -> None:
        self._run, self.run_id, self.view, self.points, self._next = run, str(run.id), view, points, points
        run.define_metric("*", step_metric="step")

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        """Log settings, data and tags as the run's configuration."""
        self._run.config.update(described(config, dataset, tags), allow_val_change=True)

    def log(self, points: Sequence[Point]) -> None:
        """Log a row for each step and time."""
        for row in rows_of(points):
            self._next += len(row)
            times = {"step": row[0].step, "_timestamp": row[0].milliseconds / 1000}
            self._run.log({point.name: point.value for point in row} | times, step=self._next - 1, commit=True)

    def log_file(self, path: Path, folder: str = "") -> None:
        """Copy a file into the run's files. W&B uploads it from there."""
        copy = Path(self._run.dir) / folder / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        self._run.save(shutil.copyfile(path, copy), base_path=self._run.dir, policy="now")

    def finish(self, status: str) -> None:
        """End the run when W&B has everything."""
        self._run.finish(exit_code=0 if status == "FINISHED" else 1)
