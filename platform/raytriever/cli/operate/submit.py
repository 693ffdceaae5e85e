"""`submit`: upload this checkout to a Ray cluster and run another stage there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from raytriever.cli.arguments import Parser, path_type
from raytriever.errors import ConfigError
from raytriever.masking import refuse_secrets
from raytriever.options import did_you_mean
from raytriever.paths import FOLDER
from raytriever.terminal import warn


def main(words: list[str]) -> None:
    """Parse up to the stage, submit, and end with the job's exit code."""
    own, rest = _split_at_stage(words)
    arguments = _parser().parse([*own, *rest[:1]])
    for word in rest[1:]:
        refuse_secrets(word)
    folder = Path(arguments.working_dir)
    stages = sorted(path.stem for path in (folder / "jobs").glob("[a-z]*.py") if path.stem != "submit")
    if not stages:
        remedy = "give a checkout of raytriever, or run what the cluster has: `ray job submit -- raytriever STAGE ...`"
        raise ConfigError("the folder holds no jobs/", f"--working-dir {folder}", remedy)
    if arguments.stage not in stages:
        raise ConfigError(f"unknown stage {arguments.stage!r}", remedy=did_you_mean(arguments.stage, stages))

    from raytriever.cluster.submission import submit

    code = submit(["python", f"jobs/{arguments.stage}.py", *rest[1:]], folder, arguments.address, warn)
    if code:
        sys.exit(code)


def _split_at_stage(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the flags of `submit` itself, and the submitted stage with its flags."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 1 if "=" in words[index] or words[index] in ("-h", "--help") else 2
    return words[:index], words[index:]


def _parser() -> Parser:
    parser = Parser("submit", "Upload a folder to a Ray cluster and run `python jobs/STAGE.py` there.")
    parser.add_argument(
        "--address",
        metavar="URL",
        help="address of the cluster's dashboard (default: RAY_API_SERVER_ADDRESS, or the cluster of this machine)",
    )
    parser.add_argument(
        "--working-dir",
        type=path_type(FOLDER, "working_dir"),
        metavar="DIR",
        default=".",
        help="checkout to upload (default: this folder)",
    )
    parser.add_argument("stage", metavar="STAGE", help="stage to run, followed by its flags")
    flags = parser.add_argument("flags", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
    flags.required = False
    return parser
