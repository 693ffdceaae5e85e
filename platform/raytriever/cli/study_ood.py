"""`study ood`: measure the gap between queries and passages, and its cost for approximate indexes."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import (
    Parser,
    add_settings,
    add_wait,
    build_config,
    check_effects,
    lock_output,
    number_type,
    path_type,
)
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.index.approximate.config import INDEXES
from raytriever.options import did_you_mean
from raytriever.paths import GAP_MODELS, OUTPUT, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig

OOD = "ood"


def main(words: list[str]) -> None:
    """Parse, study, print."""
    arguments = _parser().parse(words)
    data = build_config(arguments, DataConfig)
    training = build_config(arguments, TrainingConfig)
    check_effects(arguments, data, training, needs={"documents": ("model=control",)})
    indexes = tuple(dict.fromkeys(arguments.indexes.split(",")))
    for kind in indexes:
        if kind not in INDEXES:
            raise ConfigError(f"unknown index {kind!r}", "--indexes", did_you_mean(kind, INDEXES))
    for flag, value, minimum in (("--queries", arguments.queries, 1), ("--documents", arguments.documents, 1_000)):
        if value < minimum:
            raise ConfigError(f"{value} is out of range", flag, f"give at least {minimum:,}")
    check_paths(data)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.evaluation.names import distinct_names
    from raytriever.studies.ood.job import OodJob, run_ood

    models = tuple(dict.fromkeys(arguments.model))
    job = OodJob(
        models=models,
        dataset=data.dataset,
        split=arguments.split,
        indexes=indexes,
        query_count=arguments.queries,
        control_documents=arguments.documents,
        precision=training.precision,
        max_bad_rows=data.max_bad_rows,
        seed=training.seed,
    )
    for name, text in run_ood(job, output, dict(zip(models, distinct_names(models), strict=True)), warn).items():
        show(f"{name}\n{text}")
    show(str(output))


def _parser() -> Parser:
    parser = Parser(
        prog=f"study {OOD}",
        description="Measure the gap between queries and passages, and its cost for approximate indexes.",
    )
    parser.add_argument(
        "--output",
        type=path_type(OUTPUT, "output"),
        required=True,
        metavar="DIR",
        help="folder to write tables and figures to",
    )
    parser.add_argument(
        "--model",
        nargs="+",
        type=path_type(GAP_MODELS, "model"),
        default=["minilm"],
        metavar="NAME",
        help="encoders; `control` is a synthetic data set with a gap (default: minilm)",
    )
    parser.add_argument(
        "--indexes",
        default=",".join(kind for kind in INDEXES if kind != "vamana"),
        metavar="A,B",
        help="kinds of index to build (default: all but vamana)",
    )
    parser.add_argument(
        "--split", default="test", metavar="NAME", help="split whose queries are searched (default: test)"
    )
    parser.add_argument(
        "--queries",
        type=number_type(int, "--queries"),
        default=1_000,
        metavar="N",
        help="number of queries, and of held-out passages (default: 1000)",
    )
    parser.add_argument(
        "--documents",
        type=number_type(int, "--documents"),
        default=100_000,
        metavar="N",
        help="number of documents in the control set (default: 100000)",
    )
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision", "seed"])
    return parser
