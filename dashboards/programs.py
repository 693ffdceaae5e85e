"""Prometheus and Grafana as programs of this machine: how each is configured, started, waited for and ended."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from raytriever.errors import ConfigError

HERE = Path(__file__).resolve().parent
DISCOVERY = "prom_metrics_service_discovery.json"
IMAGE = "grafana/grafana:12.2.0"
NO_PROMETHEUS = "apt-get install prometheus, or https://prometheus.io/download"
NO_GRAFANA = (
    "no `grafana` on the path and no Docker: install it from https://grafana.com/grafana/download and give the command "
    "again; Prometheus shows the same figures meanwhile"
)


def prometheus_config(folder: Path, ray_temp: Path, seconds: int = 10) -> Path:
    """Write the committed configuration for another folder of Ray's, and another time between two scrapes."""
    config = yaml.safe_load((HERE / "prometheus" / "prometheus.yml").read_text())
    config["rule_files"] = [str(HERE / "prometheus" / name) for name in config["rule_files"]]
    config["global"]["scrape_interval"] = f"{seconds}s"
    [scrape] = config["scrape_configs"]
    scrape["file_sd_configs"][0]["files"] = [str(ray_temp / DISCOVERY)]
    place = folder / "prometheus.yml"
    folder.mkdir(parents=True, exist_ok=True)
    place.write_text(yaml.safe_dump(config))
    return place


def prometheus_command(config: Path, port: int) -> list[str]:
    """How Prometheus is started; `UserError` where there is none."""
    program = shutil.which("prometheus")
    if program is None:
        raise ConfigError("is not on the path", "prometheus", NO_PROMETHEUS)
    kept = config.parent / "prometheus"
    address = f"--web.listen-address=127.0.0.1:{port}"
    return [program, f"--config.file={config}", f"--storage.tsdb.path={kept}", address, "--log.level=warn"]


def grafana_settings(prometheus_port: int, port: int) -> dict[str, str]:
    """Grafana's environment: nobody signs in, anybody on this machine looks, nobody changes anything."""
    return {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_PATHS_PROVISIONING": str(HERE / "grafana" / "provisioning"),
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(HERE / "grafana" / "raytriever.json"),
        "RAYTRIEVER_DASHBOARDS": str(HERE / "grafana"),
        "RAYTRIEVER_PROMETHEUS": f"http://127.0.0.1:{prometheus_port}",
    }


def grafana_command(folder: Path, settings: Mapping[str, str]) -> list[str] | None:
    """How Grafana is started: from the path, else in Docker; None where there is neither."""
    program = shutil.which("grafana")
    if program is not None:
        homes = [Path(program).resolve().parent.parent, Path("/usr/share/grafana")]
        home = next((place for place in homes if (place / "conf" / "defaults.ini").is_file()), homes[0])
        return [program, "server", f"--homepath={home}", f"cfg:default.paths.data={folder / 'grafana'}"]
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        return None
    given = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    return [docker, "run", "--rm", "--network=host", f"--volume={HERE}:{HERE}:ro", *given, IMAGE]


def start(command: Sequence[str], log: Path, settings: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A process of its own session, so that Ctrl-C is ours to deal with; what it says goes to a file."""
    with log.open("wb") as stream:
        environment = {**os.environ, **(settings or {})}
        return subprocess.Popen(command, env=environment, stdout=stream, stderr=stream, start_new_session=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it, and wait until it has kept what it has."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
        return
    process.kill()
    process.wait()


def check_free(port: int, flag: str) -> None:
    """Refuse a port on which somebody answers; `UserError` naming the flag."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was just ended is no hindrance
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"{port} is taken", flag, "end what listens there, or give another port") from error


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Come back when it answers; `UserError` where it ends instead."""
    while process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.2)
    last = log.read_text(errors="replace").strip().splitlines() or ["it ended at once"]
    raise ConfigError(last[-1][:300], str(log))
