"""`study ood`: the gap between queries and passages, and what indexes pay for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, add_wait, check_given, given, lock_output, path_of
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.index.approximate.config import INDEXES
from raytriever.options import check_options, did_you_mean
from raytriever.paths import GAP_MODELS, OUTPUT, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig

OOD = "ood"


def main(words: list[str]) -> None:
    """Parse, study, print."""
    arguments = _parser().parse(words)
    data = dataclasses.replace(DataConfig(), **given(arguments, DataConfig))
    training = dataclasses.replace(TrainingConfig(), **given(arguments, TrainingConfig))
    for settings in (data, training):
        check_options(settings)
    check_given(arguments, data, training, needs={"documents": ("model=control",)})
    indexes = tuple(dict.fromkeys(arguments.indexes.split(",")))
    for kind in indexes:
        if kind not in INDEXES:
            raise ConfigError(f"unknown index {kind!r}", "--indexes", did_you_mean(kind, INDEXES))
    for flag, value, least in (("--queries", arguments.queries, 1), ("--documents", arguments.documents, 1_000)):
        if value < least:
            raise ConfigError(f"{value} is out of range", flag, f"give at least {least:,}")
    check_paths(data)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.evaluation.names import distinct_names
    from raytriever.studies.ood.job import OodJob, run_ood

    models = tuple(dict.fromkeys(arguments.model))
    job = OodJob(
        models,
        data.dataset,
        arguments.split,
        indexes,
        arguments.queries,
        arguments.documents,
        training.precision,
        data.max_bad_rows,
        training.seed,
    )
    for name, text in run_ood(job, output, dict(zip(models, distinct_names(models), strict=True)), warn).items():
        show(f"{name}\n{text}")
    show(str(output))


def _parser() -> Parser:
    parser = Parser(prog=f"study {OOD}", description="Measure the gap between queries and passages.")
    parser.add_argument("study", metavar=OOD, help="this study")
    parser.add_argument(
        "--output",
        type=path_of(OUTPUT, "--output"),
        required=True,
        metavar="DIR",
        help="folder to write tables and figures to",
    )
    parser.add_argument(
        "--model",
        nargs="+",
        type=path_of(GAP_MODELS, "--model"),
        default=["minilm"],
        metavar="NAME",
        help="encoders; `control` is synthetic, with a gap",
    )
    parser.add_argument(
        "--indexes",
        default=",".join(kind for kind in INDEXES if kind != "vamana"),
        metavar="A,B",
        help="which are built",
    )
    parser.add_argument(
        "--split", default="test", metavar="NAME", help="split whose queries are searched (default: test)"
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=1_000,
        metavar="N",
        help="number of queries, and of passages that are held out (default: 1000)",
    )
    parser.add_argument(
        "--documents", type=int, default=100_000, metavar="N", help="of the control set (default: 100000)"
    )
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision", "seed"])
    return parser
