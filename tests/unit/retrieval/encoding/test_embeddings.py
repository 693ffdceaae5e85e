"""Stores of embeddings: writing, reading, damaged shards, shards that kill processes, and the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from encoding_case import Case, files

from raytriever.core.errors import ModelError, StorageError
from raytriever.core.store.cache import BOUNDS
from raytriever.core.store.commit import read_manifest
from raytriever.core.store.unfinished_pieces import Attempts
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.unanswerable_queries import with_questions
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.embed_corpus import embed_corpus, encode_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import (
    EmbeddingStore,
    file_of,
    read_embeddings,
    shard_path,
    stored_values,
)
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder, SideTexts, encode_in_process, tokenization_of
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter


def shard_file(store: EmbeddingStore, number: int) -> Path:
    return file_of(shard_path(store.path, store.plan.key, number), "embeddings")


# How far a stored row may be from the row of length one, and what it may cost in bytes.
@pytest.mark.parametrize(("dtype", "error", "bytes_a_row"), [("fp32", 0, 128), ("fp16", 5e-4, 64), ("int8", 6e-3, 36)])
def test_stored_embeddings_are_read_back(case: Case, dtype: str, error: float, bytes_a_row: int) -> None:
    encoded = case.encode(dtype=dtype)
    store = EmbeddingStore.open(encoded.path)
    assert store.plan == encoded.plan
    assert (len(store), store.dim) == (160, 32)
    expected = encode_texts(case.retriever, case.dataset.passages(), "passage")
    # Batches differ, so the last bits may.
    np.testing.assert_allclose(store.array(), expected, atol=error + 2e-6)
    assert [(first, len(part)) for first, part in store.blocks()] == [(0, 48), (48, 48), (96, 48), (144, 16)]
    rows = np.array([159, 3, 3, 47, 48])
    assert (store.read(rows) == store.array()[rows]).all()
    is_value = (".embeddings.npy", ".scales.npy")
    entries = read_manifest(store.path)["files"].items()
    stored_bytes = sum(entry["size"] for name, entry in entries if name.endswith(is_value))
    assert stored_bytes - 8 * 128 <= 160 * bytes_a_row <= stored_bytes
    with pytest.raises(IndexError):
        store.read(np.array([160]))
    file = shard_file(store, 2)
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match=r"000002\.embeddings\.npy: has changed"):
        EmbeddingStore.open(store.path)


def test_only_missing_or_damaged_shards_are_encoded_again(case: Case) -> None:
    whole = case.encode()
    before = files(whole.path)
    stamps = {number: shard_file(whole, number).stat().st_mtime_ns for number in range(4)}
    damaged = shard_file(whole, 1)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    writer = StoreWriter(whole.path, case.plan)
    writer.begin()
    assert writer.missing() == [1]
    (whole.path / "manifest.json").unlink()
    # What a process leaves that dies before it renames a file, and before it writes the report of a shard.
    (writer.work / "0a1b.npy").write_bytes(b"half")
    (writer.work / "000003.json").unlink()
    with pytest.raises(StorageError, match="never completed"):
        EmbeddingStore.open(whole.path)
    writer.begin()
    assert writer.missing() == [1, 3]
    case.encode()
    assert files(whole.path) == before
    assert {n for n, stamp in stamps.items() if shard_file(whole, n).stat().st_mtime_ns == stamp} == {0, 2}


def test_few_embeddings_of_the_cache_are_not_waited_for(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: waits.append(Path(f"/proc/self/fd/{file}").readlink().name))
    case.embed()
    assert not [name for name in waits if ".npy" in name or "manifest" in name]
    case.encode()
    assert len([name for name in waits if ".npy" in name]) == 8  # embeddings and keys of four shards


def test_a_directory_with_other_content_is_not_changed(case: Case) -> None:
    before = files(case.encode().path)
    with pytest.raises(StorageError, match="is not empty, and has no embeddings of"):
        case.encode(length=9)
    assert files(case.folder / "store") == before


def test_queries_in_memory_are_encoded_in_this_process(case: Case) -> None:
    """An actor opens the data set on disk, which lacks them."""
    more = with_questions(case.dataset, "test", ["who painted it"], "hard")

    def in_actors(encoder: ShardEncoder, numbers: Sequence[int], on_progress: Callable[[int], None]) -> None:
        encoder.__dict__.pop("side_texts")  # a process opens the texts itself
        encode_in_process(encoder, numbers, on_progress)

    stores = []
    for item, side in ((case.dataset, "query"), (more, "query"), (more, "passage")):
        plan = plan_embeddings(case.config, case.retriever, item, side, "fp32")
        writer = StoreWriter(case.folder / f"{side}-{plan.rows}", plan)
        stores.append(encode_store(writer, case.config, case.retriever, item, in_actors))
    assert list(map(len, stores)) == [160, 161, 160]
    np.testing.assert_allclose(stores[1].array()[:160], stores[0].array(), atol=2e-6)


def test_another_number_of_tokens_per_batch_is_another_store(case: Case) -> None:
    one, other = (case.encode(str(tokens), batch_tokens=tokens) for tokens in (64, 4_096))
    assert one.plan.key != other.plan.key
    # Matrices of another size may be multiplied in another order, which decides the last bits.
    np.testing.assert_allclose(one.array(), other.array(), atol=2e-6)


def test_prepared_tokens_give_the_embeddings_of_the_texts(
    case: Case, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = open_dataset(tiny_dataset, [], tokenization=tokenization_of(case.retriever))
    assert prepared.tokens is not None
    for side in ("passage", "query"):
        actual, expected = (
            SideTexts(item, side).read(case.retriever, range(5, 90))[0] for item in (prepared, case.dataset)
        )
        assert [ids.tolist() for ids in actual] == [ids.tolist() for ids in expected]
    monkeypatch.setattr(Retriever, "contents", None)  # so that nothing could be tokenized
    embed_corpus(case.config, case.retriever, prepared)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ({"*/000000.keys.npy": "{"}, "encoding its damaged shards again\n"),
        ({"*/000000.keys.npy": None}, "encoding its damaged shards again\n"),
        ({"manifest.json": None}, "encoding again\n"),
        ({"manifest.json": '{"format": 1, "files": {}, "meta": {"key": 7}}'}, "encoding again\n"),
    ],
)
def test_a_damaged_entry_of_the_cache_is_encoded_again(
    case: Case, capsys: pytest.CaptureFixture[str], damaged: dict[str, str | None], message: str
) -> None:
    first = case.embed()
    embeddings = first.array()
    for name, content in damaged.items():
        [file] = first.path.glob(name)
        file.unlink()
        if content is not None:
            file.write_text(content)
    assert (case.embed().array() == embeddings).all()
    assert f"{first.path}: is damaged or changed; {message}" in capsys.readouterr().err


def test_the_cache_keeps_the_most_recently_used_stores(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    first = case.embed()
    with monkeypatch.context() as patch:
        patch.setattr(Retriever, "encode", None)  # so that nothing could be encoded
        assert (case.embed().array() == first.array()).all()
    del first  # it would be in use
    monkeypatch.setitem(BOUNDS, "embeddings", 1)
    shorter = replace(case.config, passage_length=9)
    second = embed_corpus(shorter, load_retriever(shorter), case.dataset)
    assert list((case.folder / "cache" / "embeddings").iterdir()) == [second.path]


def test_an_embedding_that_is_not_finite_ends_in_one_line_without_a_store(case: Case) -> None:
    with torch.no_grad():
        next(case.retriever.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match=f"not finite, the first of text {case.dataset.passage_text(0)!r}") as caught:
        case.encode()
    assert "\n" not in str(caught.value)
    assert not (case.folder / "store" / "manifest.json").exists()
    assert not list((case.folder / "store").rglob("*.begun"))  # no process died


def test_fp16_refuses_components_beyond_its_range(tmp_path: Path) -> None:
    rows = np.array([[1e5, 1], [0, 0]], np.float32)
    with pytest.raises(ModelError, match="too large for fp16"):
        stored_values(rows, "fp16")
    for kind, values in stored_values(rows, "int8").items():
        np.save(file_of(tmp_path / "0", kind), values)
    np.testing.assert_allclose(read_embeddings(tmp_path / "0", rows.shape), rows, atol=1e5 / 254)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((47, 32), np.float32), "has the shape 47 x 32, expected 48 x 32"),
        (np.zeros((48, 32), np.int8), r"scales\.npy: is missing"),
    ],
)
def test_a_shard_of_another_shape_ends_in_one_line(case: Case, values: np.ndarray, message: str) -> None:
    store = EmbeddingStore.open(case.encode().path)
    np.save(shard_file(store, 0), values)
    with pytest.raises(StorageError, match=message):
        store.array()


def begun(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def interrupt(folder: Path) -> None:
    with Attempts(folder) as attempts:
        assert attempts.begin("7") == 1
        raise KeyboardInterrupt


def test_deaths_are_counted_and_errors_are_none(tmp_path: Path) -> None:
    for deaths in range(3):
        assert Attempts(tmp_path).begin("7") == deaths  # and dies
    attempts = Attempts(tmp_path)
    assert attempts.begin("7") == 3
    attempts.end("7")
    assert attempts.begin("7") == 0
    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path)
    assert begun(tmp_path) == []
    (tmp_path / "7.begun").write_text("")  # a disk that was full
    assert Attempts(tmp_path).begin("7") == 0


def test_a_shard_over_which_three_processes_died_is_named(case: Case) -> None:
    writer = StoreWriter(case.folder / "store", case.plan)
    writer.begin()
    work = writer.work
    (work / "1.begun").write_text("3")
    encoder = ShardEncoder(writer, lambda: case.retriever, str(case.dataset.location))
    words = (
        r"letters \(passage\), rows 49 to 96: 3 processes died while they loaded the model or encoded these texts; "
        r"free memory, lower batch_tokens, or remove the text that causes the failure; then run the same command again$"
    )
    with pytest.raises(ModelError, match=words):
        list(encoder.encode([1]))
    assert begun(work) == ["plan.json"]
    assert len(case.encode()) == 160  # tries again
    assert not work.exists()
