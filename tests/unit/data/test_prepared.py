"""A prepared data set that somebody else made is not trusted for correct digests; figures of a data set."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from beir import HEADER, write_beir
from prepared import prepare

from raytriever.core.errors import ConfigError, DataError, StorageError
from raytriever.core.reading.arrays import read_arrow
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset_statistics import describe
from raytriever.data.file_digests import check_directory
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_all_splits, open_dataset
from raytriever.data.prepare.prepare_dataset import Request
from raytriever.data.split_overlap import Overlap, check_overlap, overlaps
from raytriever.training.run_config import Config, check_config


@pytest.fixture(scope="module")
def whole(words_json: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents and queries, and a query without an answer, prepared and tokenized."""
    folder = tmp_path_factory.mktemp("whole")
    queries = [f"query {n}" for n in range(40)]
    source = write_beir(folder / "small", [f"text {n}" for n in range(40)], queries, train=[(n, n) for n in range(30)])
    (source / "qrels" / "test.tsv").write_text(HEADER + "q30\td30\t1\n")
    (source / "unanswerable").mkdir()
    (source / "unanswerable" / "train.tsv").write_text("query-id\nq39\n")
    return prepare(Request(str(source), Tokenization(words_json)), output=folder / "prepared")


@pytest.fixture
def prepared(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "prepared"))


def seal(folder: Path) -> None:
    """Give a changed directory a manifest with right sizes and digests."""
    meta = json.loads((folder / "manifest.json").read_bytes())["meta"]
    moved = folder.with_name("changed")
    folder.rename(moved)
    (moved / "manifest.json").unlink()
    with committed_directory(folder, meta) as aside:
        for file in sorted(moved.rglob("*")):
            target = aside / file.relative_to(moved)
            target.mkdir() if file.is_dir() else target.write_bytes(file.read_bytes())


def rewrite(file: Path, columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)


def shard(path: Path, side: str, end: str) -> Path:
    [file] = (path / side).glob(f"*.{end}")
    return file


def save(file: Path, change: Callable[[np.ndarray], Any]) -> None:
    np.save(file, change(np.load(file)), allow_pickle=True)


def put(row: int, column: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(table: np.ndarray) -> np.ndarray:
        table[row, column] = value
        return table

    return change


JUDGED = "judgements/train.npy"
CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a position of a query": (lambda p: save(p / JUDGED, put(0, -1, 40)), "the position of a query is 40, expected 0"),
    "a source": (lambda p: save(p / JUDGED, put(3, 0, 7)), "a source is 7, expected 0 to 1"),
    "a label": (lambda p: save_labels(p, 30, 1.5), "labels/train.npy: a label is not between 0 and 1"),
    "the number of labels": (lambda p: save_labels(p, 29, 0.5), "labels/train.npy: has the shape 29, expected 30"),
    "a rank": (lambda p: save(p / JUDGED, put(4, 0, -3)), "a rank is -3"),
    "an order": (lambda p: save(p / JUDGED, lambda table: table[:, ::-1].copy()), "the pairs do not ascend"),
    "a pair twice": (lambda p: save(p / JUDGED, lambda t: t[:, [0, 0, 1]].copy()), "the pairs do not ascend"),
    "a last offset": (
        lambda p: save(shard(p, "documents", "offsets.npy"), lambda o: o + (np.arange(41) == 40)),
        "begins at 0 and ends at [0-9]+, expected 0 and the number of tokens",
    ),
    "the number of offsets": (
        lambda p: save(shard(p, "queries", "offsets.npy"), lambda o: o[:-1]),
        "has the shape 40, expected 41",
    ),
    "signed tokens": (
        lambda p: save(shard(p, "queries", "tokens.npy"), lambda ids: ids.astype(np.int64)),
        "holds values of type '<i8', expected uint16 or uint32",
    ),
    "rows beyond the end": (
        lambda p: np.save(p / "documents.live.npy", np.arange(41)),
        "documents.live.npy: a row is 40, expected 0 to 39",
    ),
    "rows that do not ascend": (
        lambda p: np.save(p / "queries.live.npy", np.array([3, 3])),
        "queries.live.npy: the rows do not ascend",
    ),
    "origins": (lambda p: save_negatives(p, 5, 1), "negatives.npy: an origin is 5, expected 0 to 4"),
    "the number of scores": (lambda p: save_negatives(p, 4, 2), "negatives.scores.npy: has the shape 2, expected 1"),
    "answers of no query": (
        lambda p: rewrite(p / "answers.arrow", {"query": [0, 44], "text": ["a", "b"]}),
        "answers.arrow: the position of a query is 44, expected 0 to 39",
    ),
    "answers that do not ascend": (
        lambda p: rewrite(p / "answers.arrow", {"query": [2, 0], "text": ["a", "b"]}),
        "answers.arrow: the queries do not ascend",
    ),
    "absent documents of no query": (
        lambda p: rewrite_absent(p, [50], [1]),
        "absent/train.arrow: the position of a query is 50, expected 0 to 39",
    ),
    "absent documents without a grade": (lambda p: rewrite_absent(p, [5], [0]), "a grade"),
    "unanswerable of no query": (
        lambda p: np.save(p / "unanswerable" / "train.npy", np.array([40])),
        "unanswerable/train.npy: the position of a query is 40",
    ),
    "unanswerable twice": (lambda p: np.save(p / "unanswerable" / "train.npy", np.array([3, 3])), "do not ascend"),
}


def save_negatives(path: Path, origin: int, scores: int) -> None:
    np.save(path / "negatives.npy", np.array([[0], [1], [origin], [0]]))
    np.save(path / "negatives.scores.npy", np.zeros(scores, np.float32))


def save_labels(path: Path, count: int, label: float) -> None:
    (path / "labels").mkdir()
    np.save(path / "labels" / "train.npy", np.full(count, label, np.float32))


def rewrite_absent(path: Path, queries: list[int], scores: list[int]) -> None:
    (path / "absent").mkdir()
    documents = pa.array(["d"] * len(queries), pa.large_string())
    rewrite(path / "absent" / "train.arrow", {"query": queries, "document": documents, "score": scores})


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_contradict_each_other_are_one_line(prepared: Path, name: str) -> None:
    change, says = CHANGES[name]
    change(prepared)
    seal(prepared)
    with pytest.raises(StorageError, match=rf"^{prepared}/.*{says}.*; prepare the data set again from its source$"):
        open_dataset(prepared, ["train"])


def test_tokens_that_the_tokenizer_does_not_have_are_one_line(prepared: Path, words: Tokenization) -> None:
    save(
        shard(prepared, "documents", "tokens.npy"), lambda ids: np.where(np.arange(len(ids)) == 7, 4, ids).astype("<u2")
    )
    seal(prepared)
    assert len(open_dataset(prepared, ["train"]).documents) == 40
    with pytest.raises(StorageError, match=r"tokens\.npy: a token is 4, expected 0 to 3; prepare the data set again"):
        open_dataset(prepared, ["train"], tokenization=words)


def test_contents_are_validated_once_and_again_when_a_file_has_changed(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def spied(file: Path, columns: Any, remedy: str, full: bool = False) -> Any:
        seen.append(full)
        return read_arrow(file, columns, remedy, full)

    monkeypatch.setattr("raytriever.data.prepare.prepared.read_arrow", spied)
    open_dataset(prepared, ["train"])
    assert seen == [True, True, False, False]
    open_dataset(prepared, ["train"])
    assert seen[4:] == [False, False]
    os.utime(shard(prepared, "queries", "arrow"), ns=(1, 1))
    open_dataset(prepared, ["train"])
    assert seen[6:] == [True, True, False, False]


def test_a_file_that_the_manifest_does_not_name_is_not_read(prepared: Path) -> None:
    (prepared / "documents" / "00000-000009.arrow").write_bytes(b"no Arrow")
    (prepared / "judgements" / "dev.npy").write_bytes(b"no array")
    assert len(open_dataset(prepared, ["train"]).documents) == 40
    with pytest.raises(DataError, match="no split 'other'; there are: test, train"):
        open_dataset(prepared, ["other"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"files": {}}, "'files' is an object, expected a list"),
        ({"sides": {"documents": {}}}, "'sides.queries' is missing"),
        ({"tokenisation": 7}, "'tokenisation' is 7, expected a text or null"),
        ({"name": None}, "'name' is null, expected a text"),
    ],
)
def test_a_manifest_of_another_form_is_one_line(prepared: Path, change: dict[str, Any], says: str) -> None:
    content = json.loads((prepared / "manifest.json").read_bytes())
    content["meta"] |= change
    (prepared / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(
        StorageError, match=rf"manifest\.json: is damaged or changed: {says}; prepare the data set again"
    ):
        open_dataset(prepared, ["train"])


def test_an_entry_of_the_cache_without_its_manifest_is_made_again(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = prepare(Request(str(small)))
    for content in (None, "", '{"format": 1, "files": {}, "meta": {"kind": "dataset"}}'):
        if content is None:
            (path / "manifest.json").unlink()
        else:
            (path / "manifest.json").write_text(content)
        assert prepare(Request(str(small))) == path
        line = capsys.readouterr().err
        assert str(path) in line
        assert line.endswith("; making it again\n")
        assert len(open_dataset(small, ["train"]).documents) == 40


def test_a_comparison_is_remembered_without_a_wait_for_the_disk(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with committed_directory(tmp_path / "data") as aside:
        (aside / "values").write_bytes(b"right")
    (tmp_path / "cache" / "digests").mkdir(parents=True)  # folders that are made are synced, once
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    file = tmp_path / "data" / "values"
    check_directory(tmp_path / "data")
    assert waits == []

    # The same size and time, so the file is not read again.
    status = file.stat()
    file.write_bytes(b"wrong")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    check_directory(tmp_path / "data")

    # A memo that a crash of the machine has emptied is a comparison that is not remembered.
    [memo] = (tmp_path / "cache" / "digests").iterdir()
    memo.write_bytes(b"")
    with pytest.raises(StorageError, match="changed: its SHA-256"):
        check_directory(tmp_path / "data")


def test_figures_match_the_data_set(small: Path, words: Tokenization, tmp_path: Path) -> None:
    with (small / "qrels" / "test.tsv").open("a") as stream:
        stream.write("q38\td0\t2\nq39\td0\t0\nq0\td1\t0\n")
    with (small / "corpus.jsonl").open("a") as stream:
        stream.write('{"_id": "long", "text": "' + "text " * 94 + '"}\n')
    path = prepare(Request(str(small), words), output=tmp_path / "own")
    sides = read_manifest(path)["meta"]["sides"]
    lines = describe(open_all_splits(path), sides, {"documents": 8, "queries": 3}, around=2)
    assert lines["documents"] == "41"
    assert lines["train: queries"] == "30"
    assert lines["train: positives a query"] == "1.00 (1 to 1)"
    assert lines["test: queries"] == "11"
    assert lines["test: judgements a query"] == "1.18 (1 to 2)"
    assert lines["test: positives a query"] == "1.10 (1 to 2)"
    assert lines["test: queries without a positive"] == "1"
    # "title n text n of many" is six tokens, and two around.
    assert lines["documents: tokens, 50 % / 90 % / 99 % / most"] == "8 / 8 / 61 / 96"
    assert lines["documents: cut at 8 tokens"] == "2.4%"
    assert lines["queries: cut at 3 tokens"] == "100.0%"
    assert lines["bad rows left out"] == "0"


def test_texts_are_compared_without_case_and_white_space(tmp_path: Path) -> None:
    splits = {"train": ["What is  RAY?", "b"], "test": ["what is ray?", " what\tis ray? ", "c", "d"], "dev": ["x"]}
    texts = [text for split in splits.values() for text in split]
    judged = {split: [(texts.index(text), 0) for text in item] for split, item in splits.items()}
    dataset = open_dataset(write_beir(tmp_path / "set", ["t"], texts, **judged), list(splits))
    test, dev = overlaps([(dataset, "train")], [(dataset, "test"), (dataset, "dev")])
    assert (test.shared, test.queries, test.fraction) == (2, 4, 0.5)
    assert (dev.shared, dev.queries) == (0, 1)
    assert str(test).startswith("2 of 4 queries of split 'test' (50.0%) are training queries too")


def test_a_share_is_refused_unless_it_is_allowed() -> None:
    check_overlap(Overlap("set", "test", 5, 100), allowed=False)
    with pytest.raises(DataError, match=r"set: 6 of 100 queries of split 'test' \(6.0%\).*more than 5%; leave these"):
        check_overlap(Overlap("set", "test", 6, 100), allowed=False)
    check_overlap(Overlap("set", "test", 100, 100), allowed=True)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"train_split": "test"}, "train_split: the split 'test' is also the value of test_split"),
        ({"dev_split": "train"}, "train_split: the split 'train' is also the value of dev_split"),
        ({"test_split": "dev"}, "dev_split: the split 'dev' is also the value of test_split"),
    ],
)
def test_a_split_that_is_trained_on_is_not_measured(data: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        check_config(Config(data=DataConfig(**data)))
    check_config(Config(data=DataConfig(**data, allow_split_overlap=True)))  # type: ignore[arg-type]
