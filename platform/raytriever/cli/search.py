"""`search`: print the best passages for a query, with their scores."""

from __future__ import annotations

import math

from raytriever.cli.arguments import Parser, add_number, add_path, add_settings, build_config
from raytriever.errors import ConfigError
from raytriever.models.config import READING, ModelConfig
from raytriever.paths import DATASET, check_paths
from raytriever.terminal import show
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, search, print."""
    arguments = _parser().parse(words)
    config = build_config(arguments, ModelConfig)
    if not arguments.query.strip():
        raise ConfigError("the query is empty", remedy='give a few words, such as "read a file line by line"')
    if arguments.top < 1:
        raise ConfigError(f"{arguments.top} is out of range", "--top", "give at least 1")
    if arguments.threshold is not None and math.isnan(arguments.threshold):
        raise ConfigError("nan is out of range", "--threshold", "give a score, such as 0.5")
    check_paths(config)

    from raytriever.search.exact import format_hits, search_dataset

    precision = build_config(arguments, TrainingConfig).precision
    hits = search_dataset(config, arguments.dataset, arguments.query, arguments.top, arguments.threshold, precision)
    show(format_hits(hits))


def _parser() -> Parser:
    parser = Parser(prog="search", description="Find the best passages of a data set for a query.", free_text="query")
    parser.add_argument("query", help="the question")
    add_path(
        parser,
        "--dataset",
        DATASET,
        "PATH",
        "`pydocs`, path or URI; see docs/reference/formats.md (default: pydocs)",
        default="pydocs",
    )
    add_number(parser, "--top", int, "K", "number of passages to print (default: 5)", default=5)
    add_number(
        parser,
        "--threshold",
        float,
        "SCORE",
        "lowest score of a passage to print (default: all; a line says if the best one is below the threshold of "
        "the model's calibration.json)",
    )
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
