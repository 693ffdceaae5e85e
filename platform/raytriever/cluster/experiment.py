"""A whole training run, from a checked configuration to a finished run directory.

1. Look before touching: the directory, the data set, the model. A mistake found here leaves nothing behind.
2. Measure BM25 and the encoder before; train; measure the encoder after, all on the test split.
3. Write the figures, and `metrics.json` last: a run without it is interrupted and goes on when called again.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from raytriever.cluster.ingest import by_size
from raytriever.cluster.recorder import Recorder
from raytriever.cluster.session import ray_session
from raytriever.cluster.train import train_on_cluster
from raytriever.config import Config, check_config, dump_config, to_dict
from raytriever.data.examples import Examples
from raytriever.data.negatives_table import NegativesTable
from raytriever.data.pydocs import PYDOCS
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.negatives.bm25 import Bm25Index
from raytriever.retrieval.evaluate import Evaluation
from raytriever.retrieval.hard_negatives import hard_negatives
from raytriever.retrieval.outcome import write_outcome
from raytriever.retrieval.systems import evaluate_bm25, evaluate_retriever, load_for_encoding
from raytriever.tracking.mlflow_tracker import MlflowTracker, tracking_uri
from raytriever.tracking.source import git_commit
from raytriever.tracking.tracker import DatasetRecord, Point, Tracker
from raytriever.training.material import Material
from raytriever.training.run_directory import RunDirectory
from raytriever.training.tokens import tokenisation_of


@dataclass(frozen=True)
class Finished:
    """What a person is told at the end.

    Args:
        path: the run directory.
        rows: metrics by system, the names as in `metrics.json`.
        quarantined: a line on rows that were left out, if any.
        anew: False when the run had been finished before this call.
    """

    path: Path
    rows: dict[str, dict[str, float]]
    quarantined: str | None
    anew: bool


def run_experiment(config: Config, output: Path, run_name: str, fresh: bool, say: Callable[[str], None]) -> Finished:
    """Train and measure; `say` hears a line at every stage.

    Raises:
        UserError: something a user can mend; see `errors`.
    """
    began = time.monotonic()
    check_config(config)
    run = RunDirectory.open(output, to_dict(config), fresh)
    if run.state == "finished":
        figures = run.metrics()
        return Finished(output, {name: figures[name] for name in ("bm25", "before", "after")}, None, anew=False)
    experiment = _Experiment(config, run, say)
    tracker = MlflowTracker(tracking_uri(), run_name, run.tracking_id())
    status = "FAILED"
    try:
        finished = experiment.execute(tracker, began)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(status)
    return finished


class _Experiment:
    """One run, after everything a user may get wrong has been looked at."""

    def __init__(self, config: Config, run: RunDirectory, say: Callable[[str], None]) -> None:
        self.config, self.run, self.say = config, run, say
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.precision = choose_precision(config.training.precision, self.device)
        build_loss(config.loss)  # here only to be refused before anything is done
        data = config.data
        if data.dataset == PYDOCS:
            say("pydocs: the docstrings of this Python, read once for as long as its packages stay the same")
        self.retriever = load_for_encoding(config.model, self.precision, self.device)
        self.material = Material.open(
            data.datasets,
            data,
            tokenisation_of(self.retriever),
            config.training.batch_size,
            config.training.seed,
            also=[data.test_split],
            run=by_size(config.training.num_workers),
            say=say,
        )
        self.dataset = self.material.datasets[0]
        # The rest is here only to be refused before anything is written.
        self.material.dev()
        Examples.of(self.dataset, data.test_split, config.training.seed)
        order = self.material.train(None).order
        self.total_steps = config.training.max_steps or order.steps(config.training.epochs or 1.0)
        for dataset in self.material.datasets:
            counts = ", ".join(f"{name} {count:,}" for name, count in dataset.counts().items())
            say(f"{dataset.name}: {counts}")

    def execute(self, tracker: Tracker, began: float) -> Finished:
        config, path = self.config, self.run.path
        self.run.begin(dump_config(config))
        left_out = self.dataset.quarantine.write(path)
        self.run.keep_tracking_id(tracker.run_id)
        self._describe(tracker)

        self.say("BM25")
        index = Bm25Index(self.dataset.passages())
        found = {"bm25": evaluate_bm25(self.dataset, config.data.test_split, index)}
        negatives = self._negatives(index)
        self.say(f"{config.model.model} before training, {self.precision} on {self.device}")
        found["before"] = evaluate_retriever(self.dataset, config.data.test_split, config.model, self.retriever)
        del self.retriever

        with Recorder(tracker, path, self.total_steps) as recorder, ray_session(config.training.num_workers):
            places = [dataset.place for dataset in self.material.datasets if dataset.place]
            train_on_cluster(config, places, negatives, self.total_steps, path, recorder.hear)
        self.say("after training")
        own = ModelConfig(model=str(path / "model"))
        trained = load_for_encoding(own, self.precision, self.device)
        found["after"] = evaluate_retriever(self.dataset, config.data.test_split, own, trained)
        self._conclude(tracker, found, recorder, began)
        rows = {name: evaluation.metrics for name, evaluation in found.items()}
        return Finished(path, rows, str(left_out) if left_out.total else None, anew=True)

    def _negatives(self, index: Bm25Index) -> NegativesTable | None:
        data, datasets = self.config.data, self.material.datasets
        if not data.negatives_per_query:
            return None
        tables = [hard_negatives(self.dataset, data, data.negatives_table, lambda: index)]
        tables += [hard_negatives(each, data, "", partial(Bm25Index, each.passages())) for each in datasets[1:]]
        for dataset, table in zip(datasets, tables, strict=True):
            self.say(f"{dataset.name}: hard negatives: {', '.join(f'{k} {n:,}' for k, n in table.counts().items())}")
        starts = [0, *itertools.accumulate(len(dataset.documents) for dataset in datasets[:-1])]
        return tables[0] if len(tables) == 1 else NegativesTable.chained(tables, starts)

    def _describe(self, tracker: Tracker) -> None:
        dataset, data = self.dataset, self.config.data
        record = DatasetRecord(dataset.name, data.dataset, dataset.digest, dataset.counts())
        tags = {"config_hash": self.config.hash, "run_directory": str(self.run.path.resolve())}
        commit = git_commit(Path(__file__).parent)
        if commit:
            tags["mlflow.source.git.commit"] = commit
        tracker.describe(to_dict(self.config), record, tags)

    def _conclude(self, tracker: Tracker, found: dict[str, Evaluation], recorder: Recorder, began: float) -> None:
        config, path, dataset = self.config, self.run.path, self.dataset
        write_outcome(
            path,
            f"{config.model.model} trained with {config.loss.loss} on {dataset.name}",
            config.data.test_split,
            dataset,
            found,
            recorder.curve("loss"),
            recorder.curve("dev_loss"),
            dump_config(config),
        )
        rows = {name: evaluation.metrics for name, evaluation in found.items()}
        now = time.time_ns() // 1_000_000
        points = [
            Point(f"{system}/{name}", value, self.total_steps, now)
            for system, values in rows.items()
            for name, value in values.items()
        ]
        points.append(Point("total_seconds", time.monotonic() - began, 0, now))
        tracker.log(points)
        for name in ("config.yaml", "report.html", "figures", "model"):
            tracker.log_file(path / name)
        self.run.finish({"dataset": dataset.name, "split": config.data.test_split, **rows})


def default_output(run_name: str) -> Path:
    """Where a run goes when nothing is said: `runs/NAME`."""
    return Path(os.environ.get("RAYTRIEVER_RUNS", "runs")) / run_name
