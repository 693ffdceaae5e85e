"""Submit a job to a Ray cluster and stay attached: print its output, return its exit code, stop it on Ctrl-C.

`ray job submit` leaves a job running when Ctrl-C ends the command, and returns exit code 1 for every failure. Here
Ctrl-C stops the job, which leaves a run that the same command resumes, and the job's own exit code is returned.

    export RAY_JOB_SUBMIT_HOOK=raytriever.cluster.submission.instead

makes `ray job submit` behave in the same way: Ray calls this function before it does anything itself.
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
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZipFile

from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from raytriever.activity import activity
from raytriever.cluster.ray_private import package_folder
from raytriever.cluster.working_directory import describe_largest
from raytriever.errors import ConfigError
from raytriever.reading.structured import conform, parse_json, read_yaml
from raytriever.terminal import warn

UPLOAD_LIMIT = 100_000_000  # bytes
STOP_SECONDS = 60.0  # in which a stopped job must end


def submit(
    entrypoint: Sequence[str],
    folder: Path,
    address: str | None,
    log: Callable[[str], None],
    **options: Any,
) -> int:
    """Run a command on a cluster in a copy of a folder, and print its output.

    Args:
        entrypoint: the words of the command, as they reach the cluster's shell.
        folder: uploaded, except for files that `.gitignore` and `.rayignore` name.
        address: Address of the cluster's dashboard; None for `RAY_API_SERVER_ADDRESS`, `RAY_ADDRESS` or this machine's.
        log: called with lines about the size of the upload and the state of the job.
        options: further arguments of `JobSubmissionClient.submit_job`.

    Returns:
        The command's exit code.

    Raises:
        ConfigError: no cluster answers, or the upload is too large.
        KeyboardInterrupt: on Ctrl-C, after the job has been stopped.
    """
    if address:
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray prefers the variable to the argument
    logging.getLogger("ray.dashboard").setLevel(logging.WARNING)  # without the lines about its requests
    with tempfile.TemporaryDirectory() as temporary:
        package = _package(folder, Path(temporary), log)
        try:
            client = JobSubmissionClient(address)
            environment = {**(options.pop("runtime_env", None) or {}), "working_dir": str(package)}
            # Seconds in which a stopped job can end in order, unless the user has set them.
            environment["env_vars"] = {"RAY_JOB_STOP_WAIT_TIME_S": "30"} | (environment.get("env_vars") or {})
            job = client.submit_job(entrypoint=shlex.join(entrypoint), runtime_env=environment, **options)
        except (ConnectionError, RuntimeError, AuthenticationError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"the job cannot be submitted ({reason})",
                address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "this machine",
                "start a cluster with `ray start --head`; if it requires a token, set RAY_AUTH_MODE=token",
            ) from error
    log(f"job {job}; Ctrl-C stops it")
    try:
        asyncio.run(_print_output(client, job))
        return _exit_code(client, job, log)
    except KeyboardInterrupt:
        _stop(client, job, log)
        raise


def _package(folder: Path, temporary: Path, log: Callable[[str], None]) -> Path:
    """Write the zip file of the folder and check its size."""
    package = temporary / "upload.zip"
    package_folder(folder, package)
    size = package.stat().st_size
    log(f"uploading {folder.resolve()}: {size / 1e6:.1f} MB")
    if size > UPLOAD_LIMIT:
        raise ConfigError(
            f"the upload has {size / 1e6:.0f} MB, the limit is {UPLOAD_LIMIT / 1e6:.0f} MB: {_largest(package)}",
            str(folder),
            "list files that are not code in .rayignore, and give data by absolute paths or URIs",
        )
    return package


def _largest(package: Path) -> str:
    """Name the largest files and folders of a zip file."""
    with ZipFile(package) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    return describe_largest({PurePosixPath(entry.filename): entry.file_size for entry in entries})


async def _print_output(client: JobSubmissionClient, job: str) -> None:
    has_output = False

    def line(seconds: float) -> str | None:
        return None if has_output else f"waiting for the first line of {job}: {seconds:.0f} s"

    with activity(line):  # after the first line, the job itself is never silent for long
        async for lines in client.tail_job_logs(job):
            print(lines, end="", flush=True)
            has_output = True


def _exit_code(client: JobSubmissionClient, job: str, log: Callable[[str], None]) -> int:
    """Wait until Ray knows how the job ended, and return its exit code."""
    while not client.get_job_status(job).is_terminal():
        time.sleep(0.1)
    info = client.get_job_info(job)
    if info.status == JobStatus.SUCCEEDED:
        return 0
    if info.driver_exit_code is None:
        log(f"job {job} {info.status.value.lower()}: {info.message or 'no reason is known'}")
        return 1
    return int(info.driver_exit_code)


def _stop(client: JobSubmissionClient, job: str, log: Callable[[str], None]) -> None:
    log(f"stopping {job}")
    client.stop_job(job)
    end = time.monotonic() + STOP_SECONDS
    while not client.get_job_status(job).is_terminal():
        if time.monotonic() > end:
            log(f"{job} has not ended in {STOP_SECONDS:.0f} s; see `ray job status {job}`")
            return
        time.sleep(0.1)


def instead(**arguments: Any) -> None:
    """Submit the job of `ray job submit` and end the process. Ray calls it through `RAY_JOB_SUBMIT_HOOK`.

    With `--no-wait`, without `--working-dir`, or if that is no local folder, return, and Ray submits the job itself.
    """
    folder = arguments.get("working_dir")
    if arguments.get("no_wait") or not folder or not Path(folder).is_dir():
        return

    names = ("submission_id", "entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory", "entrypoint_resources")
    options = {name: arguments[name] for name in names if arguments.get(name) is not None}
    if arguments.get("metadata_json"):
        options["metadata"] = arguments["metadata_json"]
    try:
        environment = _runtime_env(arguments.get("runtime_env"), arguments.get("runtime_env_json"))
        address, entrypoint = arguments.get("address"), arguments["entrypoint"]
        code = submit(entrypoint, Path(folder), address, warn, runtime_env=environment, **options)
    except ConfigError as error:
        warn(f"error: {error}")
        code = 2
    except KeyboardInterrupt:
        warn("interrupted; run the same command again to continue")
        code = 130
    sys.exit(code)


def _runtime_env(file: str | None, text: str | None) -> dict[str, Any]:
    """Return the runtime environment of the flags of `ray job submit`; raise `ConfigError` if it is no mapping."""
    if file:
        try:
            content = read_yaml(Path(file), "correct the line it names", ConfigError)
        except OSError as error:
            raise ConfigError(f"the file cannot be read ({error.strerror})", file, "give a YAML file") from error
        return conform(content or {}, file, dict[str, Any], "give a mapping", "is no environment", ConfigError)
    flag = "--runtime-env-json"
    return parse_json(text or "{}", flag, dict[str, Any], "give an object", "is no environment", ConfigError)
