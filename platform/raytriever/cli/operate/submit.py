"""`submit`: another stage, on a cluster, in an upload of this checkout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from raytriever.cli.arguments import Parser, path_of
from raytriever.errors import ConfigError
from raytriever.masking import refuse_secrets
from raytriever.options import did_you_mean
from raytriever.paths import FOLDER
from raytriever.terminal import warn


def main(words: list[str]) -> None:
    """Parse up to the stage, submit, and end with the job's exit code."""
    own, rest = _cut(words)
    arguments = _parser().parse([*own, *rest[:1]])
    for word in rest[1:]:
        refuse_secrets(word)
    folder = Path(arguments.working_dir)
    stages = sorted(path.stem for path in (folder / "jobs").glob("[a-z]*.py") if path.stem != "submit")
    if not stages:
        raise ConfigError("holds no jobs/", f"--working-dir {folder}", "give a checkout of raytriever")
    if arguments.stage not in stages:
        raise ConfigError(f"unknown stage {arguments.stage!r}", remedy=did_you_mean(arguments.stage, stages))

    from raytriever.cluster.submission import submit

    code = submit(["python", f"jobs/{arguments.stage}.py", *rest[1:]], folder, arguments.address, warn)
    if code:
        sys.exit(code)


def _cut(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before the stage, which are this one's, and the stage with all that follows."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 1 if "=" in words[place] or words[place] in ("-h", "--help") else 2
    return words[:place], words[place:]


def _parser() -> Parser:
    parser = Parser(
        "submit", "Run a stage on a Ray cluster: the folder is uploaded, and `python jobs/STAGE.py` runs there."
    )
    parser.add_argument(
        "--address",
        metavar="URL",
        help="of the cluster's dashboard (default: RAY_API_SERVER_ADDRESS, or this machine's)",
    )
    parser.add_argument(
        "--working-dir",
        type=path_of(FOLDER, "--working-dir"),
        metavar="DIR",
        default=".",
        help="the checkout to upload (default: this folder)",
    )
    parser.add_argument("stage", metavar="STAGE", help="what runs there, with its flags after it")
    parser.add_argument("flags", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
    return parser
