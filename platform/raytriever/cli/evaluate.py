"""`evaluate`: models side by side on data sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, add_wait, check_given, given, lock_output, path_of
from raytriever.data.config import DataConfig
from raytriever.encoding.config import EncodeConfig, check_encode
from raytriever.errors import ConfigError
from raytriever.evaluation.config import EvaluationConfig
from raytriever.models.config import READING, ModelConfig
from raytriever.options import check_options
from raytriever.paths import DATASET, MODELS, OUTPUT, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, evaluate, print."""
    arguments = _parser().parse(words)
    model = dataclasses.replace(ModelConfig(), **given(arguments, ModelConfig))
    data = dataclasses.replace(DataConfig(), **given(arguments, DataConfig))
    training = dataclasses.replace(TrainingConfig(), **given(arguments, TrainingConfig))
    config = dataclasses.replace(EvaluationConfig(), **given(arguments, EvaluationConfig))
    encoding = dataclasses.replace(EncodeConfig(), **given(arguments, EncodeConfig))
    for settings in (model, data, training, config, encoding):
        check_options(settings)
    check_encode(encoding)
    check_given(arguments, model, data, training, config, encoding)
    check_paths(config)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.cluster.evaluation import evaluate_in_session
    from raytriever.evaluation.datasets import describe_datasets, with_mteb_task
    from raytriever.evaluation.job import format_results
    from raytriever.evaluation.pooled_scores import parse_aims
    from raytriever.evaluation.protocol import Protocol, read_metrics
    from raytriever.evaluation.request import EvaluationJob, add_suite, choose_baselines, pin_models, read_models
    from raytriever.evaluation.results import RESULTS
    from raytriever.tracking.mlflow_tracker import tracking_uri
    from raytriever.tracking.spool import open_adjacent

    if not arguments.datasets and not config.suite:
        raise ConfigError("no data set is given", remedy="give --datasets PATH, or --suite beir")
    models = pin_models(read_models(arguments.models, model))
    protocol = Protocol(read_metrics(config.metrics), level=config.relevance_level, drop_own=config.drop_own_id)
    job = EvaluationJob(
        models=models,
        datasets=[with_mteb_task(one) for one in describe_datasets(arguments.datasets, config.split)],
        baselines=choose_baselines(arguments.baseline, models),
        protocol=protocol,
        aims=parse_aims(arguments.calibrate),
        calibration_split=config.calibration_split,
        precision=training.precision,
        max_bad_rows=data.max_bad_rows,
    )
    if config.suite:
        job = add_suite(job, Path(config.data_root) if config.data_root else None, warn)
    results = evaluate_in_session(
        job, encoding, output, arguments.fresh, lambda: open_adjacent(tracking_uri(), output, warn), warn
    )
    show(format_results(results))
    show(f"\n{output / RESULTS}")


def _parser() -> Parser:
    parser = Parser(prog="evaluate", description="Measure models side by side on data sets.")
    parser.add_argument(
        "--model",
        nargs="+",
        dest="models",
        type=path_of(MODELS, "--model"),
        metavar="MODEL",
        default=[ModelConfig().model],
        help="`bm25`, `minilm`, directories, runs or hub names; NAME=MODEL calls one NAME (default: minilm)",
    )
    parser.add_argument(
        "--datasets",
        nargs="+",
        type=path_of(DATASET, "--datasets"),
        metavar="PATH",
        default=[],
        help="as --dataset of the other jobs; a folder of data sets is one, the mean over them",
    )
    parser.add_argument(
        "--baseline",
        nargs="+",
        default=[],
        metavar="NAME",
        help="the models that the others are compared with, one or two (default: the first)",
    )
    parser.add_argument(
        "--calibrate",
        nargs="+",
        default=[],
        metavar="AIM",
        help="thresholds for a wanted precision=0.9 or recall=0.8, chosen on --calibration-split, checked on --split",
    )
    parser.add_argument(
        "--output",
        type=path_of(OUTPUT, "--output"),
        default="results",
        metavar="DIR",
        help="where results go (default: results)",
    )
    parser.add_argument("--fresh", action="store_true", help="remove an earlier evaluation of --output")
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    add_settings(parser, EvaluationConfig, "measuring")
    add_settings(parser, ModelConfig, "models, all of them", only=[name for name in READING if name != "model"])
    add_settings(parser, DataConfig, "data", only=["max_bad_rows"])
    add_settings(parser, EncodeConfig, "encoding", only=["actors", "actor_gpus", "actor_cpus"])
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
