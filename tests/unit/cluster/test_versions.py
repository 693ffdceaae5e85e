"""A node of another raytriever, or of another Python: one line that names the host. Undocumented Ray is there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray._private.utils
from processes import run_python
from ray import cloudpickle

from raytriever import __version__
from raytriever.cluster import ray_session as session
from raytriever.cluster.events_and_restarts import GroupStarted
from raytriever.cluster.ray_session import ray_session
from raytriever.cluster.train.controller_callbacks import GroupMessages, _version_reader
from raytriever.core.errors import ConfigError


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
