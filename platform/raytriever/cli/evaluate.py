"""`evaluate`: measure models on data sets and compare them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from raytriever.cli.command import Given
from raytriever.errors import ConfigError
from raytriever.evaluation.config import MTEB
from raytriever.terminal import warn


def check_evaluation(given: Given) -> None:
    """Raise `ConfigError` for settings that contradict each other."""
    config = given.evaluation
    if config.suite == MTEB and len(config.widths) > 1:
        raise ConfigError("names several widths, which --suite mteb cannot compare", "--truncate-dim", "give one")
    # It is false, so `without_effect` does not see it.
    if config.suite == MTEB and "drop_own_id" in given.explicit_flags:
        raise ConfigError(f"has no effect with --suite {MTEB}", "--no-drop-own-id", "leave it out")


def evaluate(given: Given) -> Iterator[str]:
    """Evaluate, and yield the table and the files."""
    from raytriever.cluster.evaluation import evaluate_in_session
    from raytriever.evaluation.request import read_models

    config, output, data, precision = given.evaluation, given.output, given.data, given.training.precision
    models = read_models(given.models, replace(given.model, truncate_dim=config.model_width))
    session = given.encoding, output, given.fresh, given.trackers, warn
    if config.suite == MTEB:
        from raytriever.mteb.job import TABLE, build_mteb_job, raise_missing, run_mteb

        mteb_job = build_mteb_job(models, config, given.calibrate, given.unanswerable, precision, data.max_bad_rows)
        results = evaluate_in_session(partial(run_mteb, mteb_job), *session)
        yield (output / TABLE).read_text()
        yield f"{output / TABLE}"
        raise_missing(results)
        return

    from raytriever.evaluation.document import format_results
    from raytriever.evaluation.files import LATEX
    from raytriever.evaluation.job import run_evaluation
    from raytriever.evaluation.request import build_evaluation_job
    from raytriever.evaluation.results import RESULTS
    from raytriever.report.evaluation import write_evaluation_report

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
    run = partial(run_evaluation, job, report=write_evaluation_report)
    results = evaluate_in_session(run, *session)
    yield format_results(results)
    yield f"\nLaTeX: {output / LATEX}\n{output / RESULTS}"
