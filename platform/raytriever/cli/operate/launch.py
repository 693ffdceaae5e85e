"""`launch`: start a Ray head and an MLflow server; by default only this machine reaches them."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import Parser, number_type, path_type
from raytriever.errors import ConfigError
from raytriever.paths import OUTPUT
from raytriever.terminal import warn

MAX_PORT = 65_535


def main(words: list[str]) -> None:
    """Parse, start, and run until interrupted."""
    arguments = _parser().parse(words)
    for name in ("ray_port", "dashboard_port", "mlflow_port"):
        port = getattr(arguments, name)
        if not 1 <= port <= MAX_PORT:
            raise ConfigError(f"{port} is not a port", f"--{name.replace('_', '-')}", f"give 1 to {MAX_PORT}")
    if arguments.num_cpus is not None and arguments.num_cpus < 1:
        raise ConfigError(f"{arguments.num_cpus} is out of range", "--num-cpus", "give a value at least 1")
    if not 0 < arguments.timeout < float("inf"):
        raise ConfigError(f"{arguments.timeout:g} is out of range", "--timeout", "give seconds above 0")

    from raytriever.cluster.launch import LaunchSettings, launch

    settings = LaunchSettings(
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
        launch(settings, warn)
    except KeyboardInterrupt:
        warn("stopped")


def _parser() -> Parser:
    parser = Parser(prog="launch", description="Start a Ray head and an MLflow server here, and stop both with Ctrl-C.")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address on which Ray listens (default: 127.0.0.1, this machine only; any other address needs --auth)",
    )
    parser.add_argument(
        "--auth",
        action="store_true",
        help="require the token in RAY_AUTH_TOKEN_PATH (default: ~/.ray/auth_token; created if it does not exist)",
    )
    for name, port, server in (("ray", 6379, "Ray head"), ("dashboard", 8265, "Ray dashboard and job server")):
        parser.add_argument(
            f"--{name}-port",
            type=number_type(int, f"--{name}-port"),
            default=port,
            metavar="PORT",
            help=f"port of the {server} (default: {port})",
        )
    parser.add_argument(
        "--mlflow-port",
        type=number_type(int, "--mlflow-port"),
        default=5000,
        metavar="PORT",
        help="port of the MLflow server (default: 5000)",
    )
    parser.add_argument(
        "--database",
        type=path_type(OUTPUT, "database"),
        default="mlflow.db",
        metavar="FILE",
        help="database of MLflow (default: mlflow.db)",
    )
    parser.add_argument(
        "--artifacts",
        type=path_type(OUTPUT, "artifacts"),
        default="mlartifacts",
        metavar="DIR",
        help="folder for the artifacts of MLflow (default: mlartifacts)",
    )
    parser.add_argument(
        "--num-cpus",
        type=number_type(int, "--num-cpus"),
        metavar="N",
        help="number of CPUs that Ray may use (default: all)",
    )
    parser.add_argument(
        "--timeout",
        type=number_type(float, "--timeout"),
        default=120.0,
        metavar="SECONDS",
        help="time in which Ray must be ready (default: 120); MLflow may take longer, and Ray keeps running without it",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser
