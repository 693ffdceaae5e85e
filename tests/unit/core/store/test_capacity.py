"""Checks of disk and memory: estimates against the bytes that are written, and the lines of refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from beir import write_beir
from encoding_case import write_store

from indexes import write_index
from raytriever.core.errors import StorageError
from raytriever.core.store import capacity
from raytriever.core.store.capacity import check_disk, check_memory
from raytriever.core.store.disk import files_below
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import ROW_BYTES, NegativesTable, write_negatives
from raytriever.data.prepare import prepare_dataset
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.experiments.run.whole_run import bytes_of_run
from raytriever.models.checkpoint_model import Slice
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.retrieval.index.approximate.build_index import build_index
from raytriever.retrieval.index.approximate.index_settings import INDEXES, IndexConfig
from raytriever.retrieval.index.approximate.stored_index import ANN_INDEX
from raytriever.retrieval.search.approximate_search import bytes_of_ann_index
from raytriever.training.checkpoint import write_slices
from raytriever.training.run_config import Config
from raytriever.training.training_settings import TrainingConfig

DOCUMENTS = 2_000


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in files_below(folder))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of passages of 60 words and as many queries."""
    rng = np.random.default_rng(3)
    words = np.array(["".join(rng.choice(list("abcdefghij"), 5)) for _ in range(2_000)])
    documents, queries = ([" ".join(rng.choice(words, size)) for _ in range(DOCUMENTS)] for size in (60, 8))
    judged = [(row, row) for row in range(DOCUMENTS)]
    return write_beir(tmp_path_factory.mktemp("data") / "texts", documents, queries, train=judged)


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_preparation_writes_at_most_what_is_estimated(
    has_tokens: bool, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []
    most: list[int] = []
    assemble = prepare_dataset.assemble

    def watched(aside, reports):  # type: ignore[no-untyped-def]
        sides = assemble(aside, reports)
        most.append(size_of(aside))  # the temporary files are still there
        return sides

    monkeypatch.setattr(prepare_dataset, "assemble", watched)
    monkeypatch.setattr(prepare_dataset, "check_disk", lambda path, bytes_, content: needed.append(bytes_))
    tokenization: Tokenization | None = None
    if has_tokens:
        tokenization = tokenization_of(load_retriever(ModelConfig("minilm")))
    open_dataset(texts, ["train"], tokenization=tokenization)
    assert needed[0] / 2 < most[0] <= needed[0]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
def test_embeddings_have_the_estimated_size(dtype: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(DOCUMENTS, 64)).astype(np.float32)
    store = write_store(tmp_path / "store", values, 1_024, dtype)
    assert size_of(tmp_path / "store") == pytest.approx(store.plan.bytes, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in INDEXES if kind != "vamana"])
def test_indexes_have_the_estimated_size(kind: str, tmp_path: Path) -> None:
    rows = 600 if kind == "roargraph" else DOCUMENTS  # which takes longest to build
    values = np.random.default_rng(0).normal(size=(rows, 32)).astype(np.float32)
    config = IndexConfig(index=kind, m=16)
    index = build_index(values, config, values[:500] if kind == "roargraph" else None, 0, 1)
    write_index(tmp_path / "index", index, kind, {})
    needed = bytes_of_ann_index(config, rows, 32)
    assert size_of(tmp_path / "index" / ANN_INDEX) == pytest.approx(needed, rel=0.3, abs=60_000)
    assert size_of(tmp_path / "index") == pytest.approx(needed + rows * (4 * 32 + 8), rel=0.2, abs=60_000)


@pytest.mark.usefixtures("own_cache")
def test_negatives_have_at_most_the_estimated_size(texts: Path, tmp_path: Path) -> None:
    dataset: RetrievalDataset = open_dataset(texts, ["train"])
    rng, of_query = np.random.default_rng(0), 20
    rows = DOCUMENTS * of_query
    table = NegativesTable(
        offsets=np.arange(0, rows + 1, of_query),
        documents=rng.integers(0, DOCUMENTS, rows),
        origins=np.ones(rows, np.int8),
        ranks=np.tile(np.arange(of_query, dtype=np.int32), DOCUMENTS),
        scores=rng.random(rows).astype(np.float32),
        rounds=np.zeros(rows, np.int32),
    )
    write_negatives(tmp_path / "table", table, dataset)
    assert rows * ROW_BYTES / 3 < size_of(tmp_path / "table") < rows * ROW_BYTES


def test_a_run_counts_its_model_and_its_checkpoints(tiny_encoder: Path, tmp_path: Path) -> None:
    model = ModelConfig(str(tiny_encoder))
    retriever = load_retriever(model)
    slices = [
        Slice(name + kind, values.detach().flatten().clone(), 0, tuple(values.shape))
        for name, values in retriever.query.named_parameters()
        for kind in ("", ":exp_avg", ":exp_avg_sq")
    ]
    write_slices(slices, tmp_path, 0, 1)
    weights = 4 * sum(parameter.numel() for parameter in retriever.parameters())
    needed = [bytes_of_run(Config(model=model, training=TrainingConfig(keep=keep)), weights) for keep in (1, 2)]
    assert needed[1] - needed[0] == pytest.approx(size_of(tmp_path), rel=0.2)
    assert needed[0] == pytest.approx(3 * size_of(tmp_path) + size_of(tmp_path) / 3, rel=0.2)


def test_a_disk_that_is_too_small_is_named_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_space", lambda folder: 2_500_000 if folder == tmp_path else 10**12)
    check_disk(tmp_path / "a" / "b", 2_500_000, "the embeddings")
    with pytest.raises(StorageError) as error:
        check_disk(tmp_path / "a" / "b", 3_400_000_000, "the embeddings")
    assert str(error.value) == (
        f"{tmp_path}/a/b: the embeddings need 3.4 GB, but only 2.5 MB is free; free some space or write to another disk"
    )
    assert not any(tmp_path.iterdir())


def test_a_cache_that_is_too_small_is_pruned_or_moved(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_space", lambda folder: 10)
    with pytest.raises(StorageError, match=r"raytriever cache prune.*RAYTRIEVER_CACHE"):
        check_disk(own_cache / "embeddings" / "e", 11, "the embeddings")


def test_a_memory_that_is_too_small_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_system_memory", lambda: 10**9)
    check_memory(10**9, "the structures of the index", "use --index ivfpq")
    with pytest.raises(StorageError) as error:
        check_memory(10**9 + 1, "the structures of the index", "use --index ivfpq")
    assert str(error.value) == (
        "the memory: the structures of the index need 1.0 GB, but only 1.0 GB is free; "
        "end other programs, or use --index ivfpq"
    )
