"""Conclusion of a run: calibration of the trained model, report and figures, the last metrics and files of the tracker,
and `metrics.json`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from raytriever.cluster.evaluation import evaluate_model
from raytriever.cluster.train.dev_sets import DEV
from raytriever.config import Config, dump_config
from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import DataError
from raytriever.evaluation.calibration import check_apart, make_calibration, save_calibration
from raytriever.evaluation.decision import decide_questions, questions_of
from raytriever.evaluation.differences.significance import significance_points
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.files import PER_QUERY
from raytriever.evaluation.measurements import pool_scores
from raytriever.evaluation.protocol import AUC, Protocol, select_judged_queries
from raytriever.experiment.directory import LOSSES, RunDirectory
from raytriever.experiment.opening import OpenRun
from raytriever.experiment.stages import best_checkpoint
from raytriever.losses.guide import MASKED
from raytriever.metrics.answering import AnswerAim
from raytriever.metrics.ranking import DEFAULT_METRICS
from raytriever.mining.analyser import Analysis
from raytriever.models.config import ModelConfig
from raytriever.report.training import training_tests, write_training_report
from raytriever.search.calibration import FILE
from raytriever.tracking.steps import end_to_end
from raytriever.tracking.tracker import Point, Tracker

# The wanted value of a threshold is the user's, with `evaluate --calibrate`; the highest F1 needs none.
AIMS: tuple[tuple[AnswerAim, float | None], ...] = (("f1", None),)


def calibrate_trained(
    dataset: RetrievalDataset, config: Config, trained: ModelConfig, tested: Evaluation, log: Callable[[str], None]
) -> None:
    """Calibrate a trained model on the dev split, check it on the test split, and write `model/calibration.json`.

    A run with too few queries, or with the same queries in both splits, gets no calibration, and a line says why.
    """
    splits = config.data.dev_split, config.data.test_split
    try:
        if splits[0] not in dataset.judgements:
            raise DataError(f"was opened without split {splits[0]!r}", dataset.name, "run `raytriever evaluate`")
        check_apart(dataset, *splits)
        log(f"calibrating the scores on {splits[0]}")
        measured = evaluate_model(dataset, splits[0], trained, config.training.precision)
        # Without BM25: to index a large corpus takes long, and `evaluate` can do it later.
        choosing, checking = (
            questions_of(select_judged_queries(dataset, split, Protocol()), one)
            for split, one in zip(splits, (measured, tested), strict=True)
        )
        answers = decide_questions(dataset.name, choosing, checking, AIMS)
        pools = pool_scores([measured]), pool_scores([tested])
        made = make_calibration(dataset, trained, splits, pools, answers, int8=False)
    except DataError as error:
        log(f"the model gets no {FILE}: {error}")
        return
    log(save_calibration(made, trained))


def conclude(
    run: RunDirectory,
    opened: OpenRun,
    folders: Sequence[Path],
    evaluations: Mapping[str, Evaluation],
    tracker: Tracker,
    started: float,
) -> None:
    """Write and log the results of a run. `metrics.json` is written last, because it marks the run as finished.

    Args:
        run: the run's directory, with `model/`.
        folders: directories of the stages with their `steps.jsonl`, in order.
        started: `time.monotonic()` at the start of the command.
    """
    base, dataset = opened.curriculum.base, opened.dataset
    judged = select_judged_queries(dataset, base.data.test_split, Protocol())
    tests, pairs = training_tests(dataset, evaluations)
    analysis = Analysis.of(dataset.documents)
    write_training_report(
        run.path,
        f"{base.model.model} trained with {opened.curriculum.losses} on {dataset.name}",
        base.data.test_split,
        judged,
        evaluations,
        end_to_end(folders, "loss"),
        end_to_end(folders, "dev_loss"),
        {name: end_to_end(folders, DEV + name) for name in (*DEFAULT_METRICS, AUC)},
        dump_config(opened.curriculum),
        tests,
        pairs,
        [*analysis.lines, *masking_lines(folders)],
    )
    rows = {name: evaluation.metrics for name, evaluation in evaluations.items()}
    now = time.time_ns() // 1_000_000
    steps = sum(stage.total_steps for stage in opened.stages)
    points = [
        Point(f"{system}/{name}", value, steps, now)
        for system, values in rows.items()
        for name, value in values.items()
    ]
    absent = judged.count_absent()
    points += significance_points(tests, steps, now, several=False)
    points += [Point(f"judged/{name}", float(count), steps, now) for name, count in absent.items()]
    points.append(Point("total_seconds", time.monotonic() - started, steps, now))
    tracker.log(points)
    own = [LOSSES] * (run.path / LOSSES).exists()
    for name in ("config.yaml", *own, "report.html", "figures", "model", PER_QUERY):
        tracker.log_file(run.path / name)
    best = best_checkpoint(folders[-1], opened.curriculum.all_stages[-1].config)
    metrics = {"dataset": dataset.name, "split": base.data.test_split, **rows, **best}
    run.finish(metrics | {"significance": tests, "pairs": pairs, "judged": absent, "bm25_analyser": analysis.content()})


def masking_lines(folders: Sequence[Path]) -> list[str]:
    """Return a line on the negatives that a guide masked in the stages of a run; none without a guide."""
    shares = [share for _, share in end_to_end(folders, MASKED)]
    if not shares:
        return []
    return [f"The guide masked {fmean(shares):.2%} of the negatives of a batch, at most {max(shares):.2%}"]
