"""Workers: a step on two processes of one thread against a step on one process of two threads, same global batch.

Run: `python benchmarks/workers.py [--json PATH] [--steps 12]`. Needs torch and transformers; processes are started
directly, without Ray. Encoder, texts and loss are those of `benchmarks/grad_cache.py`: MiniLM's size with random
weights, `mw`. Both groups are started before and run their steps alternately, one group at a time, so other load on the
machine affects both; the medians are compared. The processor seconds of a group show which part of the ratio is work
and which is waiting; a process of two threads is not charged for work that it cannot divide."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import grad_cache
from ends import at_most, parser, report, reported

THREADS = 2
TARGET = 1.15


def member(rank: int, size: int, folder: Path, queries: int) -> None:
    """Run one process of a group: one step for each input line; print its seconds."""
    from torch import distributed

    from raytriever.losses.distributed import current_workers
    from raytriever.training.loop import build_strategy
    from raytriever.training.optimizer_and_schedule import build_optimizer
    from raytriever.training.training_settings import TrainingConfig

    torch.set_num_threads(THREADS // size)
    if size > 1:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    device = torch.device("cpu")
    model = grad_cache.objective("fp32", device)
    strategy = build_strategy(TrainingConfig(), model, build_optimizer(model, 1e-5, 0.01), current_workers(), device)
    grad_cache.QUERIES = queries // size
    fraction = grad_cache.batch(rank, size, device, None)
    print(json.dumps({}), flush=True)
    for number, _ in enumerate(sys.stdin):
        began, worked = time.perf_counter(), time.process_time()
        grad_cache.take_step(strategy, fraction, number)
        answer = {"seconds": time.perf_counter() - began, "worked": time.process_time() - worked}
        print(json.dumps(answer), flush=True)


class Group:
    """Processes of one number of workers."""

    def __init__(self, size: int, folder: Path, queries: int) -> None:
        own = [sys.executable, __file__, "--folder", str(folder), "--size", str(size), "--queries", str(queries)]
        self.members = [
            subprocess.Popen(
                [*own, "--rank", str(rank)],
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(THREADS // size)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        self.answers()

    def answers(self) -> list[dict[str, float]]:
        """Return the answers of all members."""
        return [json.loads(process.stdout.readline()) for process in self.members]

    def step(self) -> tuple[float, float]:
        """Run one step; return the seconds of the slowest member, and the processor seconds of all."""
        for process in self.members:
            process.stdin.write("step\n")
            process.stdin.flush()
        times = self.answers()
        return max(time["seconds"] for time in times), sum(time["worked"] for time in times)

    def end(self) -> None:
        """End all members."""
        for process in self.members:
            process.stdin.close()
            process.wait()


def main() -> None:
    """Measure and report, or run as a member of a group."""
    line = parser((__doc__ or "").splitlines()[0])
    line.add_argument("--steps", type=int, default=12, help="timed steps of each group")
    line.add_argument("--queries", type=int, default=64, help="of the global batch, each with two passages")
    line.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    line.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    line.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = line.parse_args()
    if options.folder:
        member(options.rank, options.size, options.folder, options.queries)
        return
    with tempfile.TemporaryDirectory() as folder:
        groups = {size: Group(size, Path(folder), options.queries) for size in (1, 2)}
        durations: dict[int, list[tuple[float, float]]] = {size: [] for size in groups}
        for number in range(options.steps + 2):
            for size, group in groups.items():
                times = group.step()
                if number > 1:  # the first ones make the optimiser's state and warm caches
                    durations[size].append(times)
        for group in groups.values():
            group.end()
    pairs = list(zip(durations[1], durations[2], strict=True))
    ratio = median(two[0] / item[0] for item, two in pairs)
    ends = {
        "2 workers of 1 thread / 1 of 2, a step (x)": at_most(ratio, TARGET),
        "the same in processors' seconds (x)": reported(median(two[1] / item[1] for item, two in pairs)),
        "1 worker: a step (s)": reported(median(item[0] for item, _ in pairs)),
        "2 workers: a step (s)": reported(median(two[0] for _, two in pairs)),
    }
    report(f"workers on {THREADS} cores, fp32, ddp, {options.queries} queries a step", ends, options.json)


if __name__ == "__main__":
    main()
