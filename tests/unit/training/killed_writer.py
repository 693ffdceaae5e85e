"""Save in a loop, be killed, look, go on: `killed_writer.py FOLDER KILLS`.

A process is forked for every life, so that none waits for torch to be imported. What it saves is one value, the step,
so a mixture of two checkpoints would show. Prints the kills, those that met a writer at work, and the last step.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from raytriever.losses.distributed import ALONE
from raytriever.models.slices import Slice, whole_tensors
from raytriever.training.checkpoint import (
    MOMENTS,
    WEIGHTS,
    Progression,
    State,
    newest_checkpoint,
    read_slices,
    remove_unfinished,
)
from raytriever.training.checkpoint_writer import CheckpointWriter

VALUES = 200_000


def live(folder: Path) -> None:
    """Go on from the newest checkpoint, for ever."""
    remove_unfinished(folder)
    newest, _ = newest_checkpoint(folder)
    step = int(newest.name[5:]) if newest else 0
    with CheckpointWriter(folder, ALONE, torch.device("cpu"), 1, has_state=True) as writer:
        while True:
            step += 1
            held = [Slice(name, torch.full((VALUES,), float(step)), 0, (VALUES,)) for name in ("w", "w:exp_avg")]
            writer.save(held, State(Progression(step, step - step % 3, 0.5), {}))


def look(folder: Path) -> int:
    """The step of the newest checkpoint; raises unless everything that is visible is whole and of one piece."""
    newest, passed = newest_checkpoint(folder)
    if passed:
        raise SystemExit(f"a broken checkpoint was there to be chosen: {passed}")
    if newest is None:
        return 0
    step = int(newest.name[5:])
    for name, values in whole_tensors(read_slices(newest, WEIGHTS, MOMENTS)):
        if not bool((values == step).all()):
            raise SystemExit(f"{name} of {newest} is not of step {step}")
    return step


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    chance = random.Random(5)
    damaged, reached = 0, 0
    for _ in range(kills):
        process = os.fork()
        if process == 0:
            live(folder)
        while max((int(path.name[5:]) for path in folder.glob("step-*")), default=0) <= reached:
            time.sleep(0.01)  # what is looked into may be removed meanwhile: that waits for the end
        time.sleep(chance.uniform(0, 0.05))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        damaged += any(".aside-" in path.name for path in folder.iterdir())
        now = look(folder)
        if now < reached:
            raise SystemExit(f"went back from step {reached} to {now}")
        reached = now
    print(kills, damaged, reached)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
