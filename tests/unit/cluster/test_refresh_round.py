"""A round in one process: what it mines, keeps, removes and logs; and an actor that searches."""

from __future__ import annotations

import gc
import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from saved_checkpoint import move_weights, save_checkpoint
from simulated_gpu import CUDA, simulated_gpu

from raytriever.cluster import actor_pool
from raytriever.cluster.actor_pool import PoolActor
from raytriever.cluster.train import mining_round
from raytriever.cluster.train.job_actors import ThreadClient
from raytriever.cluster.train.mining_round import EMBEDDINGS, MiningRounds
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable, read_negatives
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding import write_or_reuse_embeddings
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.retrieval.index import exact_top_k
from raytriever.retrieval.index.rank_keys import TieOrder
from raytriever.retrieval.mining.mining_job import run_mining
from raytriever.training.background_jobs import JobError
from raytriever.training.negative_refresh import round_path
from raytriever.training.run_config import Config
from raytriever.training.training_settings import RefreshConfig, TrainingConfig

CPU = torch.device("cpu")
ALL = 320  # documents and queries


@pytest.fixture
def retriever(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder)))


@pytest.fixture
def checkpoint(retriever: Retriever, tiny_encoder: Path, tmp_path: Path) -> Path:
    """Of the encoder as it is."""
    return save_checkpoint(retriever, ModelConfig(str(tiny_encoder)), tmp_path / "checkpoints", 5)


@pytest.fixture
def later(checkpoint: Path, retriever: Retriever, tiny_encoder: Path, tmp_path: Path) -> Path:
    """After some training; `retriever` has its weights then."""
    return save_checkpoint(move_weights(retriever), ModelConfig(str(tiny_encoder)), tmp_path / "checkpoints", 10)


@pytest.fixture
def dataset(tiny_dataset: Path, retriever: Retriever) -> RetrievalDataset:
    return open_dataset(tiny_dataset, ["train", "dev", "test"], tokenization=tokenization_of(retriever))


Make = Callable[..., MiningRounds]


@pytest.fixture
def rounds(tiny_encoder: Path, dataset: RetrievalDataset, tmp_path: Path, own_cache: Path) -> Make:

    def make(first: NegativesTable | None = None, **refresh: object) -> MiningRounds:
        config = Config(
            data=DataConfig(negatives_per_query=1),
            model=ModelConfig(str(tiny_encoder)),
            training=TrainingConfig(precision="fp32"),
            refresh=RefreshConfig(refresh_every=5, refresh_negatives=4, **refresh),
        )
        return MiningRounds(config, [str(dataset.location)], tmp_path / "negatives", first)

    return make


def test_a_round_is_the_encoders_own_ranking_without_the_relevant(
    rounds: Make,
    retriever: Retriever,
    later: Path,
    dataset: RetrievalDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_or_reuse_embeddings, "_earlier_shards", None)  # no earlier encoding has these weights
    logged = rounds().run(3, later)
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
    assert 0 < logged["refresh_fraction_relevant"] < 1
    assert logged["refresh_fraction_relevant"] + logged["refresh_fraction_kept"] == pytest.approx(1)
    assert not list((tmp_path / "negatives" / EMBEDDINGS).iterdir())


def test_mining_by_hand_with_the_checkpoint_finds_the_negatives_of_the_round(
    later: Path, tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, own_cache: Path
) -> None:
    """Documents that another split judges relevant are negatives of neither."""
    folder = Path(shutil.copytree(tiny_dataset, tmp_path / "judged"))
    with (folder / "qrels" / "test.tsv").open("a") as stream:
        stream.writelines(f"q{query}\td{document}\t1\n" for query in range(8) for document in range(100, 140))
    data = DataConfig(str(folder), negatives_per_query=1)
    config = Config(
        data=data,
        model=ModelConfig(str(tiny_encoder)),
        training=TrainingConfig(precision="fp32"),
        refresh=RefreshConfig(refresh_every=5, refresh_negatives=4, refresh_relative_margin=0.001),
    )
    MiningRounds(config, [str(folder)], tmp_path / "negatives").run(2, later)
    mining, model = config.refresh.mining, ModelConfig(str(later))
    run_mining(mining, model, data, tmp_path / "by-hand", lambda line: None, precision="fp32", round=2)
    dataset = open_dataset(folder, ["train", "test"])
    by_hand, by_round = read_negatives(tmp_path / "by-hand", dataset), _table(tmp_path, 2, dataset)
    assert np.diff(by_round.offsets)[dataset.positives("train").queries].mean() > 2
    assert by_round.relevant == 0
    for name in ("offsets", "documents", "origins", "ranks", "scores", "rounds"):
        assert np.array_equal(getattr(by_hand, name), getattr(by_round, name)), name


@pytest.mark.slow
def test_a_round_on_a_gpu_is_that_of_a_cpu(
    rounds: Make, checkpoint: Path, dataset: RetrievalDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, simulated_gpu() as counts:
        for module in (mining_round, exact_top_k):  # torch alone completes a device without an index
            patch.setattr(module, "default_device", lambda: CUDA)
        assert rounds().run(2, checkpoint)["refresh_encoded"] == ALL
    rounds().run(1, checkpoint)
    expected, table = (_table(tmp_path, number, dataset) for number in (1, 2))
    assert np.array_equal(table.offsets, expected.offsets)
    assert (table.documents == expected.documents).mean() > 0.99  # the last bits of embeddings may differ
    assert any(line.startswith("to the host retrieval/encoding/") for line in counts.pinned), counts.table()


def _table(folder: Path, number: int, dataset: RetrievalDataset) -> NegativesTable:
    return read_negatives(round_path(folder / "negatives", number), dataset)


def test_the_memory_of_a_round_is_given_back_whether_it_ends_or_fails(
    rounds: Make, checkpoint: Path, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the garbage collection, which training pauses: no cycle and no traceback holds the encoder."""
    encoders = list[weakref.ref[Retriever]]()
    load = mining_round.load_for_encoding

    def remember(*arguments: object) -> Retriever:
        loaded = load(*arguments)  # type: ignore[arg-type]
        encoders.append(weakref.ref(loaded))
        return loaded

    monkeypatch.setattr(mining_round, "load_for_encoding", remember)
    local = ThreadClient(rounds().run, CPU, bool)
    gc.collect()
    gc.disable()
    try:
        local.submit(1, checkpoint)
        while local.poll() is None:
            time.sleep(0.01)
        monkeypatch.setattr(Retriever, "encode", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
        local.submit(2, later)
        while not local._job.done():
            time.sleep(0.01)
        with pytest.raises(JobError, match="no memory"):
            local.poll()
        assert len(encoders) == 2
        assert [encoder() for encoder in encoders] == [None] * len(encoders)
    finally:
        gc.enable()


def test_rows_of_other_origins_stay_where_they_have_a_fraction(
    rounds: Make, checkpoint: Path, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    columns = (
        np.array([0, 0, 1]),
        np.array([150, 151, 152]),
        np.array([ORIGINS.index(o) for o in ("bm25", "dense", "bm25")]),
    )
    first = NegativesTable.of(dataset, *columns, ranks=np.array([7, 7, 7]))
    rounds(first).run(1, checkpoint)
    table = read_negatives(round_path(tmp_path / "negatives", 1), dataset)
    bm25_documents = table.documents[table.origins == ORIGINS.index("bm25")].tolist()
    assert set(bm25_documents) <= {150, 152}
    assert (table.rounds[table.origins == ORIGINS.index("dense")] == 1).all()
    assert len(table) >= 4 * 96


def test_a_searcher_opens_its_documents_once(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, opened = np.eye(6, dtype=np.float32), []

    class Store:
        plan: ClassVar = SimpleNamespace(shard_rows=6)

        def __len__(self) -> int:
            return len(documents)

        def blocks(self, shards: list[int]) -> list[tuple[int, np.ndarray]]:
            return [(0, documents)]

    monkeypatch.setattr(actor_pool.EmbeddingStore, "open", lambda path: opened.append(path) or Store())
    actor, order = PoolActor.__new__(PoolActor), TieOrder.of(np.arange(6))
    actor._corpus = None
    for row in (4, 2):
        _, best = order.read(actor.search("store", [0], documents[[row]], 1, order))
        assert best.tolist() == [[row]]
    assert len(opened) == 1
