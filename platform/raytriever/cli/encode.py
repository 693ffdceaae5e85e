"""`encode`: one side of a data set becomes a directory of embeddings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, add_wait, given, lock_output, path_of
from raytriever.data.config import DataConfig
from raytriever.encoding.config import EncodeConfig, check_encode
from raytriever.models.config import READING, ModelConfig
from raytriever.options import check_options
from raytriever.paths import OUTPUT, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, encode, print."""
    arguments = _parser().parse(words)
    model = dataclasses.replace(ModelConfig(), **given(arguments, ModelConfig))
    data = dataclasses.replace(DataConfig(), **given(arguments, DataConfig))
    training = dataclasses.replace(TrainingConfig(), **given(arguments, TrainingConfig))
    config = dataclasses.replace(EncodeConfig(), **given(arguments, EncodeConfig))
    for settings in (model, data, training, config):
        check_options(settings)
    check_encode(config)
    check_paths(data, model)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.cluster.encoding import run_encoding

    found = run_encoding(data.dataset, model, config, training.precision, data.max_bad_rows, output, warn)
    meta = found.store.meta
    size = sum(file.stat().st_size for file in found.store.path.rglob("*.npy"))
    show(f"{len(found.store):,} embeddings of width {found.store.width}, {meta['dtype']}, {size / 1e6:,.1f} MB")
    if found.quarantined:
        show(found.quarantined)
    show(f"\n{output}")


def _parser() -> Parser:
    parser = Parser(prog="encode", description="Encode the passages or the queries of a data set.")
    parser.add_argument(
        "--output",
        type=path_of(OUTPUT, "--output"),
        required=True,
        metavar="DIR",
        help="folder to write the embeddings to",
    )
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, EncodeConfig, "encoding")
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
