"""What `make dashboards` starts: on 127.0.0.1 only, with our dashboard, and ended with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from processes import free_port

sys.path.append(str(Path(__file__).parents[3] / "dashboards"))
import programs
from raytriever.core.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]
# In Grafana's place where it cannot be had: stores its settings, and answers at its port.
GRAFANA = """#!{python}
import http.server, json, os, sys
with open({kept!r}, "w") as stream:
    json.dump([sys.argv[1:], dict(os.environ)], stream)
os.chdir({served!r})
address = os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])
http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def test_the_configuration_is_the_committed_one_for_another_ray(tmp_path: Path) -> None:
    path = programs.prometheus_config(tmp_path / "kept", Path("/elsewhere/ray"), seconds=1)
    config = yaml.safe_load(path.read_text())
    assert config["scrape_configs"][0]["file_sd_configs"][0]["files"] == [f"/elsewhere/ray/{programs.DISCOVERY}"]
    assert config["global"]["scrape_interval"] == "1s"
    assert all(Path(file).is_file() for file in config["rule_files"])


def test_where_there_is_no_program_a_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^prometheus: is not on the path; apt-get install prometheus"):
        programs.prometheus_command(tmp_path / "prometheus.yml", 9090)
    assert programs.grafana_command(tmp_path, {}) is None
    assert "\n" not in programs.NO_GRAFANA


def test_both_listen_here_only_and_nobody_signs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prometheus").touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--web.listen-address=127.0.0.1:9391" in programs.prometheus_command(tmp_path / "prometheus.yml", 9391)
    settings = programs.grafana_settings(9391, 3391)
    assert (settings["GF_SERVER_HTTP_ADDR"], settings["GF_SERVER_HTTP_PORT"]) == ("127.0.0.1", "3391")
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    provisioned = Path(settings["GF_PATHS_PROVISIONING"])
    [source] = yaml.safe_load((provisioned / "datasources" / "prometheus.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((provisioned / "dashboards" / "raytriever.yml").read_text())["providers"]
    used = {source["url"].removeprefix("$"), provider["options"]["path"].removeprefix("$")}
    assert used == {name for name in settings if name.startswith("RAYTRIEVER_")}
    assert (Path(settings["RAYTRIEVER_DASHBOARDS"]) / "raytriever.json").is_file()


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Started commands; whatever is left of them in the end is ended."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.terminate()  # not killed: it is to end what it started
        process.communicate(timeout=60)


def watch(folder: Path, port: int, grafana_port: int, path: str) -> subprocess.Popen[str]:
    # As a script's `&` starts it: with Ctrl-C ignored.
    command = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    command += [sys.executable, str(REPOSITORY / "dashboards" / "watch.py"), "--folder", str(folder)]
    command += ["--ray-temp", str(folder), "--port", str(port), "--grafana-port", str(grafana_port)]
    environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.prometheus
@pytest.mark.slow
def test_they_run_until_they_are_ended(tmp_path: Path, watching: list[subprocess.Popen[str]]) -> None:
    program = shutil.which("prometheus")
    assert program, "no Prometheus is installed: apt-get install prometheus"
    given, served = tmp_path / "given.json", tmp_path / "served" / "api"
    served.mkdir(parents=True)
    (served / "health").write_text("ok")
    (tmp_path / "bin").mkdir()
    grafana = tmp_path / "bin" / "grafana"
    grafana.write_text(GRAFANA.format(python=sys.executable, kept=str(given), served=str(served.parent)))
    grafana.chmod(0o700)
    port, grafana_port = free_port(), free_port()
    process = watch(tmp_path / "kept", port, grafana_port, f"{tmp_path / 'bin'}:{Path(program).parent}")
    watching.append(process)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"Prometheus: http://127.0.0.1:{port}/alerts")
    assert process.stdout.readline() == f"Grafana: http://127.0.0.1:{grafana_port}/d/raytriever\n"
    [words, environment] = json.loads(given.read_text())
    assert words[0] == "server"
    assert programs.grafana_settings(port, grafana_port).items() <= environment.items()
    rules = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=10))
    assert len(rules["data"]["groups"][0]["rules"]) == 14

    # The port is in use now: one error line, and no process remains.
    other = watch(tmp_path / "other", port, grafana_port, str(Path(program).parent))
    watching.append(other)
    _, err = other.communicate(timeout=60)
    assert other.returncode == 2
    assert err == f"error: --port: {port} is in use; end the program that uses it, or give another port\n"
    assert not (tmp_path / "other").exists()

    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    for taken in (port, grafana_port):
        with socket.socket() as one:
            assert one.connect_ex(("127.0.0.1", taken)) != 0
