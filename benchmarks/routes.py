"""Files of the package that some routes pass: a batch to its gradient, an evaluation, a refresh of hard negatives.

Run: `python benchmarks/routes.py [--json RESULTS]`. A tiny encoder is trained for a few steps in this process, on the
CPU, with one refresh, and evaluated. A profile function records the files whose functions are called on each route.

A step's route begins when the training loop has its batch and ends when the backward pass of the loss has returned. The
route of the command `raytriever train` adds the functions that have called the step: its worker runs in the process of
the command. Frames are those of the package on the deepest stack.

Not counted are the setup before a route (settings, opening of the data, loading of the model) and the files of
`FOUNDATION`. A route ends at the first file of a room in its `ENDS`: encoding a corpus and searching it are routes of
their own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from ends import parser
from faults import make_encoder
from tune import make_dataset

PACKAGE = Path(__file__).parent.parent / "platform" / "raytriever"
PREFIX = f"{PACKAGE}{os.sep}"
STEP, COMMAND = "a batch to its gradient", "the command to the gradient"
LIMITS = {STEP: 14, COMMAND: 25, "an evaluation": 15, "a refresh of hard negatives": 15}
FRAME_LIMIT = 18
FOUNDATION = ("reading/", *(path.name for path in PACKAGE.glob("*.py")))
SEARCH = ("encoding/", "models/", "index/", "search/")
ENDS = {"an evaluation": SEARCH, "a refresh of hard negatives": (*SEARCH, "data/prepare/")}


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


class Step:
    """Recorder of one step: the files that a batch passes until its gradient, and the deepest stack of the package."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.stack: list[str] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        """Record the next step of the training loop of this process, once its first step has compiled what it runs."""
        import torch

        from raytriever.training import loop

        step, backward = loop._Trainer._step, torch.Tensor.backward

        def record(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(PREFIX):
                if not (file := _file(frame)).startswith(FOUNDATION):
                    self.files.add(file)
                stack, caller = list[str](), frame
                while caller is not None:
                    stack += (
                        [f"{_file(caller)}:{caller.f_code.co_qualname}"]
                        if caller.f_code.co_filename.startswith(PREFIX)
                        else []
                    )
                    caller = caller.f_back  # type: ignore[assignment]
                self.stack = max(self.stack, stack, key=len)

        def followed(trainer: loop._Trainer, *arguments: object) -> None:
            sys.setprofile(record if trainer.progression.step and not self.files else None)
            try:
                step(trainer, *arguments)  # type: ignore[arg-type]
            finally:
                sys.setprofile(None)

        def last(*arguments: object, **settings: object) -> None:
            backward(*arguments, **settings)  # type: ignore[arg-type]
            sys.setprofile(None)

        loop._Trainer._step, torch.Tensor.backward = followed, last  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            loop._Trainer._step, torch.Tensor.backward = step, backward  # type: ignore[method-assign]


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(PREFIX)


def command_route(folder: Path) -> Step:
    """Return the route of `raytriever train` to its second gradient, with the worker in this process.

    Args:
        folder: with the encoder and the data set of `routes`.
    """
    from raytriever.cli import main
    from raytriever.experiment import train

    route, stages = Step(), train.Stages
    words = f"--dataset {folder}/letters --model {folder}/encoder --output {folder}/command --tracker none"
    settings = "--max-steps 3 --eval-steps 3 --dev-batches 1 --batch-size 8 --loss mw"
    train.Stages = partial(stages, here=True)  # type: ignore[assignment, misc]
    words_of_process, sys.argv = sys.argv, ["raytriever", "train", *words.split(), *settings.split()]
    try:
        with route.following(), suppress(SystemExit):
            main.run()
    finally:
        train.Stages, sys.argv = stages, words_of_process  # type: ignore[misc]
    return route


def routes(folder: Path) -> tuple[dict[str, set[str]], list[str]]:
    """Return the files of each route, by its name, and the frames of the deepest stack from the command to a gradient.

    Args:
        folder: empty; for the encoder, the data set and the run.
    """
    import torch

    from raytriever.cluster.train.mining_round import MiningRounds
    from raytriever.config import Config
    from raytriever.data.config import DataConfig
    from raytriever.data.negatives import read_negatives
    from raytriever.data.prepare.open import open_dataset
    from raytriever.encoding.shards import tokenisation_of
    from raytriever.evaluation import systems
    from raytriever.losses.config import LossConfig
    from raytriever.losses.distributed import ALONE
    from raytriever.models.checkpoint import write_settings
    from raytriever.models.config import ModelConfig
    from raytriever.models.retriever import load_retriever
    from raytriever.training import loop
    from raytriever.training import refresh as job
    from raytriever.training.config import RefreshConfig, TrainingConfig
    from raytriever.training.training_data import TrainingData

    batch, (evaluation, refresh) = Step(), (Route(ends) for ends in ENDS.values())
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
    rounds = MiningRounds(config, prepared, folder / "run" / "negatives")
    write_settings(folder / "refreshed", config.model, "fp32")

    class Miner:
        """Miner in this process."""

        def submit(self, number: int, checkpoint: Path) -> None:
            self.result = rounds.run(number, checkpoint)

        def poll(self) -> dict[str, float]:
            return self.result

    for owner, name, route in (
        (job.RefreshJob, "after_step", refresh),
        (job, "read_table", refresh),
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
    with batch.following():
        loop.train(setup)
    waiting = job.RefreshPlan(
        every=2,
        waits=True,
        folder=folder / "run" / "negatives",
        read=partial(read_negatives, dataset=data.combined),
        miner=Miner(),
    )
    loop.train(loop.replace(setup, folder=folder / "refreshed", refresh=waiting))
    dataset = open_dataset(prepared[0], ["test"])
    evaluation.follow(systems.evaluate_retriever)(dataset, "test", config.model, retriever)
    command = command_route(folder)
    files = (
        batch.files,
        batch.files | {frame.partition(":")[0] for frame in command.stack},
        evaluation.files,
        refresh.files,
    )
    return dict(zip(LIMITS, files, strict=True)), command.stack


def main() -> None:
    """Print the files of each route and their number; write the numbers to a file if one is given."""
    results = parser(__doc__ or "").parse_args().json
    with TemporaryDirectory() as folder:
        os.environ["RAYTRIEVER_CACHE"] = f"{folder}/cache"
        files, stack = routes(Path(folder))
        for name, passed in files.items():
            print(f"{name}: {len(passed)} files (limit {LIMITS[name]})")
            print(*(f"  {file}" for file in sorted(passed)), sep="\n")
        print(f"{COMMAND}: {len(stack)} frames (limit {FRAME_LIMIT})")
        print(*(f"  {frame}" for frame in reversed(stack)), sep="\n")
    if results is not None:
        written = json.loads(results.read_text()) if results.exists() else {}
        numbers = {name: {"files": len(passed)} for name, passed in files.items()}
        numbers[COMMAND]["frames"] = len(stack)
        results.write_text(json.dumps(written | {"routes": numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
