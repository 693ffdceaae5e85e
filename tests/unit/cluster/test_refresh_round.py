"""A round in one process: what it mines, what it keeps of earlier rounds, what it removes and what it logs."""

from __future__ import annotations

import dataclasses
import gc
import time
import weakref
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from simulated_gpu import CUDA, simulated_gpu

from raytriever.cluster.train import mining_round
from raytriever.cluster.train.clients import ThreadClient
from raytriever.cluster.train.mining_round import EMBEDDINGS, MiningRounds, SnapshotLoader, encode_here
from raytriever.config import Config
from raytriever.data.config import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable, read_negatives
from raytriever.data.prepare.open import open_dataset
from raytriever.data.records import ORIGINS
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.shards import ShardEncoder, tokenisation_of
from raytriever.encoding.writer import StoreWriter
from raytriever.index import exact
from raytriever.losses.distributed import ALONE
from raytriever.mining import miner
from raytriever.mining.miner import CandidateFilter
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.training.background import JobError
from raytriever.training.config import RefreshConfig, TrainingConfig
from raytriever.training.parallel.model_state import Snapshot, take_snapshot
from raytriever.training.refresh import round_path

CPU = torch.device("cpu")
ALL = 320  # documents and queries


class Pool:
    """Encodes here, and remembers how many rows; may die after some shards."""

    def __init__(self, snapshot: Snapshot, most: int = 99) -> None:
        self.snapshot, self.most, self.rows = snapshot, most, 0

    def __call__(self, work: StoreWriter, load: SnapshotLoader, path: str, missing: list[int]) -> None:
        encode = ShardEncoder(work, partial(load, self.snapshot), path)
        for number in missing:
            if not self.most:
                raise KeyboardInterrupt
            self.most -= 1
            encode(number)
            self.rows += len(work.plan.rows_of(number))


@pytest.fixture
def retriever(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder)))


@pytest.fixture
def dataset(tiny_dataset: Path, retriever: Retriever) -> RetrievalDataset:
    return open_dataset(tiny_dataset, ["train", "dev", "test"], tokenisation=tokenisation_of(retriever))


Make = Callable[..., MiningRounds]


@pytest.fixture
def rounds(tiny_encoder: Path, dataset: RetrievalDataset, tmp_path: Path) -> Make:
    def make(first: NegativesTable | None = None, **refresh: object) -> MiningRounds:
        config = Config(
            data=DataConfig(negatives_per_query=1),
            model=ModelConfig(str(tiny_encoder)),
            training=TrainingConfig(precision="fp32"),
            refresh=RefreshConfig(refresh_every=5, refresh_negatives=4, **refresh),
        )
        return MiningRounds(config, [str(dataset.location)], tmp_path / "negatives", first)

    return make


def other(snapshot: Snapshot) -> Snapshot:
    """Weights after some training."""
    return {
        name: values + 0.02 * np.cos(np.arange(values.size, dtype="f4")).reshape(values.shape)
        for name, values in snapshot.items()
    }


def test_a_round_is_the_encoders_own_ranking_without_the_relevant(
    rounds: Make, retriever: Retriever, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    snapshot = take_snapshot(retriever, ALONE)
    logged = rounds().run(3, snapshot, Pool(snapshot))
    table = read_negatives(round_path(tmp_path / "negatives", 3), dataset)
    queries = encode_texts(retriever, dataset.queries.texts, "query")
    scores = queries @ encode_texts(retriever, list(dataset.passages()), "passage").T
    positives = dataset.positives("train")
    for index, query in enumerate(positives.queries.tolist()):
        ranking = [document for document in np.argsort(-scores[query]).tolist() if document not in positives.of(index)]
        assert table.documents[table.offsets[query] : table.offsets[query + 1]].tolist() == ranking[:4]
    assert set(table.rounds.tolist()) == {3}
    assert logged["refresh_encoded"] == ALL
    assert logged["refresh_queries_short"] == logged["refresh_queries_without"] == 0
    assert 0 < logged["refresh_share_relevant"] < 1
    assert logged["refresh_share_relevant"] + logged["refresh_share_kept"] == pytest.approx(1)
    assert "refresh_true_positives" not in logged  # nobody else judges these queries
    assert not list((tmp_path / "negatives" / EMBEDDINGS).iterdir())


@pytest.mark.slow
def test_a_round_on_a_gpu_is_that_of_a_cpu(
    rounds: Make,
    retriever: Retriever,
    dataset: RetrievalDataset,
    tiny_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = take_snapshot(retriever, ALONE)
    with monkeypatch.context() as patch, simulated_gpu() as counts:
        taken = take_snapshot(load_retriever(ModelConfig(str(tiny_encoder))).to(CUDA), ALONE)
        counts.reset()
        for module in (mining_round, exact):  # torch alone completes a device without an index
            patch.setattr(module, "default_device", lambda: CUDA)
        assert rounds().run(2, taken, Pool(taken))["refresh_encoded"] == ALL
    rounds().run(1, snapshot, Pool(snapshot))
    expected, table = (read_negatives(round_path(tmp_path / "negatives", number), dataset) for number in (1, 2))
    assert np.array_equal(table.offsets, expected.offsets)
    assert (table.documents == expected.documents).mean() > 0.99  # the last bits of embeddings may differ
    assert any(line.startswith("to the host encoding/") for line in counts.pinned), counts.table()


def local_client(rounds: Make) -> ThreadClient[dict[str, float]]:
    opened = cache(rounds)
    return ThreadClient(lambda number, weights: opened().run(number, weights, partial(encode_here, weights)), CPU, bool)


@pytest.mark.slow
def test_the_first_worker_mines_where_training_leaves_no_gpu(
    rounds: Make, retriever: Retriever, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    snapshot = take_snapshot(retriever, ALONE)
    expected = rounds().run(1, snapshot, Pool(snapshot))["refresh_encoded"]
    local = local_client(rounds)
    for number in (2, 3):
        local.submit(number, snapshot)
        while (result := local.poll()) is None:
            time.sleep(0.01)
        assert result["refresh_encoded"] == expected
    tables = [read_negatives(round_path(tmp_path / "negatives", number), dataset) for number in (1, 2)]
    assert np.array_equal(*(table.documents for table in tables))


def test_the_memory_of_a_round_is_given_back_whether_it_ends_or_fails(
    rounds: Make, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the garbage collection, which training pauses: no cycle and no traceback holds the encoder."""
    snapshot, encoders = take_snapshot(retriever, ALONE), list[weakref.ref[Retriever]]()
    load = SnapshotLoader.__call__

    def remember(self: SnapshotLoader, weights: Snapshot) -> Retriever:
        loaded = load(self, weights)
        encoders.append(weakref.ref(loaded))
        return loaded

    monkeypatch.setattr(SnapshotLoader, "__call__", remember)
    local = local_client(rounds)
    gc.collect()
    gc.disable()
    try:
        local.submit(1, snapshot)
        while local.poll() is None:
            time.sleep(0.01)
        monkeypatch.setattr(Retriever, "encode", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
        local.submit(2, other(snapshot))
        while not local._job.done():
            time.sleep(0.01)
        with pytest.raises(JobError, match="no memory"):
            local.poll()
        assert len(encoders) >= 3
        assert [encoder() for encoder in encoders] == [None] * len(encoders)
    finally:
        gc.enable()


@pytest.mark.slow
def test_an_interrupted_round_continues_and_other_weights_start_again(rounds: Make, retriever: Retriever) -> None:
    one = take_snapshot(retriever, ALONE)
    two = other(one)
    with pytest.raises(KeyboardInterrupt):
        rounds().run(1, one, Pool(one, most=1))
    rest = Pool(one)
    assert rounds().run(1, one, rest)["refresh_encoded"] == rest.rows == ALL - 160
    with pytest.raises(KeyboardInterrupt):
        rounds().run(2, one, Pool(one, most=1))
    again = Pool(two)
    rounds().run(2, two, again)
    assert again.rows == ALL


@pytest.mark.slow
def test_an_interrupted_mining_continues_after_its_last_block(
    rounds: Make, retriever: Retriever, dataset: RetrievalDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = take_snapshot(retriever, ALONE)
    rounds().run(1, one, Pool(one))
    mined: list[int] = []
    mine_block = CandidateFilter._mine

    def interrupted(self, finder, rows, first, end):  # type: ignore[no-untyped-def]
        if len(mined) == 2:
            mined.append(-1)
            raise KeyboardInterrupt
        mined.append(int(rows[0]))
        return mine_block(self, finder, rows, first, end)

    monkeypatch.setattr(miner, "BLOCK", 100)
    monkeypatch.setattr(CandidateFilter, "_mine", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rounds().run(2, one, Pool(one))
    rounds().run(2, one, Pool(one))
    assert mined[2] == -1
    assert len(set(mined)) == len(mined) > 4
    whole, continued = (read_negatives(round_path(tmp_path / "negatives", number), dataset) for number in (1, 2))
    assert np.array_equal(whole.documents, continued.documents)
    assert not list((tmp_path / "negatives" / EMBEDDINGS).iterdir())


def test_rolling_encodes_the_queries_and_a_share_of_the_corpus(
    rounds: Make, retriever: Retriever, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    one = take_snapshot(retriever, ALONE)
    mining = rounds(refresh_mode="rolling", refresh_share=0.5)
    assert mining.run(1, one, Pool(one))["refresh_encoded"] == ALL
    weights, table = one, {}
    for number in range(2, 4):
        weights = other(weights)
        assert mining.run(number, weights, Pool(weights))["refresh_encoded"] == 160 + 80
        table[number] = read_negatives(round_path(tmp_path / "negatives", number), dataset).documents
    # With the same weights two turns make a whole corpus of one age, which a refresh of all is as well.
    for number in (4, 5):
        mining.run(number, weights, Pool(weights))
    rolled = read_negatives(round_path(tmp_path / "negatives", 5), dataset).documents
    rounds().run(6, weights, Pool(weights))
    assert np.array_equal(rolled, read_negatives(round_path(tmp_path / "negatives", 6), dataset).documents)
    assert not np.array_equal(table[3], rolled)


def test_rows_of_other_origins_stay_where_they_have_a_share(
    rounds: Make, retriever: Retriever, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    one = take_snapshot(retriever, ALONE)
    columns = (
        np.array([0, 0, 1]),
        np.array([150, 151, 152]),
        np.array([ORIGINS.index(o) for o in ("bm25", "dense", "bm25")]),
    )
    first = NegativesTable.of(dataset, *columns, ranks=np.array([7, 7, 7]))
    rounds(first).run(1, one, Pool(one))
    table = read_negatives(round_path(tmp_path / "negatives", 1), dataset)
    bm25_documents = table.documents[table.origins == ORIGINS.index("bm25")].tolist()
    assert set(bm25_documents) <= {150, 152}
    assert (table.rounds[table.origins == ORIGINS.index("dense")] == 1).all()
    assert len(table) >= 4 * 96


@pytest.mark.slow
def test_what_another_split_calls_relevant_is_no_negative_and_is_counted(
    rounds: Make, retriever: Retriever, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    one = take_snapshot(retriever, ALONE)
    mining = rounds()
    mining.run(1, one, Pool(one))
    before = read_negatives(round_path(tmp_path / "negatives", 1), dataset)
    # The test split finds the hardest negative of the first training query relevant.
    query = int(dataset.positives("train").queries[0])
    hardest = int(before.documents[before.offsets[query]])
    judged = dataset.judgements["test"]
    rows = dataclasses.replace(
        judged,
        **{name: np.insert(getattr(judged, name), 0, value) for name, value in
           {"queries": query, "documents": hardest, "scores": 1, "sources": 0, "ranks": 0}.items()},
    )  # fmt: skip
    mining._datasets = [dataclasses.replace(dataset, judgements={**dataset.judgements, "test": rows})]
    logged = mining.run(2, one, Pool(one))
    after = read_negatives(round_path(tmp_path / "negatives", 2), dataset)
    assert logged["refresh_true_positives"] == 1 / len(before)
    assert len(after) == len(before) - 1
    assert hardest not in after.documents[after.offsets[query] : after.offsets[query + 1]]
