"""`launch`: a Ray head and an MLflow server on this machine, for this machine unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import Parser, path_of
from raytriever.errors import ConfigError
from raytriever.paths import OUTPUT
from raytriever.terminal import warn

MOST_PORT = 65_535


def main(words: list[str]) -> None:
    """Parse, start, and stay until it is stopped."""
    arguments = _parser().parse(words)
    for name in ("ray_port", "dashboard_port", "mlflow_port"):
        port = getattr(arguments, name)
        if not 1 <= port <= MOST_PORT:
            raise ConfigError(f"{port} is no port", f"--{name.replace('_', '-')}", f"give 1 to {MOST_PORT}")
    if arguments.num_cpus is not None and arguments.num_cpus < 1:
        raise ConfigError(f"{arguments.num_cpus} is out of range", "--num-cpus", "give a value at least 1")
    if not 0 < arguments.timeout < float("inf"):
        raise ConfigError(f"{arguments.timeout:g} is out of range", "--timeout", "give seconds above 0")

    from raytriever.cluster.launch import LaunchSettings, launch

    asked = LaunchSettings(
        host=arguments.host,
        authenticate=arguments.auth,
        ray_port=arguments.ray_port,
        dashboard_port=arguments.dashboard_port,
        mlflow_port=arguments.mlflow_port,
        database=Path(arguments.database).absolute(),
        artifacts=Path(arguments.artifacts).absolute(),
        num_cpus=arguments.num_cpus,
        timeout=arguments.timeout,
    )
    try:
        launch(asked, warn)
    except KeyboardInterrupt:
        warn("stopped")


def _parser() -> Parser:
    parser = Parser(prog="launch", description="Start a Ray head and an MLflow server here, and stop both with Ctrl-C.")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where Ray listens (default: 127.0.0.1, this machine alone; any other address needs --auth)",
    )
    parser.add_argument(
        "--auth",
        action="store_true",
        help="let Ray ask for the token in RAY_AUTH_TOKEN_PATH (default: ~/.ray/auth_token; made if there is none)",
    )
    for name, port, what in (("ray", 6379, "the Ray head"), ("dashboard", 8265, "its dashboard and jobs")):
        parser.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT", help=f"of {what} ({port})")
    parser.add_argument("--mlflow-port", type=int, default=5000, metavar="PORT", help="of MLflow (5000)")
    parser.add_argument(
        "--database",
        type=path_of(OUTPUT, "--database"),
        default="mlflow.db",
        metavar="FILE",
        help="MLflow's (default: mlflow.db)",
    )
    parser.add_argument(
        "--artifacts",
        type=path_of(OUTPUT, "--artifacts"),
        default="mlartifacts",
        metavar="DIR",
        help="MLflow's files (default: mlartifacts)",
    )
    parser.add_argument(
        "--num-cpus", type=int, metavar="N", help="as how many Ray counts this machine's (default: all)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="in which Ray must be ready (default: 120); MLflow may take longer, and Ray is kept without it",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    return parser
