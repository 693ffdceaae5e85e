"""`import`: write a folder of documents, and questions that they answer, as a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raytriever.cli.arguments import (
    Parser,
    add_output,
    add_path,
    add_settings,
    build_config,
    check_effects,
    lock_output,
)
from raytriever.data.config import ImportConfig
from raytriever.models.config import ModelConfig
from raytriever.paths import DOCUMENTS, check_paths
from raytriever.terminal import show, warn

if TYPE_CHECKING:
    from raytriever.documents.summary import ImportSummary

_MODEL = ("model", "revision", "passage_prompt", "passage_prompt_name", "passage_length")


def main(words: list[str]) -> None:
    """Parse, import, print."""
    arguments = _parser().parse(words)
    config = build_config(arguments, ImportConfig)
    model = build_config(arguments, ModelConfig)
    check_effects(arguments, config)
    check_paths(config, model)
    output = lock_output(arguments)

    from raytriever.documents.job import import_folder
    from raytriever.documents.summary import summary_lines

    summary: ImportSummary = import_folder(arguments.folder, output, config, model, warn)
    for line in summary_lines(summary, config, model.model):
        show(line)


def _parser() -> Parser:
    parser = Parser(
        "import",
        "Write a folder of Markdown, HTML, text and PDF files as a data set.",
    )
    add_path(parser, "folder", DOCUMENTS, "FOLDER", "folder of documents, or its URI")
    add_output(parser, "folder to write the data set to, in BEIR layout; an import that is there is replaced")
    add_settings(parser, ImportConfig, "import")
    add_settings(parser, ModelConfig, "model", only=_MODEL)
    return parser
