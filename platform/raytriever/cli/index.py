"""`index`: the passages of a data set become an approximate index, which is opened, measured and searched."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, add_wait, check_given, given, lock_output, path_of
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.index.approximate.config import IndexConfig, check_index
from raytriever.models.config import READING, ModelConfig
from raytriever.options import check_options
from raytriever.paths import EMBEDDINGS, OUTPUT, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, build or open, print."""
    arguments = _parser().parse(words)
    model = dataclasses.replace(ModelConfig(), **given(arguments, ModelConfig))
    data = dataclasses.replace(DataConfig(), **given(arguments, DataConfig))
    training = dataclasses.replace(TrainingConfig(), **given(arguments, TrainingConfig))
    config = dataclasses.replace(IndexConfig(), **given(arguments, IndexConfig))
    for settings in (model, data, training, config):
        check_options(settings)
    check_index(config)
    check_given(arguments, model, data, training, config, needs={"top": ("query",)})
    if arguments.query is not None and not arguments.query.strip():
        raise ConfigError("is empty", "--query", 'give a few words, such as "read a file line by line"')
    if arguments.top < 1:
        raise ConfigError(f"{arguments.top} is out of range", "--top", "give at least 1")
    check_paths(data, model)
    output = Path(arguments.output)
    if not output.exists():  # a finished index is only read
        lock_output(arguments, output)

    from raytriever.search.approximate import IndexJob, format_answers, format_measurements, run_index

    job = IndexJob(
        data.dataset,
        config,
        model,
        training.precision,
        data.max_bad_rows,
        training.seed,
        arguments.split,
        Path(arguments.embeddings) if arguments.embeddings else None,
    )
    found = run_index(job, output, warn)
    index = found.index
    how = "opened" if found.seconds is None else f"built in {found.seconds:,.1f} s"
    show(
        f"{config.index} over {len(index.documents):,} passages of width {index.embeddings.shape[1]}, {how}; "
        f"{index.finder.bytes / 1e6:,.1f} MB beside the {index.embeddings.nbytes / 1e6:,.1f} MB of embeddings"
    )
    if arguments.split:
        show("\n" + format_measurements(found, arguments.split))
    if arguments.query:
        show("\n" + format_answers(found, arguments.query, arguments.top))
    show(f"\n{output}")


def _parser() -> Parser:
    parser = Parser(
        prog="index",
        description="Build an approximate index over the passages of a data set, or open it.",
        free_text="query",
    )
    parser.add_argument(
        "--output",
        type=path_of(OUTPUT, "--output"),
        required=True,
        metavar="DIR",
        help="folder of the index: written there, or opened if it exists",
    )
    parser.add_argument(
        "--embeddings",
        type=path_of(EMBEDDINGS, "--embeddings"),
        metavar="DIR",
        help="the passages as jobs/encode.py encoded them with --model",
    )
    parser.add_argument("--split", metavar="NAME", help="compare the index with exact search on this split's queries")
    parser.add_argument("--query", metavar="TEXT", help="print the best passages for it")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="how many passages (default: 5)")
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, IndexConfig, "index")
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision", "seed"])
    return parser
