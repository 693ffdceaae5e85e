"""Give a job to a Ray cluster and stay with it: its lines, its exit code, and an end to it when this ends.

`ray job submit` leaves a job running when Ctrl-C ends the command, and turns every failure into exit code 1. Here
Ctrl-C stops the job, which leaves a run that the same command goes on with, and the job's own code comes back.

    export RAY_JOB_SUBMIT_HOOK=raytriever.cluster.submission.instead

makes `ray job submit` do the same: Ray calls what is named there before it does anything itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from raytriever.activity import activity
from raytriever.errors import ConfigError
from raytriever.reading.structured import conform, parse_json, read_yaml
from raytriever.terminal import warn

MOST = 100_000_000  # bytes
STOP_SECONDS = 60.0


def submit(
    entrypoint: Sequence[str],
    folder: Path,
    address: str | None,
    say: Callable[[str], None],
    **given: Any,
) -> int:
    """Run a command on a cluster in a copy of a folder, and print what it prints.

    Args:
        entrypoint: the command; it reaches the cluster's shell as these words.
        folder: what is uploaded, but for what `.gitignore` and `.rayignore` name.
        address: of the cluster's dashboard; `RAY_API_SERVER_ADDRESS`, `RAY_ADDRESS` or this machine's when None.
        say: hears how large the upload is and what becomes of the job.
        given: more of what `JobSubmissionClient.submit_job` takes.

    Returns:
        The command's exit code.

    Raises:
        ConfigError: no cluster answers, or the upload is too large.
        KeyboardInterrupt: on Ctrl-C, when the job has been stopped.
    """
    if address:
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # which Ray prefers to what it is asked for
    logging.getLogger("ray.dashboard").setLevel(logging.WARNING)  # what Ray says of its requests
    with tempfile.TemporaryDirectory() as aside:
        package = _packed(folder, Path(aside), say)
        try:
            client = JobSubmissionClient(address)
            settings = {**(given.pop("runtime_env", None) or {}), "working_dir": str(package)}
            # What a job that is stopped gets to end in order, where the cluster says nothing of it.
            settings["env_vars"] = {"RAY_JOB_STOP_WAIT_TIME_S": "30"} | (settings.get("env_vars") or {})
            job = client.submit_job(entrypoint=shlex.join(entrypoint), runtime_env=settings, **given)
        except (ConnectionError, RuntimeError, AuthenticationError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"cannot submit ({reason})",
                address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "this machine",
                "start a cluster with `ray start --head`; where it wants a token, set RAY_AUTH_MODE=token",
            ) from error
    say(f"job {job}; Ctrl-C stops it")
    try:
        asyncio.run(_follow(client, job))
        return _code(client, job, say)
    except KeyboardInterrupt:
        _stop(client, job, say)
        raise


def _packed(folder: Path, aside: Path, say: Callable[[str], None]) -> Path:
    """The folder as Ray would upload it, if it is not too large."""
    package = aside / "upload.zip"
    quiet = logging.getLogger("raytriever.upload")
    quiet.setLevel(logging.ERROR)  # it tells of every ignore file that it meets
    excludes = get_runtime_env_default_excludes()
    create_package(str(folder), package, include_gitignore=True, excludes=excludes, logger=quiet)
    size = package.stat().st_size
    say(f"uploading {folder.resolve()}: {size / 1e6:.1f} MB")
    if size > MOST:
        raise ConfigError(
            f"{size / 1e6:.0f} MB is more than an upload may have ({MOST / 1e6:.0f} MB): {_largest(package)}",
            str(folder),
            "name what is not code in .rayignore, and data by absolute paths or URIs",
        )
    return package


def _largest(package: Path) -> str:
    with ZipFile(package) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: entry.file_size, reverse=True)[:3]
        entries = [entry for entry in entries if entry.file_size > MOST / 100] or entries
    return ", ".join(f"{entry.filename} {entry.file_size / 1e6:.1f} MB" for entry in entries)


async def _follow(client: JobSubmissionClient, job: str) -> None:
    has_begun = False

    def line(seconds: float) -> str | None:
        return None if has_begun else f"waiting for the first line of {job}: {seconds:.0f} s"

    with activity(line):  # once it has begun, the job itself is not silent for long
        async for lines in client.tail_job_logs(job):
            print(lines, end="", flush=True)
            has_begun = True


def _code(client: JobSubmissionClient, job: str, say: Callable[[str], None]) -> int:
    """The exit code of a job whose lines have ended, once Ray knows it."""
    while not client.get_job_status(job).is_terminal():
        time.sleep(0.1)
    told = client.get_job_info(job)
    if told.status == JobStatus.SUCCEEDED:
        return 0
    if told.driver_exit_code is None:
        say(f"job {job} {told.status.value.lower()}: {told.message or 'without a word'}")
        return 1
    return int(told.driver_exit_code)


def _stop(client: JobSubmissionClient, job: str, say: Callable[[str], None]) -> None:
    say(f"stopping {job}")
    client.stop_job(job)
    end = time.monotonic() + STOP_SECONDS
    while not client.get_job_status(job).is_terminal():
        if time.monotonic() > end:
            say(f"{job} has not ended in {STOP_SECONDS:.0f} s; see `ray job status {job}`")
            return
        time.sleep(0.1)


def instead(**given: Any) -> None:
    """What `RAY_JOB_SUBMIT_HOOK` names: submits what `ray job submit` was asked to, and ends the process.

    With `--no-wait`, without `--working-dir` or with one that is no folder here it returns, and Ray goes on by itself.
    """
    folder = given.get("working_dir")
    if given.get("no_wait") or not folder or not Path(folder).is_dir():
        return

    names = ("submission_id", "entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory", "entrypoint_resources")
    more = {name: given[name] for name in names if given.get(name) is not None}
    if given.get("metadata_json"):
        more["metadata"] = given["metadata_json"]
    try:
        settings = _runtime_env(given.get("runtime_env"), given.get("runtime_env_json"))
        code = submit(given["entrypoint"], Path(folder), given.get("address"), warn, runtime_env=settings, **more)
    except ConfigError as mistake:
        warn(f"error: {mistake}")
        code = 2
    except KeyboardInterrupt:
        warn("interrupted; give the same command again to go on")
        code = 130
    sys.exit(code)


def _runtime_env(file: str | None, text: str | None) -> dict[str, Any]:
    """The environment that the flags of `ray job submit` name; raises `ConfigError` where it is no mapping."""
    if file:
        try:
            content = read_yaml(Path(file), "correct the line it names", ConfigError)
        except OSError as error:
            raise ConfigError(f"cannot be read ({error.strerror})", file, "give a YAML file") from error
        return conform(content or {}, file, dict[str, Any], "give a mapping", "is no environment", ConfigError)
    flag = "--runtime-env-json"
    return parse_json(text or "{}", flag, dict[str, Any], "give an object", "is no environment", ConfigError)
