"""One stage of a run: its hard negatives, its training, and a directory and a tracked run of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

from raytriever.cluster.opening import OpenStage, used_config
from raytriever.cluster.recorder import Recorder
from raytriever.cluster.session import ray_session
from raytriever.cluster.train import train_on_cluster
from raytriever.config import Config
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives_table import NegativesTable
from raytriever.negatives.bm25 import Bm25Index
from raytriever.retrieval.hard_negatives import hard_negatives
from raytriever.tracking.tracker import STAGE, DatasetRecord, LastingTracker, closing
from raytriever.training.config import DEV_LOSS
from raytriever.training.run_directory import CONFIG, RunDirectory
from raytriever.training.validation_record import FOLDER as EVALUATIONS
from raytriever.training.validation_record import judge, read_records


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
        hard_negatives(dataset, data, "" if place else data.negatives_table, partial(index_of, dataset))
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
    tracker: LastingTracker,
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
            config, places, negatives, stage.total_steps, folder, recorder.hear, told, stage.dev_sets, here
        )
    return recorder


def chosen(folder: Path, config: Config) -> dict[str, dict[str, float | str]]:
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
    tracker: LastingTracker,
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
        tracker.describe(used_config(config, stage.description), record, tags)
        recorder = train_into(run.path, stage, config, negatives, tracker, here)
        tracker.log_file(run.path / CONFIG)
        # A call that was killed when all steps were done may have kept none of them.
        steps = max((step for step, _ in recorder.curve("loss")), default=None)
        dev_loss = min((loss for _, loss in recorder.curve("dev_loss")), default=None)
        figures = {"dataset": dataset.name, "split": data.dev_split, "steps": steps, "dev_loss": dev_loss}
        run.finish({**figures, **chosen(run.path, config)})
