"""A whole training run, from checked settings to a finished run directory.

1. Look before touching: the directory, the data sets, the model. A mistake found here leaves nothing behind.
2. Measure BM25 and the encoder before; train, stage by stage where there are several; measure the encoder after, all
   on the test split of the run's own data. Nothing is measured there between stages: it would cost as much as after
   the last one, and who saw it might choose by it.
3. Write the figures, and `metrics.json` last: a run without it is interrupted and goes on when called again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raytriever.cluster.session import check_cluster
from raytriever.config import Curriculum, check_curriculum, dump_config
from raytriever.encoding.loading import load_for_encoding
from raytriever.evaluation.systems import evaluate_bm25, evaluate_retriever
from raytriever.experiment.conclusion import conclude
from raytriever.experiment.directory import RunDirectory
from raytriever.experiment.opening import open_run, open_run_directory, pin_model
from raytriever.experiment.stages import LexicalIndexes, Stages
from raytriever.mining.analyser import Analysis
from raytriever.models.config import ModelConfig
from raytriever.tracking.mlflow_tracker import MlflowServer, check_uri, tracking_uri
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.tracker import STAGE, DatasetRecord, PersistentTracker, Tracker, closing, git_commit


@dataclass(frozen=True)
class RunResult:
    """What a person is told at the end.

    Args:
        path: the run directory.
        rows: metrics by system, the names as in `metrics.json`.
        quarantined: a line on rows that were left out, if any.
        is_new: False when the run had been finished before this call.
    """

    path: Path
    rows: dict[str, dict[str, float]]
    quarantined: str | None
    is_new: bool


def run_experiment(
    curriculum: Curriculum, output: Path, run_name: str, fresh: bool, say: Callable[[str], None]
) -> RunResult:
    """Train and measure; `say` hears a line at every turn.

    Raises:
        UserError: something a user can mend; see `errors`.
    """
    began = time.monotonic()
    check_curriculum(curriculum)
    curriculum = pin_model(curriculum, output, fresh)
    run = open_run_directory(output, curriculum, fresh)
    if run.state == "finished":
        send_pending(output, tracking_uri(), say)
        figures = run.metrics()
        return RunResult(output, {name: figures[name] for name in ("bm25", "before", "after")}, None, is_new=False)
    check_uri(tracking_uri())
    check_cluster()
    experiment = _Experiment(curriculum, run, say)
    server = MlflowServer(tracking_uri())
    run.begin(dump_config(curriculum))
    tracker = Spool.open(server, run.path, run_name)
    with closing(tracker):
        return experiment.execute(tracker, run_name, began)


class _Experiment:
    """One run, after everything a user may get wrong has been looked at."""

    def __init__(self, curriculum: Curriculum, run: RunDirectory, say: Callable[[str], None]) -> None:
        self.curriculum, self.run, self.say = curriculum, run, say
        self.opened, self.retriever = open_run(curriculum, say)

    def execute(self, tracker: PersistentTracker, run_name: str, began: float) -> RunResult:
        opened, base, path = self.opened, self.curriculum.base, self.run.path
        dataset, split = opened.dataset, base.data.test_split
        left_out = dataset.quarantine.write(path)
        self._describe(tracker)

        self.say("BM25")
        if warning := Analysis.of(dataset.passages()).warning:
            self.say(warning)
        indexes = LexicalIndexes()
        found = {"bm25": evaluate_bm25(dataset, split, indexes.of(dataset))}
        stages = Stages(self.run, opened, self.say)
        stages.find_negatives(indexes.of)
        self.say(f"{base.model.model} before training, {opened.precision} on {opened.device}")
        found["before"] = evaluate_retriever(dataset, split, base.model, self.retriever)
        del self.retriever

        stages.train(tracker, run_name)
        self.say("after training")
        own = ModelConfig(model=str(path / "model"))
        trained = load_for_encoding(own, opened.precision, opened.device)
        found["after"] = evaluate_retriever(dataset, split, own, trained)
        conclude(self.run, opened, stages.folders, found, tracker, began)
        rows = {name: evaluation.metrics for name, evaluation in found.items()}
        return RunResult(path, rows, str(left_out) if left_out.total else None, is_new=True)

    def _describe(self, tracker: Tracker) -> None:
        dataset, data = self.opened.dataset, self.curriculum.base.data
        record = DatasetRecord(dataset.name, data.dataset, dataset.digest, dataset.counts())
        tags = {STAGE: "train", "config_hash": self.curriculum.hash, "run_directory": str(self.run.path.resolve())}
        commit = git_commit(Path(__file__).parent)
        if commit:
            tags["mlflow.source.git.commit"] = commit
        tracker.describe(self.opened.settings(), record, tags)
