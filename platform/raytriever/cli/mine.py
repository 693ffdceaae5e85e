"""`mine`: find hard negatives for the queries of a data set and write them as a table that `train` reads."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from raytriever.cli.arguments import (
    Parser,
    add_embeddings,
    add_number,
    add_output,
    add_settings,
    build_config,
    check_effects,
    lock_output,
    quote_command,
)
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.mining.config import MiningConfig, check_mining
from raytriever.models.config import READING, ModelConfig
from raytriever.paths import check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig

_RANKS = re.compile(r"(\d{1,9}):(\d{1,9})")
_BY_ENCODER = ("method=dense|cross-query",)
_NEEDS = dict.fromkeys((*READING, "embeddings"), _BY_ENCODER) | {"precision": (*_BY_ENCODER, "judge")}


def main(words: list[str]) -> None:
    """Parse, mine, print."""
    arguments = _parser().parse(words)
    mining = build_config(arguments, MiningConfig, **_ranks(arguments))
    model = build_config(arguments, ModelConfig)
    data = build_config(arguments, DataConfig)
    training = build_config(arguments, TrainingConfig)
    check_mining(mining)
    check_effects(arguments, mining, model, data, training, needs=_NEEDS)
    check_paths(data, model, mining)
    output = lock_output(arguments)

    from raytriever.mining.job import format_counts, run_mining

    mined, quarantined = run_mining(
        mining,
        model,
        data,
        output,
        warn,
        split=arguments.split,
        precision=training.precision,
        seed=training.seed,
        round=arguments.round,
        embeddings=arguments.embeddings and Path(arguments.embeddings),
    )
    show(format_counts(mined))
    counts = mined.counts_per_query
    short, none = int((counts < mined.wanted).sum()), int((counts == 0).sum())
    show(f"\n{len(counts):,} queries; {short:,} of them have fewer than {mined.wanted}, {none:,} have none")
    if quarantined:
        show(quarantined)
    words = ["--dataset", data.dataset, "--negatives-table", str(output)]
    words += ["--negatives-per-query", str(min(mining.num_negatives, 5))]
    show(f"\nContinue with:\n  {quote_command('raytriever', 'train', *words)}")


def _ranks(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the two settings for which `--ranks 30:200` is short."""
    if arguments.ranks is None:
        return {}
    for name in ("range_min", "range_max"):
        if hasattr(arguments, name):
            raise ConfigError("sets the same as --ranks", f"--{name.replace('_', '-')}", "give one of them")
    match = _RANKS.fullmatch(arguments.ranks)
    if match is None:
        raise ConfigError(f"{arguments.ranks!r} is not a range", "--ranks", "give two whole numbers, as in 30:200")
    return {"range_min": int(match[1]), "range_max": int(match[2])}


def _parser() -> Parser:
    parser = Parser(prog="mine", description="Find hard negatives, and remove the false ones among them.")
    add_output(parser, "folder to write the negatives table to")
    parser.add_argument(
        "--split", default="train", metavar="NAME", help="split whose queries get negatives (default: train)"
    )
    parser.add_argument("--ranks", metavar="A:B", help="short for --range-min A --range-max B")
    number = "number of this round of mining, which the table records (default: 0)"
    add_number(parser, "--round", int, "N", number, (0, 2**31 - 1, "give at least 0"), default=0)
    add_embeddings(parser)
    add_settings(parser, MiningConfig, "mining")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows", "bm25_language"])
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, TrainingConfig, "arithmetic and random draws", only=["precision", "seed"])
    return parser
