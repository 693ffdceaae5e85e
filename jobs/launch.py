"""The stage `launch` of raytriever; see `--help`."""

import sys

from raytriever.cli.main import run

if __name__ == "__main__":
    sys.exit(run("launch"))
