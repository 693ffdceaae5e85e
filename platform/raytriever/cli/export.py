"""`export`: a model is handed over, with graphs for other runtimes and a model card."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, add_wait, given, lock_output, path_of
from raytriever.export.config import ExportConfig
from raytriever.models.config import READING, ModelConfig
from raytriever.options import check_options
from raytriever.paths import OUTPUT, check_paths
from raytriever.terminal import show, warn


def main(words: list[str]) -> None:
    """Parse, export, print."""
    arguments = _parser().parse(words)
    model = dataclasses.replace(ModelConfig(), **given(arguments, ModelConfig))
    asked = dataclasses.replace(ExportConfig(), **given(arguments, ExportConfig))
    for settings in (model, asked):
        check_options(settings)
    check_paths(model, asked)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.export.model import export, push_to_hub

    for parity in export(model, asked, output, warn):
        show(str(parity))
    if asked.push_to_hub:
        show(push_to_hub(output, asked.push_to_hub))
    show(f"\n{output}")


def _parser() -> Parser:
    parser = Parser(prog="export", description="Hand a model over: weights, graphs for other runtimes, a model card.")
    parser.add_argument(
        "--output", type=path_of(OUTPUT, "--output"), required=True, metavar="DIR", help="a new directory"
    )
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, ExportConfig, "handing over")
    return parser
