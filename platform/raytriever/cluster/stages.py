"""All that a run trains, stage by stage, each from the weights that the one before it left.

A run without stages is its own only stage: it trains into its own directory and is told to its own tracker. A stage
of several has both for itself, `stages/1-NAME/` and a child run; one that is finished is not trained again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path

from raytriever.cluster.opening import Opened, OpenStage
from raytriever.cluster.stage import find_negatives, train_as_child, train_into
from raytriever.config import STAGES, dump_config, naming
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives_table import NegativesTable
from raytriever.negatives.bm25 import Bm25Index
from raytriever.storage import MANIFEST, committed_directory
from raytriever.tracking.tracker import LastingTracker
from raytriever.training.run_directory import RunDirectory

MODEL = "model"


class Stages:
    """The stretches of training of one run that has begun.

    Args:
        run: the directory of the whole.
        opened: what is to be trained.
        say: hears a line at every turn.
        here: whether a stage of one worker trains in this process; see `train_on_cluster`.
    """

    def __init__(self, run: RunDirectory, opened: Opened, say: Callable[[str], None], here: bool = False) -> None:
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
            with naming(stage.stage):
                if data.negatives_per_query and key not in made:
                    made[key] = find_negatives(stage, index_of, self._say)
                self._negatives[number] = made[key] if data.negatives_per_query else None
                if number > self._to_do[0]:
                    # Refused now, not after the stages before; the first one's own workers refuse in a moment.
                    stage.material.train(self._negatives[number])

    def train(self, tracker: LastingTracker, run_name: str) -> None:
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

    def _train(self, number: int, tracker: LastingTracker, run_name: str) -> None:
        stage, place, negatives = self._opened.stages[number], self._places[number], self._negatives[number]
        config = stage.stage.config
        if place is self._run:
            train_into(place.path, stage, config, negatives, tracker, self._here)
            return
        self._say(f"stage {number + 1} of {len(self._places)}, {stage.stage.name}: {stage.total_steps:,} steps")
        if number:
            config = replace(config, model=stage.model_after(self._places[number - 1].path / MODEL))
        with naming(stage.stage):
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
