"""`mine`: hard negatives of a data set's queries, written as a table that `train` reads."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

from raytriever.cli.arguments import (
    Parser,
    add_settings,
    add_wait,
    check_given,
    command_line,
    given,
    lock_output,
    path_of,
)
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.mining.config import MiningConfig, check_mining
from raytriever.models.config import READING, ModelConfig
from raytriever.options import check_options
from raytriever.paths import EMBEDDINGS, OUTPUT, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig

_RANKS = re.compile(r"(\d{1,9}):(\d{1,9})")


_BY_ENCODER = ("method=dense|cross-query",)
_NEEDS = dict.fromkeys((*READING, "embeddings"), _BY_ENCODER) | {"precision": (*_BY_ENCODER, "judge")}


def main(words: list[str]) -> None:
    """Parse, mine, print."""
    arguments = _parser().parse(words)
    mining = dataclasses.replace(MiningConfig(), **given(arguments, MiningConfig) | _ranks(arguments))
    model = dataclasses.replace(ModelConfig(), **given(arguments, ModelConfig))
    data = dataclasses.replace(DataConfig(), **given(arguments, DataConfig))
    training = dataclasses.replace(TrainingConfig(), **given(arguments, TrainingConfig))
    for settings in (mining, model, data, training):
        check_options(settings)
    check_mining(mining)
    check_given(arguments, mining, model, data, training, needs=_NEEDS)
    if not 0 <= arguments.round < 2**31:
        raise ConfigError(f"{arguments.round} is out of range", "--round", "give at least 0")
    check_paths(data, model, mining)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.mining.job import MiningJob, format_counts, run_mining

    job = MiningJob(
        data.dataset,
        arguments.split,
        mining,
        model,
        training.precision,
        data.max_bad_rows,
        training.seed,
        arguments.round,
        Path(arguments.embeddings) if arguments.embeddings is not None else None,
    )
    mined, quarantined = run_mining(job, output, warn)
    show(format_counts(mined))
    short, none = int((mined.found < mined.wanted).sum()), int((mined.found == 0).sum())
    show(f"\n{len(mined.found):,} queries; {short:,} of them have fewer than {mined.wanted}, {none:,} have none")
    if quarantined:
        show(quarantined)
    show(
        f"\nGo on with:\n  python jobs/train.py --dataset {data.dataset} --negatives-table {output} "
        f"--negatives-per-query {min(mining.num_negatives, 5)}"
    )
    words = ["--dataset", data.dataset, "--negatives-table", str(output)]
    words += ["--negatives-per-query", str(min(mining.num_negatives, 5))]
    train = command_line("python", "jobs/train.py", *words)
    show(f"\nGo on with:\n  {train}")


def _ranks(arguments: argparse.Namespace) -> dict[str, Any]:
    """`--ranks 30:200` as the two settings it stands for."""
    if arguments.ranks is None:
        return {}
    for name in ("range_min", "range_max"):
        if hasattr(arguments, name):
            raise ConfigError("says the same as --ranks", f"--{name.replace('_', '-')}", "give one of them")
    found = _RANKS.fullmatch(arguments.ranks)
    if found is None:
        raise ConfigError(f"{arguments.ranks!r}", "--ranks", "give two whole numbers, as in 30:200")
    return {"range_min": int(found[1]), "range_max": int(found[2])}


def _parser() -> Parser:
    parser = Parser(prog="mine", description="Find hard negatives, and remove the false ones among them.")
    parser.add_argument(
        "--output",
        type=path_of(OUTPUT, "--output"),
        required=True,
        metavar="DIR",
        help="folder to write the negatives table to",
    )
    parser.add_argument(
        "--split", default="train", metavar="NAME", help="split whose queries get negatives (default: train)"
    )
    parser.add_argument("--ranks", metavar="A:B", help="--range-min A --range-max B")
    parser.add_argument(
        "--round", type=int, default=0, metavar="N", help="the round of mining, as the table tells it (default: 0)"
    )
    parser.add_argument(
        "--embeddings",
        type=path_of(EMBEDDINGS, "--embeddings"),
        metavar="DIR",
        help="the passages as jobs/encode.py encoded them with --model; by default they are encoded here, and kept",
    )
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    add_settings(parser, MiningConfig, "mining")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, TrainingConfig, "arithmetic and draws", only=["precision", "seed"])
    return parser
