"""Train the stages of a run: hard negatives, training, and a directory and a tracked run for each stage.

Each stage starts from the weights of the stage before it. A run without stages is its own only stage: it trains into
its own directory and logs to its own tracker. A stage of several has `stages/1-NAME/` and a child run; a finished one
is not trained again."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from raytriever.cluster.session import ray_session
from raytriever.cluster.train.trainer import train_on_cluster
from raytriever.config import STAGES, Config, dump_config, stage_errors
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable
from raytriever.experiment.directory import CONFIG, RunDirectory
from raytriever.experiment.opening import OpenRun, OpenStage, resolved_config
from raytriever.experiment.recorder import Recorder
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.miner import build_negatives_table
from raytriever.storage import MANIFEST, committed_directory
from raytriever.tracking.tracker import STAGE, DatasetRecord, PersistentTracker, closing
from raytriever.training.config import DEV_LOSS
from raytriever.training.validation.records import FOLDER as EVALUATIONS
from raytriever.training.validation.records import judge, read_records


class LexicalIndexes:
    """Kept by what the corpus holds, so that data sets over the same one share an index."""

    def __init__(self) -> None:
        self._made: dict[str, Bm25Index] = {}

    def of(self, dataset: RetrievalDataset) -> Bm25Index:
        """The index of a data set's passages."""
        digest = dataset.documents.digest
        if digest not in self._made:
            self._made[digest] = Bm25Index(dataset.passages())
        return self._made[digest]


def find_negatives(
    stage: OpenStage, index_of: Callable[[RetrievalDataset], Bm25Index], say: Callable[[str], None]
) -> NegativesTable | None:
    """The hard negatives of a stage's data sets, one after another; None where its groups want none.

    Args:
        stage: opened.
        index_of: makes or gives the BM25 index of a data set, asked only where it is needed.
        say: hears how many there are.
    """
    data, datasets = stage.stage.config.data, stage.material.datasets
    if not data.negatives_per_query:
        return None
    tables = [
        build_negatives_table(dataset, data, "" if place else data.negatives_table, partial(index_of, dataset))
        for place, dataset in enumerate(datasets)
    ]
    for dataset, table in zip(datasets, tables, strict=True):
        say(f"{dataset.name}: hard negatives: {', '.join(f'{k} {n:,}' for k, n in table.counts().items())}")
    starts = [0, *itertools.accumulate(len(dataset.documents) for dataset in datasets[:-1])]
    return tables[0] if len(tables) == 1 else NegativesTable.chained(tables, starts)


def train_into(
    folder: Path,
    stage: OpenStage,
    config: Config,
    negatives: NegativesTable | None,
    tracker: PersistentTracker,
    here: bool = False,
) -> Recorder:
    """Train in a Ray session of its own; checkpoints, `steps.jsonl` and `model/` come to stand in `folder`.

    Args:
        folder: a run directory, begun.
        stage: opened.
        config: its settings, with the encoder to begin from.
        negatives: see `find_negatives`.
        tracker: hears every step.
        here: whether one worker is this process.
    """
    places = [dataset.place for dataset in stage.material.datasets if dataset.place]
    here = here and config.training.workers[1] == 1
    # The session ends first: what goes on training while the recorder writes would make checkpoints nobody heard of.
    watched = stage.total_steps, config.training.checkpoint_minutes, config.refresh.refresh_every
    with (
        Recorder(tracker, folder, stage.total_steps) as recorder,
        ray_session(config.training.workers[1]),
        recorder.gauges.training(*watched),
    ):
        told = max((step for step, _ in recorder.curve("loss")), default=0)
        train_on_cluster(
            config, places, negatives, stage.total_steps, folder, recorder.record, told, stage.dev_sets, here
        )
    return recorder


def best_checkpoint(folder: Path, config: Config) -> dict[str, dict[str, float | str]]:
    """Which checkpoint became `model/` by an evaluation, for `metrics.json`; nothing where the dev loss decided.

    Args:
        folder: the run directory.
        config: its settings.
    """
    training = config.training
    values = {record.step: record.value for record in read_records(folder / EVALUATIONS)}
    verdict = judge(values, training.patience, training.min_delta)
    if training.best_metric == DEV_LOSS or not verdict.best_step:
        return {}
    return {"best": {"metric": training.best_metric, "step": verdict.best_step, "value": verdict.value}}


def train_as_child(
    run: RunDirectory,
    stage: OpenStage,
    config: Config,
    negatives: NegativesTable | None,
    tracker: PersistentTracker,
    say: Callable[[str], None],
    here: bool = False,
) -> None:
    """`train_into` a directory of the stage's own, told to the tracker as a run of its own; `metrics.json` comes last.

    Args:
        run: the stage's directory, begun.
        stage, config, negatives, here: see `train_into`.
        tracker: just made for this stage.
        say: hears of rows of its data that were left out.
    """
    with closing(tracker):
        dataset, data = stage.material.datasets[0], config.data
        left_out = dataset.quarantine.write(run.path)
        if left_out.total:
            say(str(left_out))
        record = DatasetRecord(dataset.name, data.dataset, dataset.digest, dataset.counts())
        tags = {STAGE: "train", "config_hash": config.hash, "run_directory": str(run.path.resolve())}
        tracker.describe(resolved_config(config, stage.description), record, tags)
        recorder = train_into(run.path, stage, config, negatives, tracker, here)
        tracker.log_file(run.path / CONFIG)
        # A call that was killed when all steps were done may have kept none of them.
        steps = max((step for step, _ in recorder.curve("loss")), default=None)
        dev_loss = min((loss for _, loss in recorder.curve("dev_loss")), default=None)
        figures = {"dataset": dataset.name, "split": data.dev_split, "steps": steps, "dev_loss": dev_loss}
        run.finish({**figures, **best_checkpoint(run.path, config)})


MODEL = "model"


class Stages:
    """The stretches of training of one run that has begun.

    Args:
        run: the directory of the whole.
        opened: what is to be trained.
        say: hears a line at every turn.
        here: whether a stage of one worker trains in this process; see `train_on_cluster`.
    """

    def __init__(self, run: RunDirectory, opened: OpenRun, say: Callable[[str], None], here: bool = False) -> None:
        self._run, self._opened, self._say, self._here = run, opened, say, here
        self._places = [self._place(number, stage) for number, stage in enumerate(opened.stages, 1)]
        self._to_do = [number for number, place in enumerate(self._places) if place.state != "finished"]
        self._negatives: dict[int, NegativesTable | None] = {}

    @property
    def folders(self) -> list[Path]:
        """Where each stretch keeps its steps, in their order."""
        return [place.path for place in self._places]

    def find_negatives(
        self,
        index_of: Callable[[RetrievalDataset], Bm25Index],
        made: dict[Hashable, NegativesTable | None] | None = None,
    ) -> None:
        """Find the hard negatives of all stages before the first one begins.

        Args:
            index_of: makes or gives the BM25 index of a data set.
            made: what runs over the same data found before, and what this one finds.
        """
        made = {} if made is None else made
        for number in self._to_do:
            stage = self._opened.stages[number]
            data = stage.stage.config.data
            # Settings of groups and batches aside, what the data's settings say of which rows there are.
            key = (data.datasets, data.train_split, data.dev_split, data.negatives_table, data.negatives_mix)
            with stage_errors(stage.stage):
                if data.negatives_per_query and key not in made:
                    made[key] = find_negatives(stage, index_of, self._say)
                self._negatives[number] = made[key] if data.negatives_per_query else None
                if number > self._to_do[0]:
                    # Refused now, not after the stages before; the first one's own workers refuse in a moment.
                    stage.material.train(self._negatives[number])

    def train(self, tracker: PersistentTracker, run_name: str) -> None:
        """Train what is not finished; the last stage's model stands in the run's directory afterwards.

        Args:
            tracker: of the whole.
            run_name: of the whole; children are called after it.
        """
        for number in self._to_do:
            self._train(number, tracker, run_name)
        if self._places[-1] is not self._run:
            meta = {"config": self._opened.curriculum.hash}
            _copy_model(self._places[-1].path / MODEL, self._run.path / MODEL, meta)

    def _train(self, number: int, tracker: PersistentTracker, run_name: str) -> None:
        stage, place, negatives = self._opened.stages[number], self._places[number], self._negatives[number]
        config = stage.stage.config
        if place is self._run:
            train_into(place.path, stage, config, negatives, tracker, self._here)
            return
        self._say(f"stage {number + 1} of {len(self._places)}, {stage.stage.name}: {stage.total_steps:,} steps")
        if number:
            config = replace(config, model=stage.model_after(self._places[number - 1].path / MODEL))
        with stage_errors(stage.stage):
            place.begin(dump_config(config))
            child = tracker.child(f"{run_name}/{place.path.name}", place.path)
            train_as_child(place, stage, config, negatives, child, self._say, self._here)

    def _place(self, number: int, stage: OpenStage) -> RunDirectory:
        if not stage.stage.name:
            return self._run
        # Its settings were compared with those of the whole, by whatever path the whole is called today.
        return RunDirectory.open(self._run.path / STAGES / f"{number}-{stage.stage.name}", {}, fresh=False)


def _copy_model(source: Path, target: Path, meta: Mapping[str, str]) -> None:
    """A copy, so that the run's model stays when a stage's directory is removed."""
    with committed_directory(target, meta, replace=True) as aside:
        shutil.copytree(source, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
