"""Access policy of the launched servers."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cluster.access import (
    MODE,
    ONE_MACHINE,
    TOKEN,
    TOKEN_PATH,
    decide_access,
    ensure_token,
    restrict_token_file,
)
from raytriever.cluster.launch import (
    LaunchSettings,
    mlflow_command,
    mlflow_environment,
    ray_command,
    ray_environment,
    summary_lines,
)
from raytriever.errors import ConfigError, StorageError

Mistake = Callable[..., str]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_no_host_is_exposed_without_a_token(host: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--host: .* lets anyone who reaches this machine run programs on it; add --auth"
    ):
        decide_access(host, authenticate=False, environment={})
    with pytest.raises(ConfigError, match="--auth"):
        decide_access(host, authenticate=False, environment={MODE: "disabled"})


@pytest.mark.parametrize("host", ["127.3.2.1", "::1", "localhost"])
def test_a_local_host_needs_no_token(host: str) -> None:
    policy = decide_access(host, authenticate=False, environment={})
    assert (policy.is_authenticated, policy.token_file, policy.environment) == (
        False,
        None,
        ONE_MACHINE | {MODE: "disabled"},
    )


@pytest.mark.parametrize("host", ["no such host", "$(x)", ""])
def test_an_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"--host: .* is no address of this machine"):
        decide_access(host, authenticate=True, environment={})


def test_only_the_owner_can_read_a_new_token(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "token"
    before = os.umask(0)
    try:
        policy = decide_access("0.0.0.0", authenticate=True, environment={TOKEN_PATH: str(file)})
        assert not file.exists()
        ensure_token(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text()) == 64
    assert policy.environment.items() >= {MODE: "token", TOKEN_PATH: str(file)}.items()
    assert policy.address != "0.0.0.0"
    token = file.read_text()
    assert decide_access("::1", authenticate=False, environment={TOKEN_PATH: str(file), MODE: "token"}).is_authenticated
    ensure_token(file)
    assert file.read_text() == token  # an existing token stays
    settings = LaunchSettings(policy.host, True, 1, 2, 3, tmp_path / "m.db", tmp_path / "files")
    assert token not in " ".join([*summary_lines(settings, policy, tmp_path), *ray_command(settings, policy)])


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(mode)
    with pytest.raises(StorageError, match=rf"other users may read the token file \(mode {mode:04o}\); chmod 600"):
        ensure_token(file)


def test_files_without_a_token_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(StorageError, match="holds no token"):
        ensure_token(tmp_path / "empty")
    with pytest.raises(StorageError, match="holds no token"):
        ensure_token(tmp_path)


def test_a_token_in_the_environment_needs_no_file(tmp_path: Path) -> None:
    policy = decide_access(
        "10.0.0.1", authenticate=True, environment={TOKEN: "x" * 64, TOKEN_PATH: str(tmp_path / "no")}
    )
    assert (policy.token_file, policy.environment) == (None, {MODE: "token"})
    assert not list(tmp_path.iterdir())


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE: unknown mode 'tokens'; give 'token' or 'disabled'"):
        decide_access("127.0.0.1", authenticate=False, environment={MODE: "tokens"})


def test_rays_own_token_file_is_readable_by_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / ".ray" / "auth_token"
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (MODE, TOKEN, TOKEN_PATH):
        monkeypatch.delenv(name, raising=False)
    restrict_token_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text()
    file.chmod(0o644)
    restrict_token_file()
    assert (stat.S_IMODE(file.stat().st_mode), file.read_text()) == (0o600, token)


def test_mlflow_is_never_exposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ada:secret@elsewhere")
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
    words = mlflow_command(LaunchSettings("0.0.0.0", True, 6379, 8265, 5000, tmp_path / "m.db", tmp_path / "files"))
    flags = dict(itertools.pairwise(words))
    assert flags["--host"] == "127.0.0.1"
    assert flags["--allowed-hosts"] == "127.0.0.1:5000,localhost:5000"
    assert flags["--workers"] == "1"
    assert flags["--backend-store-uri"] == f"sqlite:///{tmp_path}/m.db"
    environment = mlflow_environment()
    assert environment["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    assert "MLFLOW_TRACKING_URI" not in environment


def test_submitted_jobs_track_to_the_launched_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ada:secret@elsewhere")
    settings = LaunchSettings("127.0.0.1", False, 6379, 8265, 5001, tmp_path / "m.db", tmp_path / "files")
    environment = ray_environment(settings, decide_access("127.0.0.1", False, {}))
    assert environment["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5001"
