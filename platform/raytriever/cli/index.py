"""`index`: build, open, measure and search an approximate index over the passages of a data set."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import (
    Parser,
    add_embeddings,
    add_number,
    add_output,
    add_settings,
    build_config,
    check_effects,
    lock_output,
)
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.index.approximate.config import IndexConfig
from raytriever.models.config import READING, ModelConfig
from raytriever.options import check_changed
from raytriever.paths import check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, build or open, print."""
    arguments = _parser().parse(words)
    model = build_config(arguments, ModelConfig)
    data = build_config(arguments, DataConfig)
    training = build_config(arguments, TrainingConfig)
    config = build_config(arguments, IndexConfig)
    check_changed(config)
    check_effects(arguments, model, data, training, config, needs={"top": ("query",)})
    if arguments.query is not None and not arguments.query.strip():
        raise ConfigError("the query is empty", "--query", 'give a few words, such as "read a file line by line"')
    if arguments.top < 1:
        raise ConfigError(f"{arguments.top} is out of range", "--top", "give at least 1")
    check_paths(data, model)
    output = Path(arguments.output)
    if not output.exists():  # an existing index is only read
        lock_output(arguments, output)

    from raytriever.search.approximate import format_answers, format_measurements, run_index

    opened = run_index(
        config,
        model,
        data,
        output,
        warn,
        precision=training.precision,
        seed=training.seed,
        split=arguments.split,
        embeddings=arguments.embeddings and Path(arguments.embeddings),
    )
    index = opened.index
    action = "opened" if opened.seconds is None else f"built in {opened.seconds:,.1f} s"
    show(
        f"{config.index} over {len(index.documents):,} passages of width {index.embeddings.shape[1]}, {action}; "
        f"{index.finder.bytes / 1e6:,.1f} MB, and {index.embeddings.nbytes / 1e6:,.1f} MB of embeddings"
    )
    if arguments.split:
        show("\n" + format_measurements(opened, arguments.split))
    if arguments.query:
        show("\n" + format_answers(opened, arguments.query, arguments.top))
    show(f"\n{output}")


def _parser() -> Parser:
    parser = Parser(
        prog="index",
        description="Build an approximate index over the passages of a data set, or open and search an existing one.",
        free_text="query",
    )
    add_output(parser, "folder of the index; an existing index is opened, and built again if the passages have changed")
    add_embeddings(parser)
    parser.add_argument(
        "--split", metavar="NAME", help="compare the index with exact search on the queries of this split"
    )
    parser.add_argument("--query", metavar="TEXT", help="print the best passages for this query")
    add_number(parser, "--top", int, "K", "number of passages to print (default: 5)", default=5)
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, IndexConfig, "index")
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision", "seed"])
    return parser
