"""Files of the package that three routes pass: a batch to its gradient, an evaluation, a refresh of hard negatives.

Run: `python benchmarks/routes.py`. A tiny encoder is trained for a few steps in this process, on the CPU, with one
refresh, and evaluated. A profile function records the files whose functions are called on each route.

Not counted are the setup before a route (settings, opening of the data, loading of the model) and the files of
`FOUNDATION`. A route ends at the first file of a room in its `ENDS`: encoding a corpus and searching it are routes of
their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from faults import make_encoder
from tune import make_dataset

PACKAGE = Path(__file__).parent.parent / "platform" / "raytriever"
PREFIX = f"{PACKAGE}{os.sep}"
LIMITS = {"a batch to its gradient": 30, "an evaluation": 22, "a refresh of hard negatives": 15}
FOUNDATION = ("reading/", *(path.name for path in PACKAGE.glob("*.py")))
SEARCH = ("encoding/", "models/", "index/", "search/")
ENDS = {
    "a batch to its gradient": (),
    "an evaluation": SEARCH,
    "a refresh of hard negatives": (*SEARCH, "data/prepare/"),
}


class Route:
    """Recorder of the files of the package whose functions are called within some functions.

    Args:
        ends: rooms whose first file ends the route.
    """

    def __init__(self, ends: tuple[str, ...]) -> None:
        self.files: set[str] = set()
        self._ends = ends

    def follow(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records its calls, and those that it makes in its thread."""

        def followed(*args: Any, **settings: Any) -> Any:
            last: FrameType | None = None  # the call that has left the route

            def record(frame: FrameType, event: str, argument: object) -> None:
                nonlocal last
                if frame is last and event == "return":
                    last = None
                if last is not None or event != "call" or not frame.f_code.co_filename.startswith(PREFIX):
                    return
                file = frame.f_code.co_filename.removeprefix(PREFIX)
                if file.startswith((*FOUNDATION, *self._ends)):
                    last = frame
                if not file.startswith(FOUNDATION):
                    self.files.add(file)

            before = sys.getprofile()
            sys.setprofile(record)
            try:
                return function(*args, **settings)
            finally:
                sys.setprofile(before)

        return followed


def routes(folder: Path) -> dict[str, set[str]]:
    """Return the files of each route, by its name.

    Args:
        folder: empty; for the encoder, the data set and the run.
    """
    import torch

    from raytriever.cluster.train.mining_round import MiningRounds
    from raytriever.config import Config
    from raytriever.data.config import DataConfig
    from raytriever.data.negatives import read_negatives
    from raytriever.data.prepare.open import open_dataset
    from raytriever.encoding.shards import ShardEncoder, tokenisation_of
    from raytriever.evaluation import systems
    from raytriever.losses.config import LossConfig
    from raytriever.losses.engine.workers import ALONE
    from raytriever.models.config import ModelConfig
    from raytriever.models.retriever import load_retriever
    from raytriever.training import loop
    from raytriever.training.config import TrainingConfig
    from raytriever.training.refresh import job
    from raytriever.training.refresh.config import RefreshConfig
    from raytriever.training.training_data import TrainingData

    batch, evaluation, refresh = (Route(ends) for ends in ENDS.values())
    make_encoder(folder / "encoder")
    config = Config(
        data=DataConfig(dataset=str(make_dataset(folder / "letters")), negatives_per_query=1),
        model=ModelConfig(str(folder / "encoder")),
        loss=LossConfig("mw"),
        training=TrainingConfig(batch_size=8, eval_steps=4, dev_batches=1),
        refresh=RefreshConfig(refresh_every=1, refresh_negatives=4),
    )
    retriever = load_retriever(config.model)
    data = TrainingData.open([config.data.dataset], config.data, tokenisation_of(retriever), 8, 0, also=["test"])
    prepared = [str(dataset.location) for dataset in data.datasets]
    rounds = MiningRounds(config, prepared, folder / "run" / "negatives", None)

    class Miner:
        """Miner in this process."""

        def submit(self, number: int, snapshot: Any) -> None:
            def encode(store: Any, load: Any, path: str, missing: list[int]) -> None:
                encode_shard = ShardEncoder(store, partial(load, snapshot), path)
                for shard in missing:
                    encode_shard(shard)

            self.result = rounds.run(number, snapshot, encode)

        def poll(self) -> job.RoundResult:
            return self.result

    for owner, name, route in (
        (loop._Trainer, "_batch", batch),
        (loop._Trainer, "_step", batch),
        (job.RefreshJob, "after_step", refresh),
        (job.TableReader, "_run", refresh),
    ):
        setattr(owner, name, route.follow(getattr(owner, name)))
    setup = loop.TrainingSetup(
        retriever=retriever,
        train=data.train(None),
        dev=data.dev(),
        loss=config.loss,
        training=config.training,
        total_steps=4,
        precision="fp32",
        device=torch.device("cpu"),
        workers=ALONE,
        folder=folder / "run" / "checkpoints",
        on_metrics=lambda step, metrics: None,
        log=print,
    )
    loop.train(setup)
    waiting = job.RefreshPlan(
        every=2,
        waits=True,
        folder=folder / "run" / "negatives",
        read=partial(read_negatives, dataset=data.combined),
        miner=Miner(),
    )
    batch_files = set(batch.files)
    loop.train(loop.replace(setup, folder=folder / "refreshed", refresh=waiting))
    dataset = open_dataset(prepared[0], ["test"])
    evaluation.follow(systems.evaluate_retriever)(dataset, "test", config.model, retriever)
    return dict(zip(LIMITS, (batch_files, evaluation.files, refresh.files), strict=True))


def main() -> None:
    """Print the number of files of each route, its limit, and the files."""
    with TemporaryDirectory() as folder:
        os.environ["RAYTRIEVER_CACHE"] = f"{folder}/cache"
        for name, files in routes(Path(folder)).items():
            print(f"{name}: {len(files)} files (limit {LIMITS[name]})")
            print(*(f"  {file}" for file in sorted(files)), sep="\n")


if __name__ == "__main__":
    main()
