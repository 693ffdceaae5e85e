"""Actors of a real Ray session prepare data, encode and search as one process does, and what they do where one dies."""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from beir import write_beir
from deadly_encoder import LoadDeadly
from encoding_case import Case, files, write_store
from prepared import prepare
from processes import processes, wait_for

from raytriever.cluster import actor_pool
from raytriever.cluster.actor_pool import ActorPool
from raytriever.cluster.ingest import run_in_ray_tasks
from raytriever.core.errors import ConfigError, DataError, ModelError
from raytriever.core.store.commit import read_manifest
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import Request, in_this_process
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.embed_corpus import encode_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder, encode_in_process
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter
from raytriever.retrieval.search.exact_search import search_store

pytestmark = pytest.mark.slow
DOCUMENTS, SKULL = 96, 41
POOL = ActorPool(1, 2)


@pytest.fixture
def case(tiny_encoder: Path, tmp_path: Path, own_cache: Path) -> Case:
    """A corpus in shards of 16, with one text that has a `%`."""
    texts = ["a" * (n % 50 + 1) + "%" * (n == SKULL) for n in range(DOCUMENTS)]
    dataset = open_dataset(write_beir(tmp_path / "numbers", texts, ["a"]), [])
    config = ModelConfig(str(tiny_encoder))
    return Case(config, load_for_encoding(config, "fp32"), dataset, tmp_path, shard_rows=16, batch_tokens=100)


def deadly(case: Case) -> ShardEncoder:
    """Return the encoder of a store, which is killed by a `%`."""
    writer = StoreWriter(case.folder / "store", case.plan)
    writer.begin()
    load = LoadDeadly(case.config.model, "%", case.folder / "store.deaths")
    return ShardEncoder(writer, load, str(case.dataset.location))


def test_actors_write_what_one_process_writes(session: None, case: Case) -> None:
    stores = []
    for name, run in {"alone": encode_in_process, "actors": POOL.encode}.items():
        writer = StoreWriter(case.folder / name, case.plan)
        stores.append(files(encode_store(writer, case.config, case.retriever, case.dataset, run).path))
    assert stores[0] == stores[1]
    assert len(list(case.folder.glob("actors/*/*.embeddings.npy"))) == 6


def test_actors_copy_what_earlier_stores_have_and_encode_the_rest(session: None, case: Case) -> None:
    first = StoreWriter(case.folder / "cache" / "embeddings" / "first", case.plan)
    embeddings = encode_store(first, case.config, case.retriever, case.dataset).array()
    texts = [*case.dataset.passages()]
    rows = ["ab", *texts[:40], "abc", *texts[40:]]
    dataset = open_dataset(write_beir(case.folder / "numbers", rows, ["a"]), [])
    plan = plan_embeddings(case.config, case.retriever, dataset, "passage", "fp32")
    writer = StoreWriter(case.folder / "second", replace(plan, shard_rows=16, batch_tokens=100))
    encoded: list[int] = []

    def run(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        POOL.encode(encoder, missing, encoded.append)

    second = encode_store(writer, case.config, case.retriever, dataset, run).array()
    assert sorted(encoded) == [1, 1]
    copied = [row for row in range(len(rows)) if row not in (0, 41)]
    # Equal texts have one embedding, that of the first.
    assert second[copied].tobytes() == embeddings[[texts.index(text) for text in texts]].tobytes()
    assert (abs(second[[0, 41]]).sum(1) > 0).all()


def test_a_shard_that_kills_three_actors_is_named(session: None, case: Case) -> None:
    encoder = deadly(case)
    with pytest.raises(ModelError, match=r"numbers \(passage\), rows 33 to 48: 3 processes died while they loaded"):
        POOL.encode(encoder, encoder.writer.missing(), lambda rows: None)
    assert (case.folder / "store.deaths").read_text().count("died") == 3
    assert not list(encoder.writer.work.glob("*.begun"))  # the next command tries again


def test_a_user_error_in_an_actor_is_one_line(session: None, case: Case, tmp_path: Path) -> None:
    encoder = deadly(case)
    broken = replace(encoder, load=replace(encoder.load, model=str(tmp_path / "none")))
    with pytest.raises(ModelError, match="no such directory") as caught:
        POOL.encode(broken, encoder.writer.missing(), lambda rows: None)
    assert "\n" not in str(caught.value)


ROWS = 6_000


@pytest.fixture
def folder(tmp_path: Path, own_cache: Path) -> Path:
    """Documents of half a kilobyte, so that there are several chunks."""
    texts, queries = [f"{n} " + "word " * 100 for n in range(ROWS)], [str(n) for n in range(9)]
    folder = write_beir(tmp_path / "numbers", texts, queries, train=[(n, ROWS - 1 - n) for n in range(9)])
    corpus = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    corpus.unlink()
    return folder


@pytest.fixture(scope="module")
def words() -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "word": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


def test_ray_writes_what_one_process_writes(session: None, folder: Path, words: str, tmp_path: Path) -> None:
    request = Request(str(folder), Tokenization(words))
    places = [prepare(request, run, tmp_path / run.__name__) for run in (in_this_process, run_in_ray_tasks)]
    alone, ray = ({name: file["sha256"] for name, file in read_manifest(path)["files"].items()} for path in places)
    assert alone == ray
    assert sum(name.endswith(".arrow") for name in ray) > 3


def test_rows_that_kill_three_tasks_are_named(session: None, folder: Path, words: str) -> None:
    from deadly import SKULL, Deadly

    with gzip.open(folder / "corpus.jsonl.gz", "at") as stream:
        stream.write(json.dumps({"_id": "skull", "text": SKULL}) + "\n" + json.dumps({"_id": "z", "text": "z"}) + "\n")
    with pytest.raises(DataError, match=rf"corpus\.jsonl\.gz, rows [\d,]+ to {ROWS + 2:,}: 3 processes died while"):
        open_dataset(folder, ["train"], tokenization=Deadly(words), run=run_in_ray_tasks)


def test_a_broken_file_is_a_user_error_and_leaves_no_file(session: None, folder: Path, tmp_path: Path) -> None:
    file = folder / "corpus.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz: the gzip file is broken after row \d+") as caught:
        prepare(Request(str(folder)), run_in_ray_tasks)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cache/datasets/*"))


STORED, DIM = 6_000, 16


@pytest.fixture
def store(tmp_path: Path) -> EmbeddingStore:
    """Three shards of embeddings with many ties."""
    embeddings = np.random.default_rng(0).integers(-2, 3, (STORED, DIM)).astype(np.float32)
    return write_store(tmp_path / "store", embeddings, 2_000)


def questions(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-2, 3, (count, DIM)).astype(np.float32)


@pytest.mark.parametrize(("actors", "k"), [(1, 10), (2, 10), (5, 5_000)])
def test_results_equal_the_local_search_byte_by_byte(
    session: None, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch, actors: int, k: int
) -> None:
    monkeypatch.setattr(actor_pool, "RESULT_BYTES", 8 * k * 30)  # four batches of queries
    rng = np.random.default_rng(2)
    ties = rng.permutation(STORED)
    actual = ActorPool(actors, actors).search(store, questions(100), k, ties)
    expected = search_store(store, questions(100), k, ties)
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]


def searchers() -> list[int]:
    return processes("ray::PoolActor", lambda pid: Path(f"/proc/{pid}").stat().st_uid == os.getuid())


def test_an_actor_killed_in_the_middle_changes_no_byte(
    session: None, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_pool, "RESULT_BYTES", 8 * 50 * 2)  # batches of two queries
    expected = search_store(store, questions(300), 50, np.arange(STORED))
    answered, killed = threading.Event(), []
    following = actor_pool._next

    def next_result(waiting: dict[object, slice]) -> tuple[slice, np.ndarray]:
        actual = following(waiting)
        answered.set()
        return actual

    def kill_one() -> None:
        answered.wait()
        killed.append(searchers()[0])
        os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(actor_pool, "_next", next_result)
    thread = threading.Thread(target=kill_one)
    thread.start()
    actual = ActorPool(2, 2).search(store, questions(300), 50, np.arange(STORED))
    thread.join()
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]
    wait_for(lambda: not searchers())


def test_an_actor_that_always_dies_is_a_user_error(
    session: None, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def kill_all() -> None:
        while not ended.wait(0.05):
            for process in searchers():
                os.kill(process, signal.SIGKILL)

    thread = threading.Thread(target=kill_all)
    thread.start()
    try:
        with pytest.raises(ConfigError, match="a search actor died 4 times; shards or queries") as caught:
            ActorPool(1, 1).search(store, questions(3), 50, np.arange(STORED))
    finally:
        ended.set()
        thread.join()
    assert "\n" not in str(caught.value)


def test_a_user_error_in_an_actor_that_searches_is_one_line(session: None, store: EmbeddingStore) -> None:
    queries = questions(3)
    queries[1, 2] = np.nan
    with pytest.raises(ModelError, match="query 1 is not finite") as caught:
        ActorPool(2, 2).search(store, queries, 5, np.arange(STORED))
    assert "\n" not in str(caught.value)


def test_more_actors_than_fit_are_refused_at_once(session: None, store: EmbeddingStore) -> None:
    with pytest.raises(ConfigError, match=r"99 search actors with 2 CPUs each do not fit on this host; use at most 2"):
        ActorPool(99, 99, cpus=2).search(store, questions(3), 5, np.arange(STORED))
