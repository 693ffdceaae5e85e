"""The batch of a step: its passages, its share of a worker and its chunks; batches that are loaded ahead, in order."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from raytriever.data.columns import Rows, TokenColumn
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset, Tokens
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.prepare.corpus_tokenization import flat
from raytriever.data.sampling.batch_order import Order
from raytriever.data.sampling.training_examples import Examples
from raytriever.losses.batch_and_temperature import PAD, RowRelevance
from raytriever.losses.distributed import ALONE
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import Buckets, fill_buckets, spans
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training.batch_loader import Batches, Prefetcher
from raytriever.training.parallel.gradient_caching import count_kept

# Query q has the q + 1 positives 10q, 10q + 1, ...: one to six of them.
POSITIVES = {query: [10 * query + index for index in range(query + 1)] for query in range(6)}


@dataclass(frozen=True)
class Place:
    """A worker as the batches see it: where it stands."""

    rank: int
    size: int


@pytest.fixture(scope="module")
def retriever(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder), query_prompt="q", passage_prompt="p"))


def tokens(retriever: Retriever, dataset: RetrievalDataset) -> Tokens:
    tokenization = tokenization_of(retriever)

    def column(texts: Sequence[str], prefix: str) -> TokenColumn:
        ids, offsets = flat(tokenization.encode(texts, prefix), tokenization.dtype)
        return TokenColumn([ids], [offsets], Rows.of([len(texts)], None))

    return Tokens(column(dataset.queries.texts, "q"), column(list(dataset.passages()), "p"), tokenization.digest)


def source(retriever: Retriever, positives: int = 1, negatives: int = 2, batch_size: int = 6) -> Batches:
    pairs = [(query, document, 1) for query, documents in POSITIVES.items() for document in documents]
    dataset = RetrievalDataset(
        "numbers",
        Documents([f"d{n}" for n in range(60)], ["title"] * 60, [str(n) for n in range(60)]),
        Queries([f"q{n}" for n in range(6)], [f"query {n}" for n in range(6)]),
        {"train": Judgements(*np.array(pairs).T)},
    )
    # Mined for every query: two, which nobody's positives are.
    table = NegativesTable.of(dataset, np.repeat(range(6), 2), np.tile([9, 8], 6), "bm25", np.tile([0, 1], 6))
    examples = Examples.of(dataset, "train", 0, table)
    return Batches(tokens(retriever, dataset), examples, Order(len(examples), batch_size, 0), positives, negatives)


def texts(retriever: Retriever, side: Buckets) -> list[str]:
    decoded = [
        re.sub(" |##", "", text)
        for part in side.buckets
        for text in retriever.tokenizer.batch_decode(part["input_ids"], skip_special_tokens=True)
    ]
    return [decoded[position] for position in side.indices.tolist()]


def positive_ids(relevance: RowRelevance) -> torch.Tensor:
    documents = relevance.keep(relevance.passages)
    return torch.where(relevance.is_positive, documents[relevance.slots], PAD)


def test_texts_stand_where_their_ids_say(retriever: Retriever) -> None:
    batch = source(retriever).batch(3, retriever, ALONE)
    assert sorted(batch.relevance.queries.tolist()) == list(range(6))
    assert texts(retriever, batch.queries) == [f"qquery{n}" for n in batch.relevance.queries.tolist()]
    assert texts(retriever, batch.passages) == [f"ptitle{n}" for n in batch.relevance.passages.tolist()]
    assert (batch.relevance.seed, batch.relevance.step) == (0, 3)


@pytest.mark.parametrize(("most", "negatives"), [(1, 2), (3, 1)])
def test_a_group_is_its_positives_filled_up_with_negatives(retriever: Retriever, most: int, negatives: int) -> None:
    batch = source(retriever, positives=most, negatives=negatives).batch(0, retriever, ALONE)
    groups = batch.relevance.passages.reshape(6, most + negatives)
    for query, positives, group in zip(
        batch.relevance.queries.tolist(), positive_ids(batch.relevance), groups, strict=True
    ):
        there = positives[positives != PAD].tolist()
        assert len(set(there)) == len(there) == min(most, len(POSITIVES[query]))
        assert set(there) <= set(POSITIVES[query])
        assert group[: len(there)].tolist() == there
        hard = group[len(there) :].tolist()
        assert set(hard) <= {8, 9}
        assert len(set(hard)) == min(2, len(hard))


@pytest.mark.parametrize("step", [0, 5])
def test_workers_share_out_what_one_would_have(retriever: Retriever, step: int) -> None:
    whole = source(retriever, positives=2, negatives=1).batch(step, retriever, ALONE)
    local_batches = [
        source(retriever, positives=2, negatives=1).batch(step, retriever, Place(rank, 3)) for rank in range(3)
    ]
    for name in ("queries", "positives", "passages", "excluded_columns"):
        together = torch.cat([getattr(local.relevance, name) for local in local_batches])
        assert torch.equal(together, getattr(whole.relevance, name)), name
    together = [text for local in local_batches for text in texts(retriever, local.passages)]
    assert together == texts(retriever, whole.passages)


LENGTHS = [9, 3, 30, 12, 4, 9, 2, 11, 3, 10, 9]


def pad(rows: list[np.ndarray]) -> dict[str, torch.Tensor]:
    dim = max(map(len, rows))
    return {"input_ids": torch.tensor([[*row, *[0] * (dim - len(row))] for row in rows])}


@pytest.mark.parametrize("tokens", [1, 20, 45, 1_000])
def test_chunks_hold_every_text_once(tokens: int) -> None:
    rows = [np.full(length, number + 1) for number, length in enumerate(LENGTHS)]
    chunks = fill_buckets(rows, pad, tokens=tokens)
    texts = [row[row > 0].tolist() for chunk in chunks.buckets for row in chunk["input_ids"]]
    assert [texts[index] for index in chunks.indices.tolist()] == [row.tolist() for row in rows]
    for chunk in chunks.buckets:
        count, dim = chunk["input_ids"].shape
        assert count * dim <= tokens or count == 1
        assert (chunk["input_ids"][:, -1] > 0).any()


def test_packed_texts_are_cut_in_their_order() -> None:
    assert list(spans([3, 4, 30, 2], 8)) == [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert list(spans([3, 4, 30, 2], None)) == [slice(0, 4)]


def test_the_last_chunks_that_fit_together_are_encoded_once() -> None:
    texts = [({"input_ids": torch.zeros(shape)}, "query") for shape in ((3, 3), (7, 12), (1, 30))]
    assert [count_kept(texts, tokens) for tokens in (20, 113, 114, 122, 123)] == [1, 1, 2, 2, 3]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "loader"] == []


class Work:
    """Makes squares, and remembers which it began."""

    def __init__(self, broken: int | None = None) -> None:
        self.begun: list[int] = []
        self.broken = broken
        self.threads: set[int] = set()
        self.events = threading.Condition()

    def __call__(self, step: int) -> int:
        with self.events:
            self.begun.append(step)
            self.threads.add(threading.get_ident())
            self.events.notify_all()
        if step == self.broken:
            raise ValueError(f"step {step}")
        return step**2

    def wait_for(self, count: int) -> None:
        with self.events:
            assert self.events.wait_for(lambda: len(self.begun) >= count, timeout=60)


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("steps", [range(0), range(1), range(40), range(1_000_000, 1_000_005)])
def test_batches_come_in_order_each_made_once(steps: range, depth: int) -> None:
    work = Work()
    with Prefetcher(work, steps, depth) as batches:
        assert list(batches) == [step**2 for step in steps]
        assert list(batches) == []
    assert work.begun == list(steps)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_never_more_than_depth_ahead_of_a_slow_step_and_as_many_when_there_is_time(depth: int) -> None:
    work = Work()
    with Prefetcher(work, range(30), depth) as batches:
        for step in range(10):
            work.wait_for(step + depth)  # without anybody taking: the thread runs ahead by itself
            time.sleep(0.005)
            assert len(work.begun) == step + depth
            assert next(batches) == step**2


def test_an_error_is_raised_at_its_own_step_and_ends_the_iteration() -> None:
    work = Work(broken=3)
    with Prefetcher(work, range(10)) as batches:
        assert [next(batches) for _ in range(3)] == [0, 1, 4]
        with pytest.raises(ValueError, match="step 3") as raised:
            next(batches)
        assert any(entry.name == "__call__" for entry in raised.traceback)  # the traceback shows where it happened
        assert list(batches) == []
    assert work.begun[:4] == [0, 1, 2, 3]


def test_an_error_that_is_no_exception_does_not_leave_the_step_waiting() -> None:
    def make(step: int) -> int:
        raise SystemExit(step)

    with Prefetcher(make, range(3)) as batches, pytest.raises(SystemExit):
        next(batches)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_early_stops_the_thread(taken: int) -> None:
    work = Work()
    with Prefetcher(work, range(1_000_000)) as batches:
        for _ in range(taken):
            next(batches)
    assert len(work.begun) <= taken + 2
    assert list(batches) == []


@pytest.mark.usefixtures("handled_interrupts")
def test_an_interrupt_wakes_a_step_that_waits() -> None:
    begun, go_on = threading.Event(), threading.Event()
    main = threading.get_ident()

    def make(step: int) -> int:
        assert begun.wait(60)
        time.sleep(0.2)  # until the step waits: Python loses a signal that comes a moment before
        # The batch never comes before the interrupt was seen, so nothing else can wake the step.
        signal.pthread_kill(main, signal.SIGINT)
        assert go_on.wait(60)
        return step

    def train() -> None:
        with Prefetcher(make, range(3)) as batches:
            try:
                begun.set()
                next(batches)
            except KeyboardInterrupt:
                go_on.set()
                raise

    with pytest.raises(KeyboardInterrupt):
        train()
    assert go_on.is_set()


def test_waiting_is_measured_for_the_last_batch() -> None:
    gate = threading.Event()

    def make(step: int) -> int:
        if step == 1:
            assert gate.wait(60)
        return step

    with Prefetcher(make, range(2), depth=1) as batches:
        next(batches)
        threading.Timer(0.2, gate.set).start()
        next(batches)
        assert batches.waited > 0.15
