"""`evaluate`: one model on one or several data sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, given, warn
from raytriever.data.config import DataConfig
from raytriever.models.config import READING, ModelConfig
from raytriever.options import check_options
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, evaluate, print."""
    arguments = _parser().parse(words)
    config = dataclasses.replace(ModelConfig(), **given(arguments, ModelConfig))
    data = dataclasses.replace(DataConfig(), **given(arguments, DataConfig))
    training = dataclasses.replace(TrainingConfig(), **given(arguments, TrainingConfig))
    for settings in (config, data, training):
        check_options(settings)

    from raytriever.retrieval.evaluation_job import run_evaluation
    from raytriever.retrieval.table import metrics_table

    output = Path(arguments.output)
    results = run_evaluation(
        config, arguments.datasets, arguments.split, output, training.precision, data.max_bad_rows, warn
    )
    for dataset, metrics in results.rows.items():
        print(f"\n{arguments.split} split of {dataset}")
        print(metrics_table(metrics))
    for line in results.quarantined:
        print(line)
    print(f"\n{output / 'results.json'}")


def _parser() -> Parser:
    parser = Parser(prog="evaluate", description="Measure a model on data sets, beside BM25.")
    parser.add_argument(
        "--datasets", nargs="+", metavar="PATH", required=True, help="`pydocs`, or folders in BEIR layout"
    )
    parser.add_argument("--split", default="test", metavar="NAME", help="the judged split (default: test)")
    parser.add_argument("--output", default="results", metavar="DIR", help="where results go (default: results)")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a mistake too")
    add_settings(parser, ModelConfig, "model", only=READING)
    add_settings(parser, DataConfig, "data", only=["max_bad_rows"])
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
