"""Run Prometheus, and Grafana if it is installed, for the Ray on this machine, until Ctrl-C (`make dashboards`).

Both answer on 127.0.0.1 only. Their data is in the cache, so the curves of earlier calls remain. Ray deletes
its own Grafana folder at each start; ours is provisioned from the repository.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from programs import (
    DISCOVERY,
    NO_GRAFANA,
    check_free,
    grafana_command,
    grafana_settings,
    prometheus_command,
    prometheus_config,
    start,
    stop,
    wait_for,
)
from raytriever.core.errors import ConfigError, UserError
from raytriever.core.store.cache import cache_folder


def watch(folder: Path, ray_temp: Path, port: int, grafana_port: int) -> None:
    """Start the programs, print their addresses, and wait."""
    check_free(port, "--port")
    check_free(grafana_port, "--grafana-port")
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
        raise ConfigError("a program has ended", str(folder), "see its log there")


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run the command; return 2 for a user error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ray-temp", type=Path, default=Path("/tmp/ray"), help="Ray's --temp-dir")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "dashboards", help="folder of their data")
    parser.add_argument("--port", type=int, default=9090, help="port of Prometheus")
    parser.add_argument("--grafana-port", type=int, default=3000, help="port of Grafana")
    arguments = parser.parse_args()
    for item in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell ignores it for `&` in a script
        signal.signal(item, _end)
    try:
        watch(arguments.folder.absolute(), arguments.ray_temp.absolute(), arguments.port, arguments.grafana_port)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
