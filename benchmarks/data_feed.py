"""Feeding a training step: how long it waits for its batch, with one loader.

Run: `python benchmarks/data_feed.py [--json PATH] [--dataset PATH]`. A step of about 50 ms takes 64 queries of SQuAD
with 1 positive and 5 other passages each, cut to 32 and 128 tokens, from token arrays in memory. The step is once a
computation of torch on one thread, so many small operations that the interpreter is as busy as in a real one, and
once a sleep, as of a GPU at work. What the loader costs the computation beside the wait is told by taking turns.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import numpy as np
import torch

from ends import End, parser, report
from raytriever.data.order import Order
from raytriever.models.buckets import Buckets
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, Side, load_retriever
from raytriever.training.loader import Prefetcher

BATCH, NEGATIVES, QUERY_LENGTH, PASSAGE_LENGTH = 64, 5, 32, 128
STEP_SECONDS, STEPS = 0.05, 100
SQUAD = Path(__file__).parent.parent.parent / "shared" / "data" / "squad"
Batch = tuple[Buckets, Buckets]


class Tokens:
    """Contents of texts end to end, and where each begins: the form in which they are prepared."""

    def __init__(self, retriever: Retriever, texts: list[str], side: Side) -> None:
        found = retriever.contents(texts, side)
        self.ids = np.concatenate(found).astype(np.uint32)
        self.offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in found])])

    def of(self, positions: np.ndarray) -> list[np.ndarray]:
        """The contents at some positions."""
        return [self.ids[self.offsets[place] : self.offsets[place + 1]] for place in positions.tolist()]


def batches(dataset: Path) -> Callable[[int], Batch]:
    """The batch of any step, from a data set in BEIR layout."""
    retriever = load_retriever(ModelConfig("minilm", query_length=QUERY_LENGTH, passage_length=PASSAGE_LENGTH))
    ids, tokens = {}, {}
    for name, side in (("queries", "query"), ("corpus", "passage")):
        with gzip.open(dataset / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        ids[name] = {row["_id"]: place for place, row in enumerate(rows)}
        tokens[name] = Tokens(retriever, [f"{row.get('title', '')} {row['text']}".strip() for row in rows], side)
    judged = [line.split("\t") for line in (dataset / "qrels" / "train.tsv").read_text().splitlines()[1:]]
    pairs = np.array([[ids["queries"][row[0]], ids["corpus"][row[1]]] for row in judged])
    order = Order(len(pairs), BATCH, seed=0)

    def make(step: int) -> Batch:
        queries, positives = pairs[order.batch(step)].T
        draws = np.random.Generator(np.random.Philox(key=np.array([0, step], dtype=np.uint64)))
        negatives = draws.integers(0, len(ids["corpus"]), (BATCH, NEGATIVES))
        passages = np.concatenate([positives[:, None], negatives], axis=1).reshape(-1)
        return (
            retriever.batch_of(tokens["queries"].of(queries), "query"),
            retriever.batch_of(tokens["corpus"].of(passages), "passage"),
        )

    return make


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
        found = {"making a batch (ms)": End(1_000 * median(made), "told", True)}
        for name, step in (("torch on one thread", computation()), ("a sleep", lambda: sleep(STEP_SECONDS))):
            first, share = fed(make, step)
            busy, idle = beside(make, step)
            found |= {
                f"step of 50 ms, {name}: exposed wait (%)": End(100 * share, "under 2", share < 0.02),
                f"step of 50 ms, {name}: wait for the first batch (ms)": End(1_000 * first, "told", True),
                f"step of 50 ms, {name}: without the loader (ms)": End(1_000 * idle, "told", True),
                f"step of 50 ms, {name}: beside the loader (x)": End(busy / idle, "told", True),
            }
    finally:
        torch.set_num_threads(threads)
    return found


def main() -> None:
    """Print the ends."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--dataset", type=Path, default=SQUAD, metavar="PATH", help="in BEIR layout, gzipped")
    given = arguments.parse_args()
    report(f"feeding, batch {BATCH}, {1 + NEGATIVES} passages a query", feeding(given.dataset), given.json)


if __name__ == "__main__":
    main()
