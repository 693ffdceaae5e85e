"""`launch`: start a Ray head and an MLflow server; by default only this machine reaches them."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from pathlib import Path
from sys import float_info

from raytriever.cli.arguments import ABOVE_0, Parser, add_number, add_path
from raytriever.paths import OUTPUT
from raytriever.terminal import warn

MAX_PORT = 65_535


def main(words: list[str]) -> None:
    """Parse, start, and run until interrupted."""
    arguments = _parser().parse(words)

    from raytriever.cluster.launch import LaunchSettings, launch

    given = {field.name: getattr(arguments, field.name) for field in fields(LaunchSettings)}
    given |= {name: Path(given[name]).absolute() for name in ("database", "artifacts")}
    settings = LaunchSettings(**given)
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
        dest="authenticate",
        action="store_true",
        help="require the token in RAY_AUTH_TOKEN_PATH (default: ~/.ray/auth_token; created if it does not exist)",
    )
    for name, port, server in (
        ("ray", 6379, "Ray head"),
        ("dashboard", 8265, "Ray dashboard and job server"),
        ("mlflow", 5000, "MLflow server"),
    ):
        help = f"port of the {server} (default: {port})"
        add_number(parser, f"--{name}-port", int, "PORT", help, (1, MAX_PORT, f"give 1 to {MAX_PORT}"), default=port)
    add_path(parser, "--database", OUTPUT, "FILE", "database of MLflow (default: mlflow.db)", default="mlflow.db")
    help = "folder for the artifacts of MLflow (default: mlartifacts)"
    add_path(parser, "--artifacts", OUTPUT, "DIR", help, default="mlartifacts")
    help = "number of CPUs that Ray may use (default: all)"
    add_number(parser, "--num-cpus", int, "N", help, (1, inf, "give a value at least 1"))
    help = "time in which Ray must be ready (default: 120); MLflow may take longer, and Ray keeps running without it"
    seconds = (ABOVE_0, float_info.max, "give seconds above 0")
    add_number(parser, "--timeout", float, "SECONDS", help, seconds, default=120.0)
    return parser
