"""`evaluate` and `compare`: evaluate models on data sets, and compare finished runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from raytriever.cli.arguments import TRACKERS, Argument
from raytriever.cli.command import Command, Given, SettingsGroup
from raytriever.cli.shared_arguments import PRECISION
from raytriever.core.errors import ConfigError
from raytriever.core.paths import DATASET, PATH, UNANSWERABLE
from raytriever.core.setting_declarations import Need
from raytriever.core.terminal import warn
from raytriever.data.data_settings import DataConfig
from raytriever.evaluation.evaluation_settings import MTEB, EvaluationConfig
from raytriever.evaluation.system_names import SYSTEM
from raytriever.experiments.report.comparison_request import check_comparison
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.encoding_settings import EncodeConfig
from raytriever.retrieval.external_encoders.endpoint_settings import ENCODER, EncoderConfig, endpoint_needs


def check_evaluation(given: Given) -> None:
    """Raise `ConfigError` for settings that contradict each other."""
    config = given.evaluation
    if config.suite == MTEB and len(config.dims) > 1:
        raise ConfigError("names several dimensions, but --suite mteb evaluates only one", "--truncate-dim", "give one")
    # `without_effect` ignores settings that are False, and `--no-drop-own-id` sets `drop_own_id` to False.
    if config.suite == MTEB and "drop_own_id" in given.explicit_flags:
        raise ConfigError(f"has no effect with --suite {MTEB}", "--no-drop-own-id", "leave it out")


def evaluate(given: Given) -> Iterator[str]:
    """Evaluate the models; yield the table and the paths of the files."""
    from raytriever.cluster.evaluate_on_cluster import evaluate_in_session
    from raytriever.evaluation.requested_models import read_models

    config, output, data, precision = given.evaluation, given.output, given.data, given.training.precision
    models = read_models(given.models, replace(given.model, truncate_dim=config.model_dim))
    session = given.encoding, output, given.fresh, given.trackers, warn
    if config.suite == MTEB:
        from raytriever.evaluation.mteb.mteb_evaluation import TABLE, build_mteb_job, raise_missing, run_mteb

        mteb_job = build_mteb_job(models, config, given.calibrate, given.unanswerable, precision, data.max_bad_rows)
        results = evaluate_in_session(partial(run_mteb, mteb_job), *session)
        yield (output / TABLE).read_text()
        yield f"{output / TABLE}"
        raise_missing(results)
        return

    from raytriever.evaluation.evaluation_files import LATEX
    from raytriever.evaluation.report_document import format_results
    from raytriever.evaluation.requested_models import build_evaluation_job
    from raytriever.evaluation.results import RESULTS
    from raytriever.evaluation.run_evaluation import run_evaluation
    from raytriever.experiments.report.evaluation_page import write_evaluation_report

    job = build_evaluation_job(
        models,
        given.datasets,
        config,
        given.baseline,
        given.calibrate,
        given.unanswerable,
        precision,
        data.max_bad_rows,
        warn,
        data.bm25_language,
    )
    run = partial(run_evaluation, job, write_page=write_evaluation_report)
    results = evaluate_in_session(run, *session)
    yield format_results(results)
    yield f"\nLaTeX: {output / LATEX}\n{output / RESULTS}"


EVALUATE = Command(
    evaluate,
    check=check_evaluation,
    output="folder to write the results to (default: results)",
    default_output=lambda given: Path("results"),
    arguments=[
        Argument(
            "--model",
            "`bm25`, `minilm`, directories, runs, hub names or `openai:NAME`, `vectors:FOLDER`, `run:FILE`, a fusion "
            "such as `bm25+minilm`, or `MODEL>CROSS-ENCODER@100`; NAME=MODEL sets the name in tables (default: minilm)",
            SYSTEM,
            metavar="MODEL",
            nargs="+",
            dest="models",
            default=[ModelConfig().model],
        ),
        Argument(
            "--datasets",
            "data sets, as for --dataset of other commands; for a folder of data sets, the mean over them is evaluated",
            DATASET,
            nargs="+",
        ),
        Argument(
            "--baseline", "one or two models that the others are compared with (default: the first model)", nargs="+"
        ),
        Argument(
            "--calibrate",
            "choose thresholds on --calibration-split and check them on --split: top-precision=0.9 (of the answers "
            "shown), wrong-answers=0.05 or missed=0.1 (at most this expected fraction of new queries), answered=0.8 "
            "(of the queries), f1 (of both), kept=0.95 (expected fraction of the relevant passages that are kept), "
            "precision=0.9 or recall=0.8 (of pairs)",
            metavar="TARGET",
            nargs="+",
        ),
        Argument(
            "--unanswerable",
            "add queries without an answer, which thresholds take into account: removed (half of the queries lose "
            "their answers; with removed=0.2, a fifth), or data sets on other topics (their queries are added)",
            UNANSWERABLE,
            metavar="KIND",
            nargs="+",
        ),
        Argument("--fresh", "remove an earlier evaluation of --output", action="store_true"),
        *TRACKERS,
    ],
    settings=[
        SettingsGroup("evaluation", EvaluationConfig, "evaluation"),
        SettingsGroup(
            "model",
            EncoderConfig,
            "all models, and the service of openai:NAME",
            *(name for name in ENCODER if name not in ("model", "truncate_dim")),
        ),
        SettingsGroup("data", DataConfig, "data", "max_bad_rows", "bm25_language"),
        SettingsGroup("encoding", EncodeConfig, "encoding", "actors", "actor_gpus", "actor_cpus"),
        PRECISION,
    ],
    # `--suite mteb` evaluates on tasks of MTEB, so these flags have no effect.
    needs=endpoint_needs("models")
    | dict.fromkeys(("datasets", "baseline", "bm25_language"), (Need("suite", MTEB, negated=True),)),
)


def compare(given: Given) -> Iterator[str]:
    """Compare finished runs on one page."""
    from raytriever.experiments.report.comparison_page import compare_runs

    compare_runs(given.runs, Path(given.page))
    yield f"{given.page} (open it in a browser)"


COMPARE = Command(
    compare,
    check=lambda given: check_comparison(given.runs, Path(given.page)),
    arguments=[
        Argument(
            "runs",
            "a run directory, a run id of MLflow, or a filter of MLflow's search",
            PATH,
            metavar="RUN",
            nargs="+",
        ),
        Argument(
            "--output",
            "the page to write (default: report.html)",
            PATH,
            metavar="FILE",
            dest="page",
            default="report.html",
        ),
    ],
)
