"""`export`: write a model with graphs for other runtimes and a model card."""

from __future__ import annotations

from raytriever.cli.arguments import Parser, add_output, add_settings, build_config, lock_output
from raytriever.export.config import ExportConfig
from raytriever.models.config import READING, ModelConfig
from raytriever.paths import check_paths
from raytriever.terminal import show, warn


def main(words: list[str]) -> None:
    """Parse, export, print."""
    arguments = _parser().parse(words)
    model = build_config(arguments, ModelConfig)
    config = build_config(arguments, ExportConfig)
    check_paths(model, config)
    output = lock_output(arguments)

    from raytriever.export.model import export, push_to_hub

    for parity in export(model, config, output, warn):
        show(str(parity))
    if config.push_to_hub:
        show(push_to_hub(output, config.push_to_hub))
    show(f"\n{output}")


def _parser() -> Parser:
    parser = Parser(prog="export", description="Write a model for other runtimes: weights, graphs and a model card.")
    add_output(parser, "a new directory")
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, ExportConfig, "export")
    return parser
