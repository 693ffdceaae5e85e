"""`encode`: encode the passages or the queries of a data set into a directory of embeddings."""

from __future__ import annotations

from raytriever.cli.arguments import Parser, add_output, add_settings, build_config, lock_output
from raytriever.data.config import DataConfig
from raytriever.encoding.config import EncodeConfig, check_encode
from raytriever.models.config import READING, ModelConfig
from raytriever.paths import check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, encode, print."""
    arguments = _parser().parse(words)
    model = build_config(arguments, ModelConfig)
    data = build_config(arguments, DataConfig)
    training = build_config(arguments, TrainingConfig)
    config = build_config(arguments, EncodeConfig)
    check_encode(config)
    check_paths(data, model)
    output = lock_output(arguments)

    from raytriever.cluster.encoding import run_encoding
    from raytriever.encoding.store import EMBEDDINGS, SCALES

    store = run_encoding(config, model, data, output, warn, precision=training.precision)
    size = sum(file.stat().st_size for name in (EMBEDDINGS, SCALES) for file in store.path.rglob(name))
    show(f"{len(store):,} embeddings of width {store.width}, {store.meta['dtype']}, {size / 1e6:,.1f} MB")
    show(f"\n{output}")


def _parser() -> Parser:
    parser = Parser(prog="encode", description="Encode the passages or the queries of a data set.")
    add_output(parser, "folder to write the embeddings to")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, EncodeConfig, "encoding")
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
