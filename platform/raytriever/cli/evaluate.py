"""`evaluate`: measure models on data sets and compare them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from raytriever.cli.arguments import (
    Parser,
    add_output,
    add_path,
    add_settings,
    add_trackers,
    build_config,
    check_effects,
    lock_output,
)
from raytriever.data.config import DataConfig
from raytriever.encoding.config import EncodeConfig, check_encode
from raytriever.errors import ConfigError
from raytriever.evaluation.config import EvaluationConfig
from raytriever.models.config import READING, ModelConfig
from raytriever.paths import DATASET, MODELS, UNANSWERABLE, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig

MTEB = "mteb"
# Flags of the other evaluation, which compares models on data sets.
_NEEDS = dict.fromkeys(("datasets", "baseline", "bm25_language"), (f"suite!={MTEB}",))


def main(words: list[str]) -> None:
    """Parse, evaluate, print."""
    arguments = _parser().parse(words)
    config = build_config(arguments, EvaluationConfig)
    if config.suite == MTEB and len(config.widths) > 1:
        raise ConfigError("names several widths, which --suite mteb cannot compare", "--truncate-dim", "give one")
    model = build_config(arguments, ModelConfig, truncate_dim=config.model_width)
    data = build_config(arguments, DataConfig)
    training = build_config(arguments, TrainingConfig)
    # --dtype names the forms that are measured; embeddings are stored in fp32.
    encoding = build_config(arguments, EncodeConfig, dtype=EncodeConfig.dtype)
    check_encode(encoding)
    check_effects(arguments, model, data, training, encoding, config, needs=_NEEDS)
    check_paths(config)
    output = lock_output(arguments)
    is_mteb = config.suite == MTEB
    if is_mteb and "drop_own_id" in arguments.explicit_flags:  # `check_effects` does not see it, because it is false
        raise ConfigError(f"has no effect with --suite {MTEB}", "--no-drop-own-id", "leave it out")

    from raytriever.cluster.evaluation import evaluate_in_session
    from raytriever.evaluation.request import read_models

    models = read_models(arguments.models, model)
    session = encoding, output, arguments.fresh, arguments.trackers, warn
    if is_mteb:
        from raytriever.mteb.job import TABLE, build_mteb_job, run_mteb

        mteb_job = build_mteb_job(
            models, config, arguments.calibrate, arguments.unanswerable, training.precision, data.max_bad_rows
        )
        scores = evaluate_in_session(partial(run_mteb, mteb_job), *session)
        show(scores.table())
        show(f"{output / TABLE}")
        scores.raise_failures()
        return

    from raytriever.evaluation.document import format_results
    from raytriever.evaluation.files import LATEX
    from raytriever.evaluation.job import run_evaluation
    from raytriever.evaluation.request import build_evaluation_job
    from raytriever.evaluation.results import RESULTS
    from raytriever.report.evaluation import write_evaluation_report

    job = build_evaluation_job(
        models,
        arguments.datasets,
        config,
        arguments.baseline,
        arguments.calibrate,
        arguments.unanswerable,
        training.precision,
        data.max_bad_rows,
        warn,
    )
    job = replace(job, bm25_language=data.bm25_language)
    run = partial(run_evaluation, job, report=write_evaluation_report)
    results = evaluate_in_session(run, *session)
    show(format_results(results))
    show(f"\nLaTeX: {output / LATEX}\n{output / RESULTS}")


def _parser() -> Parser:
    parser = Parser(prog="evaluate", description="Measure models on data sets and compare them.")
    add_path(
        parser,
        "--model",
        MODELS,
        "MODEL",
        "`bm25`, `minilm`, directories, runs or hub names; NAME=MODEL sets the name in tables (default: minilm)",
        nargs="+",
        dest="models",
        default=[ModelConfig().model],
    )
    add_path(
        parser,
        "--datasets",
        DATASET,
        "PATH",
        "data sets, as for --dataset of other stages; a folder of data sets is one row: the mean over them",
        nargs="+",
        default=[],
    )
    parser.add_argument(
        "--baseline",
        nargs="+",
        default=[],
        metavar="NAME",
        help="one or two models that the others are compared with (default: the first model)",
    )
    parser.add_argument(
        "--calibrate",
        nargs="+",
        default=[],
        metavar="AIM",
        help="choose thresholds on --calibration-split and check them on --split: top-precision=0.9 (of the answers "
        "shown), wrong-answers=0.05 or missed=0.1 (expected share of later queries, at most), answered=0.8 (of the "
        "queries), f1 (of both), precision=0.9 or recall=0.8 (of pairs)",
    )
    add_path(
        parser,
        "--unanswerable",
        UNANSWERABLE,
        "KIND",
        "make queries without an answer, which thresholds take into account: removed (half of the queries lose their "
        "answers; removed=0.2: a fifth), or data sets of other domains; their shares are measured",
        nargs="+",
        default=[],
    )
    add_output(parser, "folder to write the results to (default: results)", default="results")
    parser.add_argument("--fresh", action="store_true", help="remove an earlier evaluation of --output")
    add_trackers(parser)
    add_settings(parser, EvaluationConfig, "measuring")
    add_settings(
        parser, ModelConfig, "all models", only=[name for name in READING if name not in ("model", "truncate_dim")]
    )
    add_settings(parser, DataConfig, "data", only=["max_bad_rows", "bm25_language"])
    add_settings(parser, EncodeConfig, "encoding", only=["actors", "actor_gpus", "actor_cpus"])
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
