"""Feeding a training step: how long it waits for its batch, with one loader, and how much of the batch is padding.

Run: `python benchmarks/data_feed.py [--json PATH] [--dataset PATH]`. A step of about 50 ms takes 64 queries of SQuAD
with 1 positive and 5 other passages each, cut to 32 and 128 tokens, from the prepared data set. The step is once a
computation of torch on one thread, so many small operations that the interpreter is as busy as in a real one, and
once a sleep, as of a GPU at work. What the loader costs the computation beside the wait is told by taking turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import torch

from ends import End, parser, report
from raytriever.data.config import DataConfig
from raytriever.losses.engine.workers import ALONE
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.batches import Batch, Prefetcher
from raytriever.training.training_data import TrainingData, tokenisation_of

BATCH, NEGATIVES, QUERY_LENGTH, PASSAGE_LENGTH = 64, 5, 32, 128
STEP_SECONDS, STEPS = 0.05, 100
SQUAD = Path(__file__).parent.parent.parent / "shared" / "data" / "squad"


def batches(dataset: Path) -> Callable[[int], Batch]:
    """The batch of any step, as training makes it from the prepared data set."""
    retriever = load_retriever(ModelConfig("minilm", query_length=QUERY_LENGTH, passage_length=PASSAGE_LENGTH))
    config = DataConfig(dataset=str(dataset), negatives_per_query=NEGATIVES)
    training_data = TrainingData.open(config.datasets, config, tokenisation_of(retriever), BATCH, seed=0)
    source = training_data.train(None)
    return lambda step: source.batch(step, retriever, ALONE)


def computation() -> Callable[[], None]:
    """About `STEP_SECONDS` of small products on one thread."""
    left, right = torch.randn(192, 192), torch.randn(192, 192)

    def products(count: int) -> None:
        for _ in range(count):
            (left @ right).relu_()

    products(200)
    began = perf_counter()
    products(1_000)
    count = round(1_000 * STEP_SECONDS / (perf_counter() - began))
    return lambda: products(count)


def seconds(work: Callable[[], object]) -> float:
    """What it takes."""
    began = perf_counter()
    work()
    return perf_counter() - began


def fed(make: Callable[[int], Batch], step: Callable[[], None]) -> tuple[float, float]:
    """Seconds the first batch was waited for, and the share of the later steps that was waiting."""
    waited, took = [], []
    with Prefetcher(make, range(STEPS + 1)) as feed:
        for _ in feed:
            waited.append(feed.waited)
            took.append(seconds(step))
    return waited[0], sum(waited[1:]) / (sum(waited[1:]) + sum(took[1:]))


def beside(make: Callable[[int], Batch], step: Callable[[], None]) -> tuple[float, float]:
    """Median seconds of a step while the loader makes a batch, and of the next, when it has made all it may."""
    with Prefetcher(make, range(STEPS)) as feed:
        took = [(seconds(step), seconds(step)) for _ in feed]
    busy, idle = zip(*took[:-2], strict=True)  # beside the last steps nothing is left to make
    return median(busy), median(idle)


def feeding(dataset: Path = SQUAD) -> dict[str, End]:
    """The measured ends of feeding; torch is left with the threads it had."""
    make = batches(dataset)
    make(0)  # the first epoch's permutation
    made = [seconds(partial(make, number)) for number in range(STEPS)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {"making a batch (ms)": End(1_000 * median(made), "reported", True)}
        for name, step in (("torch on one thread", computation()), ("a sleep", lambda: sleep(STEP_SECONDS))):
            first, share = fed(make, step)
            busy, idle = beside(make, step)
            found |= {
                f"step of 50 ms, {name}: exposed wait (%)": End(100 * share, "under 2", share < 0.02),
                f"step of 50 ms, {name}: wait for the first batch (ms)": End(1_000 * first, "reported", True),
                f"step of 50 ms, {name}: without the loader (ms)": End(1_000 * idle, "reported", True),
                f"step of 50 ms, {name}: beside the loader (x)": End(busy / idle, "reported", True),
            }
    finally:
        torch.set_num_threads(threads)
    return found


def padding(dataset: Path = SQUAD) -> dict[str, End]:
    """Padded tokens of all token slots over the first `STEPS` batches, queries and one positive each together."""
    found = {}
    for size, query_length, passage_length in ((64, 64, 256), (64, 32, 128), (256, 64, 256), (256, 32, 128)):
        retriever = load_retriever(ModelConfig("minilm", query_length=query_length, passage_length=passage_length))
        config = DataConfig(dataset=str(dataset))
        training_data = TrainingData.open(config.datasets, config, tokenisation_of(retriever), size, seed=0)
        source = training_data.train(None)
        slots = tokens = 0
        for step in range(STEPS):
            batch = source.batch(step, retriever, ALONE)
            for part in (*batch.queries.buckets, *batch.passages.buckets):
                slots += part["attention_mask"].numel()
                tokens += int(part["attention_mask"].sum())
        share = 100 * (1 - tokens / slots)
        name = f"padding, batch {size}, lengths {query_length}/{passage_length} (%)"
        found[name] = End(share, "under 10", share < 10)
    return found


def main() -> None:
    """Print the ends."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--dataset", type=Path, default=SQUAD, metavar="PATH", help="of any known format")
    given = arguments.parse_args()
    report(
        f"feeding, batch {BATCH}, {1 + NEGATIVES} passages a query",
        feeding(given.dataset) | padding(given.dataset),
        given.json,
    )


if __name__ == "__main__":
    main()
