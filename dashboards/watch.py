"""`make dashboards`: Prometheus, and Grafana where there is one, beside the Ray of this machine, until Ctrl-C.

Both answer on 127.0.0.1 only. What they keep is in the cache, so that curves are there again the next time. Ray deletes
its own Grafana folder at each start; ours is provisioned from the repository.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import yaml

from raytriever.errors import ConfigError, UserError
from raytriever.storage import cache_folder

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


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Come back when it answers; `UserError` where it ends instead."""
    while process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.2)
    last = log.read_text(errors="replace").strip().splitlines() or ["it ended at once"]
    raise ConfigError(last[-1][:300], str(log), "is its port taken? give another one")


def watch(folder: Path, ray_temp: Path, port: int, grafana_port: int) -> None:
    """Start what there is, say where it is, and wait."""
    with ExitStack() as stack:
        command = prometheus_command(prometheus_config(folder, ray_temp), port)
        log = folder / "prometheus.log"
        running = [start(command, log)]
        stack.callback(stop, running[0])
        wait_for(f"http://127.0.0.1:{port}/-/ready", running[0], log)
        print(f"Prometheus: http://127.0.0.1:{port}/alerts, of the nodes in {ray_temp / DISCOVERY}", flush=True)
        settings = grafana_settings(port, grafana_port)
        grafana = grafana_command(folder, settings)
        if grafana is None:
            print(f"Grafana: {NO_GRAFANA}", flush=True)
        else:
            log = folder / "grafana.log"
            running.append(start(grafana, log, settings))
            stack.callback(stop, running[1])
            wait_for(f"http://127.0.0.1:{grafana_port}/api/health", running[1], log)
            print(f"Grafana: http://127.0.0.1:{grafana_port}/d/raytriever", flush=True)
        while all(process.poll() is None for process in running):
            time.sleep(0.5)
        raise ConfigError("has ended", str(folder), "see the logs there")


def main() -> int:
    """The command; 2 where something is to be mended."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ray-temp", type=Path, default=Path("/tmp/ray"), help="Ray's --temp-dir")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "dashboards", help="what is kept")
    parser.add_argument("--port", type=int, default=9090, help="of Prometheus")
    parser.add_argument("--grafana-port", type=int, default=3000, help="of Grafana")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        watch(given.folder.absolute(), given.ray_temp.absolute(), given.port, given.grafana_port)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
