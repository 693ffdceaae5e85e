"""The doctor: one line for each thing, exit code 1 for an error, and a timeout for a check that hangs."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.operation import doctor
from raytriever.operation.doctor import ERROR, OK, WARNING, Finding, examine
from raytriever.store.lock import acquire
from raytriever.tracking.trackers import examine_installed


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty home, cache and folder of runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAYTRIEVER_RUNS", str(tmp_path / "runs"))
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "HF_HOME", "HF_TOKEN_PATH", "RAY_AUTH_TOKEN_PATH", "CC"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as stream:
        stream.bind(("127.0.0.1", 0))
        return int(stream.getsockname()[1])


def lines_about(about: str, check: str = "") -> list[Finding]:
    """What one check, by default the one of the same name, says about a thing."""
    return [line for line in doctor.CHECKS[check or about]() if line.about == about]


def test_a_machine_without_errors_and_nothing_heavy_imported() -> None:
    program = "import sys; from raytriever.cli.main import run; run('doctor', [])\n"
    program += "assert not {'torch', 'ray', 'mlflow', 'transformers', 'numba'} & set(sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60).stdout
    for about in ("Python", "torch", "ray", "processor", "cores", "memory", "Ray", "MLflow", "runs", "cache", "locks"):
        assert any(line.split()[1:2] == [about] for line in out.splitlines()), about
    assert out.rstrip().splitlines()[-1].startswith("0 errors, ")


def test_servers_that_do_not_answer(
    closed_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:geheim@127.0.0.1:{closed_port}")
    quick = {name: check for name, check in doctor.CHECKS.items() if name != "trackers"}
    monkeypatch.setattr(doctor, "CHECKS", quick)
    began = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        run("doctor", [])
    assert ended.value.code == 1
    assert time.monotonic() - began < 8
    out = capsys.readouterr().out
    assert f"error    Ray        RAY_ADDRESS=127.0.0.1:{closed_port} does not answer (" in out
    assert f"error    MLflow     http://***@127.0.0.1:{closed_port}: MLflow does not answer (" in out
    assert "geheim" not in out
    assert "2 errors" in out


@pytest.mark.slow
def test_trackers_that_are_installed_have_a_line(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    (machine / "file").touch()
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(machine / "file" / "events"))
    lines = examine_installed(60.0)
    assert list(lines) == ["W&B", "TensorBoard", "Trackio"]
    assert lines["W&B"].startswith("W&B has no key for https://")
    assert lines["TensorBoard"].startswith("a part of the path is a file; ")
    assert lines["Trackio"] == ""
    monkeypatch.setattr(doctor, "examine_installed", lambda seconds: lines)
    assert [(line.level, line.about) for line in doctor._trackers()] == [
        (WARNING, "W&B"),
        (WARNING, "TensorBoard"),
        (OK, "Trackio"),
    ]


@pytest.mark.parametrize("address", ["nonsense", "host:port", "host:99999"])
def test_a_malformed_address_of_ray(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    [line] = lines_about("Ray")
    assert (line.level, line.text) == (ERROR, f"RAY_ADDRESS={address} is not an address")


def test_a_check_that_hangs_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs() -> Iterator[Finding]:
        time.sleep(30)
        yield Finding(OK, "disks", "too late")

    monkeypatch.setattr(doctor, "CHECKS", {"disks": hangs})
    began = time.monotonic()
    findings = examine(0.5)
    assert time.monotonic() - began < 3
    assert [str(line) for line in findings] == [
        "error    disks      no answer within 0.5 s; check whether a disk or a server is down"
    ]


def test_folders_that_cannot_be_written(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "runs").touch()
    assert [line.level for line in lines_about("runs", "disks")] == [ERROR]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{machine}/runs/mlflow.db")
    assert [line.level for line in lines_about("MLflow")] == [ERROR]


def test_little_space_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE", 1 << 62)
    [line] = lines_about("cache", "disks")
    assert line.level == WARNING
    assert line.remedy == "free space: `raytriever runs clean`, `raytriever cache prune`"


def test_locks_that_are_held(machine: Path) -> None:
    (machine / "runs" / "mine").mkdir(parents=True)
    lock = acquire(machine / "runs" / "mine")
    try:
        [line] = lines_about("lock", "locks")
    finally:
        lock.release()
    assert line.text.startswith(f"{machine}/runs/mine: in use by ")


def test_a_token_that_other_users_can_read(machine: Path) -> None:
    token = machine / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    [line] = lines_about("token", "tokens")
    assert (line.level, line.remedy) == (WARNING, f"chmod 600 {token}")
    assert "secret" not in line.text
    token.chmod(0o600)
    assert lines_about("token", "tokens")[0].level == OK


def test_a_missing_and_an_old_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_NEEDED", ("numpy", "no-such-package"))
    monkeypatch.setattr(doctor, "requires", lambda name: ["numpy>=99.0", "ray[default,data]>=2.60"])
    assert lines_about("numpy", "versions")[0].level == WARNING
    assert lines_about("no-such-package", "versions")[0].level == ERROR


def test_the_limits_of_a_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_core_limit", lambda: 0.5)
    assert [line.level for line in lines_about("cores", "processor")] == [WARNING]
    monkeypatch.setattr(doctor, "_number_in", lambda *names: 10**9 if names[0] == "memory.max" else 10**8)
    [line] = lines_about("memory")
    assert line.level == WARNING
    assert line.text.startswith("900.0 MB free of a limit of 1.0 GB (cgroup)")
