"""Train the stages of a run: hard negatives, training, and a directory and a tracked run for each stage.

Each stage starts from the weights of the stage before it. A run without stages is its own only stage: it trains into
its own directory and logs to its own tracker. A stage of several has `stages/1-NAME/` and a child run; a finished one
is not trained again."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from raytriever.cluster.session import ray_session
from raytriever.cluster.train.trainer import train_on_cluster
from raytriever.config import STAGES, Config, dump_config, stage_errors
from raytriever.data.config import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable
from raytriever.experiment.directory import CONFIG, RunDirectory
from raytriever.experiment.opening import OpenRun, OpenStage, resolved_config
from raytriever.experiment.recorder import Recorder
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.miner import build_negatives_table
from raytriever.store.commit import MANIFEST, committed_directory
from raytriever.tracking.spool import Spool
from raytriever.tracking.tracker import STAGE, DatasetRecord, closing
from raytriever.training.config import DEV_LOSS
from raytriever.training.validation import FOLDER as EVALUATIONS
from raytriever.training.validation import read_records, summarize

MODEL = "model"  # folder of the trained model in a run directory


class LexicalIndexes:
    """BM25 indexes by the content of the corpus, so that data sets over the same corpus share one."""

    def __init__(self) -> None:
        self._indexes: dict[str, Bm25Index] = {}

    def of(self, dataset: RetrievalDataset) -> Bm25Index:
        """Return the index of a data set's passages."""
        digest = dataset.documents.digest
        if digest not in self._indexes:
            self._indexes[digest] = Bm25Index.of(dataset.documents)
        return self._indexes[digest]


def find_negatives(
    stage: OpenStage, index_of: Callable[[RetrievalDataset], Bm25Index], log: Callable[[str], None]
) -> NegativesTable | None:
    """Mine the hard negatives of a stage's data sets; None if its groups use none."""
    data, datasets = stage.stage.config.data, stage.training_data.datasets
    if not data.negatives_per_query:
        return None
    tables = [
        build_negatives_table(dataset, data, "" if position else data.negatives_table, partial(index_of, dataset))
        for position, dataset in enumerate(datasets)
    ]
    for dataset, table in zip(datasets, tables, strict=True):
        log(f"{dataset.name}: hard negatives: {', '.join(f'{k} {n:,}' for k, n in table.counts().items())}")
        if line := lacking_negatives(dataset, data, table):
            log(line)
    starts = [0, *itertools.accumulate(len(dataset.documents) for dataset in datasets[:-1])]
    return tables[0] if len(tables) == 1 else NegativesTable.chained(tables, starts)


def lacking_negatives(dataset: RetrievalDataset, data: DataConfig, table: NegativesTable) -> str:
    """Return a line about the training queries that have fewer hard negatives than a group; empty if none has."""
    counts = np.diff(table.offsets)[dataset.positives(data.train_split).queries]
    fewer, none = int((counts < data.negatives_per_query).sum()), int((counts == 0).sum())
    if not fewer:
        return ""
    line = f"{dataset.name}: {fewer:,} of {len(counts):,} training queries have fewer than {data.negatives_per_query}"
    return f"{line} and repeat theirs; {none:,} of these have none and get random passages"


def best_checkpoint(folder: Path, config: Config) -> dict[str, dict[str, float | str]]:
    """Return the checkpoint that became `model/`, for `metrics.json`; empty if the dev loss decided."""
    training = config.training
    values = {record.step: record.value for record in read_records(folder / EVALUATIONS)}
    summary = summarize(values, training.patience)
    if training.best_metric == DEV_LOSS or not summary.best_step:
        return {}
    return {"best": {"metric": training.best_metric, "step": summary.best_step, "value": summary.value}}


class Stages:
    """Stages of training of one run that has started; see `train_on_cluster` for `here` and `gpus`."""

    def __init__(
        self,
        run: RunDirectory,
        opened: OpenRun,
        log: Callable[[str], None],
        here: bool = False,
        gpus: float = 1.0,
    ) -> None:
        self._run, self._opened, self._log, self._here, self._gpus = run, opened, log, here, gpus
        self._directories = [self._open(number, stage) for number, stage in enumerate(opened.stages, 1)]
        self._remaining = [number for number, run in enumerate(self._directories) if run.state != "finished"]
        self._negatives: dict[int, NegativesTable | None] = {}

    @property
    def folders(self) -> list[Path]:
        """Directories of the stages with their `steps.jsonl`, in order."""
        return [directory.path for directory in self._directories]

    def find_negatives(
        self,
        index_of: Callable[[RetrievalDataset], Bm25Index],
        known: dict[Hashable, NegativesTable | None] | None = None,
    ) -> None:
        """Find the hard negatives of all stages before the first one begins; `known` has those of earlier runs."""
        known = {} if known is None else known
        for number in self._remaining:
            stage = self._opened.stages[number]
            data = stage.stage.config.data
            # The settings that decide the rows; those of groups and batches do not matter.
            key = (data.datasets, data.train_split, data.dev_split, data.negatives_table, data.negatives_mix)
            with stage_errors(stage.stage):
                if data.negatives_per_query and key not in known:
                    known[key] = find_negatives(stage, index_of, self._log)
                self._negatives[number] = known[key] if data.negatives_per_query else None
                if number > self._remaining[0]:
                    # Checked now, not after the earlier stages. The workers of the first stage check theirs at once.
                    stage.training_data.train(self._negatives[number])

    def train(self, tracker: Spool, run_name: str) -> None:
        """Train the unfinished stages. Afterwards the run's directory holds the model of the last stage.

        Names of child runs begin with `run_name`.
        """
        for number in self._remaining:
            stage, run = self._opened.stages[number], self._directories[number]
            config = replace(stage.stage.config, model=stage.model(stage.stage.config.model))
            if number:
                config = replace(config, model=stage.model_after(self._directories[number - 1].path / MODEL))
            is_only = run is self._run
            recording = self._recording(0, tracker) if is_only else self._child(number, config, tracker, run_name)
            with recording as recorder:
                train_on_cluster(
                    config,
                    [dataset.location for dataset in stage.training_data.datasets if dataset.location],
                    self._negatives[number],
                    stage.total_steps,
                    run.path,
                    recorder.record,
                    max((step for step, _ in recorder.curve("loss")), default=0),
                    stage.dev_sets,
                    self._here and config.training.workers[1] == 1,
                    gpus=self._gpus,
                )
        if self._directories[-1] is not self._run:
            # Copied, so that the run keeps the model when a stage's directory is removed.
            meta = {"config": self._opened.curriculum.hash}
            with committed_directory(self._run.path / MODEL, meta, replace=True) as folder:
                source = self._directories[-1].path / MODEL
                shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))

    @contextmanager
    def _recording(self, number: int, tracker: Spool) -> Iterator[Recorder]:
        """Record what is trained in a new Ray session: `steps.jsonl`, the tracker's points and the gauges."""
        stage, folder = self._opened.stages[number], self._directories[number].path
        training, refresh = stage.stage.config.training, stage.stage.config.refresh
        limits = stage.total_steps, refresh.refresh_every
        # The session ends before the recorder: workers that still train would write checkpoints of unrecorded steps.
        with (
            Recorder(tracker, folder, stage.total_steps) as recorder,
            ray_session(training.workers[1]),
            recorder.gauges.training(*limits),
        ):
            yield recorder

    @contextmanager
    def _child(self, number: int, config: Config, parent: Spool, run_name: str) -> Iterator[Recorder]:
        """Record a stage in its own directory and tracked run; `metrics.json` is written last."""
        stage, run, data = self._opened.stages[number], self._directories[number], config.data
        self._log(f"stage {number + 1} of {len(self._directories)}, {stage.stage.name}: {stage.total_steps:,} steps")
        with stage_errors(stage.stage):
            run.begin(dump_config(config))
            tracker = parent.child(f"{run.path.name} of {run_name}", run.path)
            with closing(tracker):
                dataset = stage.training_data.datasets[0]
                quarantine = dataset.quarantine.write(run.path)
                if quarantine.total:
                    self._log(str(quarantine))
                record = DatasetRecord(dataset.name, data.dataset, dataset.digest, dataset.counts())
                tags = {STAGE: "train", "config_hash": config.hash, "run_directory": str(run.path.resolve())}
                tracker.describe(resolved_config(config, stage.description), record, tags)
                with self._recording(number, tracker) as recorder:
                    yield recorder
                tracker.log_file(run.path / CONFIG)
                # An earlier call that was killed at the end of training may have stored all or none of the steps.
                steps = max((step for step, _ in recorder.curve("loss")), default=None)
                dev_loss = min((loss for _, loss in recorder.curve("dev_loss")), default=None)
                metrics = {"dataset": dataset.name, "split": data.dev_split, "steps": steps, "dev_loss": dev_loss}
                run.finish({**metrics, **best_checkpoint(run.path, config)})

    def _open(self, number: int, stage: OpenStage) -> RunDirectory:
        if not stage.stage.name:
            return self._run
        # Its settings need no comparison: those of the whole run were compared, and its path may have changed since.
        return RunDirectory.open(self._run.path / STAGES / f"{number}-{stage.stage.name}", {}, fresh=False)
