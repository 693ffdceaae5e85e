"""The command `prepare` of raytriever; see `--help`."""

import sys

import _checkout  # noqa: F401
from raytriever.cli.main import run

if __name__ == "__main__":
    sys.exit(run("prepare"))
