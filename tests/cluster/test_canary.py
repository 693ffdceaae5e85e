"""Secrets planted in the environment and in `.env` are looked for, byte by byte, in everything a real run leaves."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
CANARIES = {
    name: f"canary-{number:02d}-{name.lower()[::-1]}"
    for number, name in enumerate(
        [
            "MLFLOW_TRACKING_USERNAME",
            "MLFLOW_TRACKING_PASSWORD",
            "MLFLOW_TRACKING_TOKEN",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "HF_TOKEN",
            "OPENAI_API_KEY",
        ]
    )
}
IN_FILE = "canary-99-of-a-file"


def bytes_of(path: Path) -> Iterator[bytes]:
    """What a file holds, and what is packed in it."""
    content = path.read_bytes()
    yield content
    if content.startswith(b"\x1f\x8b"):
        yield gzip.decompress(content)
    if content.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(path) as packed:
            yield from (packed.read(name) for name in packed.namelist())


def leaks(places: list[Path], planted: set[Path]) -> list[str]:
    """Where a canary is."""
    wanted = [canary.encode() for canary in (*CANARIES.values(), IN_FILE)]
    lines = []
    for file in {file for folder in places for file in folder.rglob("*")} - planted:
        if file.is_file() and not file.is_symlink():
            lines += [f"{file}: {w.decode()}" for content in bytes_of(file) for w in wanted if w in content]
    return lines


@pytest.mark.slow
def test_no_canary_sings(command_line: Callable[..., Any], tmp_path: Path) -> None:
    cli = command_line()
    ray_files = Path(f"/tmp/canary-{os.getpid()}")  # a socket's path has to be short
    ray_files.mkdir()
    (cli.folder / ".env").write_text(f"PASSWORD={IN_FILE}\n")
    environment = {**cli.environment, **CANARIES, "RAY_TMPDIR": str(ray_files)}

    def job(stage: str, *words: str, **more: str) -> str:
        command = [sys.executable, str(REPOSITORY / "jobs" / f"{stage}.py"), *words]
        done = subprocess.run(
            command, cwd=cli.folder, env=environment | more, capture_output=True, text=True, check=False, timeout=280
        )
        (cli.folder / f"{stage}-{len(list(cli.folder.iterdir()))}.said").write_text(done.stdout + done.stderr)
        return f"{done.returncode} {done.stderr}"

    try:
        training = [*cli.settings, "--max-steps", "6", "--num-workers", "2"]
        assert job("train", *training, "--output", "run").startswith("0 ")
        (data,) = [cli.settings[at + 1] for at, word in enumerate(cli.settings) if word == "--dataset"]
        assert job("evaluate", "--model", "run", "--datasets", data, "--output", "metrics").startswith("0 ")
        assert job("search", "--model", "run", "--dataset", data, "what is abc").startswith("0 ")
        # Mistakes tell what they are of: an address with a password, a model that the hub would have to be asked for.
        away = f"http://ada:{CANARIES['MLFLOW_TRACKING_PASSWORD']}@127.0.0.1:9"
        refused = job("train", *training, "--output", "away", MLFLOW_TRACKING_URI=away)
        assert refused.startswith("2 ")
        assert "http://***@127.0.0.1:9: MLflow does not answer" in refused
        hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(cli.folder / "hub")}
        assert job("train", *training, "--model", "org/name", "--output", "hub-run", **hub).startswith("2 ")
        secret = f"s3://key:{CANARIES['AWS_SECRET_ACCESS_KEY']}@bucket/x"
        assert job("train", *training, "--dataset", secret, "--output", "store").startswith("2 ")

        places = [tmp_path, ray_files]
        assert leaks(places, planted={cli.folder / ".env"}) == []
        # It looks where things are: the run, MLflow's database and files, Ray's logs.
        for there in ("run/config.yaml", "run/model/model.safetensors", "run/steps.jsonl", "mlflow.db", "mlartifacts"):
            assert (cli.folder / there).exists(), there
        assert list(ray_files.rglob("*.log"))
        (cli.folder / "planted").write_text(CANARIES["HF_TOKEN"])
        assert leaks(places, planted={cli.folder / ".env"})
    finally:
        shutil.rmtree(ray_files, ignore_errors=True)
