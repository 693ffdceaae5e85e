"""Ray session: a cluster that does not answer, Ray that does not start, and a node of other versions."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray._private.utils
from processes import free_port, run_python
from ray import cloudpickle
from ray.job_config import JobConfig

from raytriever import __version__
from raytriever.cluster import ray_session as session
from raytriever.cluster.events_and_restarts import GroupStarted
from raytriever.cluster.ray_session import ray_session
from raytriever.cluster.train.controller_callbacks import GroupMessages, _version_reader
from raytriever.core.errors import ConfigError


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts no connection: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = int(server.getsockname()[1])
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            waiting.append(client)
        yield port
        for client in waiting:
            client.close()


def refusal(address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RAY_ADDRESS", address)
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught, ray_session(1):
        raise AssertionError("there is no cluster")
    assert time.monotonic() - began < 15
    return str(caught.value)


def test_a_stopped_cluster_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"ray://127.0.0.1:{free_port()}"
    line = refusal(address, monkeypatch)
    assert line.startswith(f"RAY_ADDRESS={address}: no Ray cluster answers (Connection refused); start a cluster")


def test_a_cluster_that_accepts_no_connection_is_reported(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.2)
    assert "no Ray cluster answers (timed out)" in refusal(f"127.0.0.1:{silent_port}", monkeypatch)


def test_the_driver_stays_in_its_folder_from_which_workers_import_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other threads use relative paths while Ray starts."""
    seen: list[tuple[Path, list[str]]] = []

    def init(job_config: JobConfig, **_: object) -> None:
        job_config._py_driver_sys_path.extend(["/scripts", str(tmp_path)])  # as `ray.init` does
        job_config._serialize()
        seen.append((Path.cwd(), job_config._py_driver_sys_path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(session, "kill_at_shutdown", lambda: None)
    with ray_session(1):
        assert seen == [(tmp_path, ["/scripts"])]


def test_auto_without_a_cluster_or_with_a_stopped_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)  # of other processes of this machine
    assert refusal("auto", monkeypatch).startswith("RAY_ADDRESS=auto: no Ray cluster answers; start a cluster")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{free_port()}")
    assert "no Ray cluster answers" in refusal("auto", monkeypatch)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:port"])
def test_an_invalid_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = refusal(address, monkeypatch)
    assert line == (
        f"RAY_ADDRESS={address}: is not the address of a Ray cluster; give HOST:PORT, ray://HOST:PORT, auto or local"
    )


def starts(failures: list[Exception], monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a start function that raises the failures in turn; Ray itself does not run."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)

    def start() -> None:
        if failures:
            raise failures.pop(0)

    return start


SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


def test_a_slow_start_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failures = [Exception(SLOW)]
    session._start(starts(failures, monkeypatch))
    assert failures == []
    assert capsys.readouterr().err == "Ray did not start in time; trying once more\n"


def test_a_second_slow_start_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [Exception(SLOW), RuntimeError("Failed to start GCS.  Last 0 lines of error files:"), Exception(SLOW)]
    with pytest.raises(ConfigError, match=r"^Ray: did not start in two attempts; read its logs in /tmp/ray/session_"):
        session._start(starts(failures, monkeypatch))
    assert len(failures) == 1


def test_other_exceptions_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Exception] = [ValueError("a defect"), ValueError("again")]
    with pytest.raises(ValueError, match="a defect"):
        session._start(starts(failures, monkeypatch))
    assert len(failures) == 1


class Group:
    """Worker group of two hosts, with the raytriever versions that its workers return."""

    def __init__(self, *versions: str) -> None:
        self._versions = versions

    def get_workers(self) -> list[Any]:
        places = [SimpleNamespace(hostname=f"h{rank}", node_ip=f"10.0.0.{rank}") for rank in range(len(self._versions))]
        return [SimpleNamespace(metadata=place) for place in places]

    def execute(self, function: Any) -> list[str]:
        assert function() == __version__
        return list(self._versions)


def sent_by(group: Group) -> list[Any]:
    events: list[Any] = []
    GroupMessages(SimpleNamespace(send=events.append)).after_worker_group_start(group)
    return events


def test_a_worker_of_another_version_ends_the_run_with_its_host() -> None:
    [error] = sent_by(Group(__version__, "0.0.9"))
    assert isinstance(error, ConfigError)
    line = f"the Ray cluster: host h1 has raytriever 0.0.9, and the command has {__version__}; install the same version"
    assert str(error).startswith(line)
    assert sent_by(Group(__version__, __version__)) == [GroupStarted(("h0", "h1"))]


@pytest.mark.slow
def test_the_version_of_a_node_without_this_module_is_read(tmp_path: Path) -> None:
    (tmp_path / "raytriever").mkdir()
    (tmp_path / "raytriever" / "__init__.py").write_text('__version__ = "9.9"\n')
    (tmp_path / "reader").write_bytes(cloudpickle.dumps(_version_reader()))
    code = "import pickle; print(pickle.load(open('reader', 'rb'))())"
    assert run_python("-c", code, cwd=tmp_path).stdout == "9.9\n"


def test_another_python_than_that_of_the_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(**settings: object) -> None:  # as `ray.init` does: with Ray's own check
        metadata = {"ray_version": "2.60.0", "python_version": "3.9.1"}
        ray._private.utils.check_version_info(metadata, "node 10.0.0.2")

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(session, "check_cluster", lambda: None)
    monkeypatch.setattr(ray, "init", join)
    monkeypatch.setattr(session.socket, "gethostname", lambda: "h2")
    with pytest.raises(ConfigError) as caught, ray_session(1):
        pass
    python, version = sys.version.split()[0], ray.__version__
    assert str(caught.value) == (
        f"RAY_ADDRESS=10.0.0.1:6379: the cluster has Ray 2.60.0 and Python 3.9.1, and host h2 has Ray {version} and "
        f"Python {python}; install the same versions on every host"
    )


def test_private_modules_are_imported_when_a_function_is_called() -> None:
    program = "import sys, raytriever.cluster.ray_private; print([name for name in sys.modules if name == 'ray'])"
    assert run_python("-c", program).stdout == "[]\n"


def test_the_private_names_exist_in_the_installed_ray() -> None:
    from ray._private import auto_init_hook, services, state

    assert callable(services.canonicalize_bootstrap_address)
    assert callable(state.state.get_max_resources_from_cluster_config)
    assert isinstance(auto_init_hook.enable_auto_connect, bool)
