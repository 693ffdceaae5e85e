"""The doctor: one line for each thing, exit code 1 for an error, and a timeout for a check that hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import free_port

from raytriever.cli.main import run
from raytriever.core.store.lock import acquire
from raytriever.experiments.operation import doctor
from raytriever.experiments.operation.doctor import ERROR, OK, WARNING, Check, Finding, examine


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty home, cache and folder of runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAYTRIEVER_RUNS", str(tmp_path / "runs"))
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def findings_of(name: str) -> list[Finding]:
    """Return the levels and texts of one check."""
    [check] = [check for check in doctor.CHECKS if check.name == name]
    return list(check.probe())


def test_a_machine_without_errors_and_nothing_heavy_imported() -> None:
    program = "import sys; from raytriever.cli.main import run; run('doctor', [])\n"
    program += "assert not {'torch', 'ray', 'mlflow', 'transformers', 'numba'} & set(sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60).stdout
    names = [line.split()[1] for line in out.splitlines()[:-2]]
    assert list(dict.fromkeys(names)) == ["devices", "Ray", "MLflow", "disks", "locks"]
    assert out.rstrip().splitlines()[-1].startswith("0 errors, ")


def test_servers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    closed_port = free_port()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:geheim@127.0.0.1:{closed_port}")
    with pytest.raises(SystemExit) as ended:
        run("doctor", [])
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert f"error    Ray      RAY_ADDRESS=127.0.0.1:{closed_port} does not answer (" in out
    assert f"error    MLflow   http://***@127.0.0.1:{closed_port}: MLflow does not answer (" in out
    assert "geheim" not in out
    assert "2 errors" in out


@pytest.mark.parametrize("address", ["nonsense", "host:port", "host:99999"])
def test_a_malformed_address_of_ray(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert findings_of("Ray") == [(ERROR, f"RAY_ADDRESS={address} is not an address HOST:PORT")]


def test_a_check_that_hangs_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs() -> Iterator[Finding]:
        time.sleep(30)
        yield OK, "too late"

    monkeypatch.setattr(doctor, "CHECKS", [Check("disks", hangs, "mount it again")])
    line = "error    disks    no answer within 0.5 s; a disk or a server may be down; mount it again"
    assert examine(0.5) == [(ERROR, line)]


def test_folders_that_cannot_be_written(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "runs").touch()
    [runs] = [finding for finding in findings_of("disks") if finding[1].startswith("runs ")]
    assert runs[0] == ERROR
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{machine}/runs/mlflow.db")
    assert [level for level, _ in findings_of("MLflow")] == [ERROR]


def test_little_space_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE", 1 << 62)
    assert {level for level, _ in findings_of("disks")} == {WARNING}
    [line, *_] = [line for _, line in examine() if " disks " in line]
    assert "; free space with `raytriever runs clean` and `raytriever cache prune`, or set HOME, " in line


def test_locks_that_are_held(machine: Path) -> None:
    (machine / "runs" / "mine").mkdir(parents=True)
    lock = acquire(machine / "runs" / "mine")
    try:
        [(level, text)] = findings_of("locks")
    finally:
        lock.release()
    assert (level, text.startswith(f"{machine}/runs/mine: in use by ")) == (OK, True)
