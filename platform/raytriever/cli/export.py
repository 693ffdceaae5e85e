"""`export`: write a model with graphs for other runtimes and a model card."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, add_wait, build_config, lock_output, path_type
from raytriever.export.config import ExportConfig
from raytriever.models.config import READING, ModelConfig
from raytriever.paths import OUTPUT, check_paths
from raytriever.terminal import show, warn


def main(words: list[str]) -> None:
    """Parse, export, print."""
    arguments = _parser().parse(words)
    model = build_config(arguments, ModelConfig)
    config = build_config(arguments, ExportConfig)
    check_paths(model, config)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.export.model import export, push_to_hub

    for parity in export(model, config, output, warn):
        show(str(parity))
    if config.push_to_hub:
        show(push_to_hub(output, config.push_to_hub))
    show(f"\n{output}")


def _parser() -> Parser:
    parser = Parser(prog="export", description="Write a model for other runtimes: weights, graphs and a model card.")
    parser.add_argument(
        "--output", type=path_type(OUTPUT, "output"), required=True, metavar="DIR", help="a new directory"
    )
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, ExportConfig, "export")
    return parser
