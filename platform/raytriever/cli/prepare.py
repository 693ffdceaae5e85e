"""`prepare`: a data set of any format becomes checked, tokenised shards; prints what was found."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, add_wait, command_line, given, lock_output, path_of
from raytriever.data.config import DataConfig
from raytriever.models.config import ModelConfig
from raytriever.options import check_options
from raytriever.paths import OUTPUT, check_paths
from raytriever.terminal import show, warn

_MODEL = ("model", "revision", "query_prefix", "passage_prefix", "query_length", "passage_length")


def main(words: list[str]) -> None:
    """Parse, prepare, print."""
    arguments = _parser().parse(words)
    model = dataclasses.replace(ModelConfig(), **given(arguments, ModelConfig))
    data = dataclasses.replace(DataConfig(), **given(arguments, DataConfig))
    for settings in (model, data):
        check_options(settings)
    check_paths(data, model)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.cluster.ingest import run_preparation

    found = run_preparation(data.dataset, arguments.format, model, data.max_bad_rows, output, warn)
    width = max(map(len, found.lines))
    show("\n".join(f"{name:<{width}}  {value}" for name, value in found.lines.items()))
    if found.quarantined:
        show(found.quarantined)
    train = command_line("python", "jobs/train.py", "--dataset", found.path, "--model", model.model)
    show(f"\nGo on with:\n  {train}")


def _parser() -> Parser:
    parser = Parser(prog="prepare", description="Check, tokenise and shard a data set, and tell what it holds.")
    parser.add_argument(
        "--output",
        type=path_of(OUTPUT, "--output"),
        required=True,
        metavar="DIR",
        help="folder to write the prepared data set to",
    )
    parser.add_argument("--format", metavar="NAME", help="the data set's format (default: recognised from its files)")
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, ModelConfig, "model", only=_MODEL)
    return parser
