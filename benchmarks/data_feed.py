"""Batches of a training step: the time that a step waits for its batch, with one loader, and the share of padding.

Run: `python benchmarks/data_feed.py [--json PATH] [--dataset PATH]`. A step of about 50 ms uses 64 queries of SQuAD
with 1 positive and 5 other passages each, cut to 32 and 128 tokens, from the prepared data set. The step is once a
torch computation on one thread, with so many small operations that the interpreter is as busy as in a real step, and
once a sleep, which stands for a GPU. Steps with and without the loader alternate, so their ratio is the loader's other
cost.
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
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.distributed import ALONE
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.batch import Batch
from raytriever.training.loader import Prefetcher
from raytriever.training.training_data import TrainingData

BATCH, NEGATIVES, QUERY_LENGTH, PASSAGE_LENGTH = 64, 5, 32, 128
STEP_SECONDS, STEPS = 0.05, 100
SQUAD = Path(__file__).parent.parent.parent / "shared" / "data" / "squad"


def batches(dataset: Path) -> Callable[[int], Batch]:
    """Return the function that makes the batch of a step from the prepared data set, as training does."""
    retriever = load_retriever(ModelConfig("minilm", query_length=QUERY_LENGTH, passage_length=PASSAGE_LENGTH))
    config = DataConfig(dataset=str(dataset), negatives_per_query=NEGATIVES)
    training_data = TrainingData.open(config.datasets, config, tokenisation_of(retriever), BATCH, seed=0)
    source = training_data.train(None)
    return lambda step: source.batch(step, retriever, ALONE)


def computation() -> Callable[[], None]:
    """Return a computation of small products that runs about `STEP_SECONDS` on one thread."""
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
    """Return the duration of a call."""
    began = perf_counter()
    work()
    return perf_counter() - began


def fed(make: Callable[[int], Batch], step: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds until the first batch, and the share of the later steps that was spent waiting."""
    waited, took = [], []
    with Prefetcher(make, range(STEPS + 1)) as feed:
        for _ in feed:
            waited.append(feed.waited)
            took.append(seconds(step))
    return waited[0], sum(waited[1:]) / (sum(waited[1:]) + sum(took[1:]))


def during_and_after(make: Callable[[int], Batch], step: Callable[[], None]) -> tuple[float, float]:
    """Return the median seconds of a step while the loader makes a batch, and after it has filled its queue."""
    with Prefetcher(make, range(STEPS)) as feed:
        took = [(seconds(step), seconds(step)) for _ in feed]
    busy, idle = zip(*took[:-2], strict=True)  # during the last steps nothing is left to make
    return median(busy), median(idle)


def feeding(dataset: Path = SQUAD) -> dict[str, End]:
    """Return the results of the loader; the number of torch threads is restored."""
    make = batches(dataset)
    make(0)  # the first epoch's permutation
    durations = [seconds(partial(make, number)) for number in range(STEPS)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = {"making a batch (ms)": End(1_000 * median(durations), "reported", True)}
        for name, step in (("torch on one thread", computation()), ("a sleep", lambda: sleep(STEP_SECONDS))):
            first, share = fed(make, step)
            busy, idle = during_and_after(make, step)
            results |= {
                f"step of 50 ms, {name}: exposed wait (%)": End(100 * share, "under 2", share < 0.02),
                f"step of 50 ms, {name}: wait for the first batch (ms)": End(1_000 * first, "reported", True),
                f"step of 50 ms, {name}: without the loader (ms)": End(1_000 * idle, "reported", True),
                f"step of 50 ms, {name}: next to the loader (x)": End(busy / idle, "reported", True),
            }
    finally:
        torch.set_num_threads(threads)
    return results


def padding(dataset: Path = SQUAD) -> dict[str, End]:
    """Return the share of padding in the first `STEPS` batches; queries and one positive each together."""
    results = {}
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
        results[name] = End(share, "under 10", share < 10)
    return results


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--dataset", type=Path, default=SQUAD, metavar="PATH", help="of any known format")
    options = arguments.parse_args()
    report(
        f"feeding, batch {BATCH}, {1 + NEGATIVES} passages a query",
        feeding(options.dataset) | padding(options.dataset),
        options.json,
    )


if __name__ == "__main__":
    main()
