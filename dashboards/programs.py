"""Configure, start and stop Prometheus and Grafana on this machine."""

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

from raytriever.core.errors import ConfigError

HERE = Path(__file__).resolve().parent
DISCOVERY = "prom_metrics_service_discovery.json"
IMAGE = "grafana/grafana:12.2.0"
NO_PROMETHEUS = "apt-get install prometheus, or https://prometheus.io/download"
NO_GRAFANA = (
    "no `grafana` on the path and no Docker: install it from https://grafana.com/grafana/download and run the command "
    "again; Prometheus shows the same figures"
)


def prometheus_config(folder: Path, ray_temp: Path, seconds: int = 10) -> Path:
    """Write the committed configuration for another folder of Ray and another scrape interval."""
    config = yaml.safe_load((HERE / "prometheus" / "prometheus.yml").read_text())
    config["rule_files"] = [str(HERE / "prometheus" / name) for name in config["rule_files"]]
    config["global"]["scrape_interval"] = f"{seconds}s"
    [scrape] = config["scrape_configs"]
    scrape["file_sd_configs"][0]["files"] = [str(ray_temp / DISCOVERY)]
    target = folder / "prometheus.yml"
    folder.mkdir(parents=True, exist_ok=True)
    target.write_text(yaml.safe_dump(config))
    return target


def prometheus_command(config: Path, port: int) -> list[str]:
    """Return the command of Prometheus; raise `UserError` if it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        raise ConfigError("is not on the path", "prometheus", NO_PROMETHEUS)
    data = config.parent / "prometheus"
    address = f"--web.listen-address=127.0.0.1:{port}"
    return [program, f"--config.file={config}", f"--storage.tsdb.path={data}", address, "--log.level=warn"]


def grafana_settings(prometheus_port: int, port: int) -> dict[str, str]:
    """Return Grafana's environment: read-only access from this machine, without a login."""
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
    """Return the command of Grafana: from the path, or in Docker; None if there is neither."""
    program = shutil.which("grafana")
    if program is not None:
        homes = [Path(program).resolve().parent.parent, Path("/usr/fraction/grafana")]
        home = next((path for path in homes if (path / "conf" / "defaults.ini").is_file()), homes[0])
        return [program, "server", f"--homepath={home}", f"cfg:default.paths.data={folder / 'grafana'}"]
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        return None
    variables = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    return [docker, "run", "--rm", "--network=host", f"--volume={HERE}:{HERE}:ro", *variables, IMAGE]


def start(command: Sequence[str], log: Path, settings: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that only this program receives Ctrl-C; its output goes to a file."""
    with log.open("wb") as stream:
        environment = {**os.environ, **(settings or {})}
        return subprocess.Popen(command, env=environment, stdout=stream, stderr=stream, start_new_session=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, and wait until it has stored its data."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
        return
    process.kill()
    process.wait()


def check_free(port: int, flag: str) -> None:
    """Raise `UserError` with the flag if a port is in use."""
    with socket.socket() as one:
        one.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # a program that has just ended does not block the port
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"{port} is in use", flag, "end the program that uses it, or give another port"
            ) from error


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the program answers; raise `UserError` if it ends instead."""
    while process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.2)
    last = log.read_text(errors="replace").strip().splitlines() or ["it ended at once"]
    raise ConfigError(last[-1][:300], str(log))
