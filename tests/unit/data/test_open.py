from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from beir import write_beir

from raytriever.core.errors import DataError
from raytriever.data.prepare.open_dataset import open_all_splits, open_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """200 documents, 200 queries, each with its own document and, judged 0, the next."""
    splits = {
        split: [pair for n in numbers for pair in ((n, n), (n, (n + 1) % 200, 0))]
        for split, numbers in (("train", range(150)), ("test", range(150, 200)))
    }
    documents = [{"title": f"T{n}", "text": f"text {n}"} for n in range(200)]
    return write_beir(tmp_path / "tiny", documents, [f"query {n}" for n in range(200)], **splits)


def edit(file: Path, change: Callable[[list[bytes]], None]) -> None:
    lines = file.read_bytes().split(b"\n")[:-1]
    change(lines)
    file.write_bytes(b"".join(line + b"\n" for line in lines))


def spare(lines: list[bytes], file: str, *names: bytes) -> None:
    if not file.startswith("qrels"):
        lines[:] = [line for line in lines if not set(line.split(b"\t")) & set(names)]


def test_a_folder_is_opened(folder: Path) -> None:
    dataset = open_dataset(folder, ["train", "test"])
    assert dataset.name == "tiny"
    assert dataset.documents.ids[3] == "d3"
    assert dataset.queries.texts[3] == "query 3"
    assert dataset.passage_text(3) == dataset.passages()[3] == "T3 text 3"
    assert dataset.counts() == {
        "documents": 200,
        "queries": 200,
        "train_queries": 150,
        "train_judgements": 300,
        "train_positives": 150,
        "test_queries": 50,
        "test_judgements": 100,
        "test_positives": 50,
        "bad_rows": 0,
    }
    positives = dataset.positives("test")
    assert positives.queries.tolist() == list(range(150, 200))
    assert positives.of(4).tolist() == [154]


def test_the_digest_is_of_the_content_alone(folder: Path, tmp_path: Path) -> None:
    before = open_dataset(folder, ["test"])
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress((folder / "corpus.jsonl").read_bytes()))
    (folder / "corpus.jsonl").unlink()
    folder.rename(tmp_path / "moved")
    after = open_dataset(tmp_path / "moved", ["test"])
    assert after.digest == before.digest
    assert after.documents.digest == before.documents.digest

    def regrade(lines: list[bytes]) -> None:
        lines[1] = lines[1].replace(b"\t1", b"\t2")

    edit(tmp_path / "moved" / "qrels" / "test.tsv", regrade)
    assert open_dataset(tmp_path / "moved", ["test"]).digest != before.digest
    assert replace(before, judgements={"dev": before.judgements["test"]}).digest != before.digest
    assert replace(before, name="another").digest == before.digest


def test_a_missing_dev_split_is_lent_by_train(folder: Path) -> None:
    lent = open_dataset(folder, ["train", "dev", "test"])
    train, dev = (set(lent.judgements[split].queries.tolist()) for split in ("train", "dev"))
    assert len(dev) == 15
    assert train | dev == set(range(150))
    assert not train & dev
    # By the hash of the ids: the order of rows and queries does not matter; and alone, train is whole.
    edit(folder / "qrels" / "train.tsv", lambda lines: lines.__setitem__(slice(1, None), lines[:0:-1]))
    assert open_dataset(folder, ["dev", "train", "test"]).digest == lent.digest
    edit(folder / "queries.jsonl", lambda lines: lines.reverse())
    again = open_dataset(folder, ["dev", "train"])
    assert {again.queries.ids[query] for query in again.judgements["dev"].queries} == {f"q{query}" for query in dev}
    assert len(open_dataset(folder, ["dev"]).positives("dev")) == 15
    assert len(open_dataset(folder, ["train"]).positives("train")) == 150


def test_a_missing_split_lists_those_there_are(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'validation'; there are: test, train; choose from test, train"):
        open_dataset(folder, ["validation"])
    (folder / "qrels" / "train.tsv").unlink()
    assert len(open_dataset(folder, ["test"]).positives("test")) == 50
    with pytest.raises(DataError, match=r"no split 'train'; there are: test; training needs a train split"):
        open_dataset(folder, ["train", "dev", "test"])


@pytest.mark.parametrize(
    ("file", "row", "content", "message"),
    [
        ("corpus.jsonl", 5, b"{", "not JSON"),
        ("corpus.jsonl", 5, b'{"_id": "d3", "text": "other"}', "id 'd3' was used before with a different text"),
        ("queries.jsonl", 5, b'{"_id": "q4", "text": " "}', 'empty "text"'),
        ("qrels/test.tsv", 5, b"q152\tnone\t1", "unknown document id 'none'"),
        ("qrels/test.tsv", 5, b"none\td1\t1", "unknown query id 'none'"),
        ("qrels/test.tsv", 5, b"q150\td150\t2", "the pair was judged 1 before and is 2 here"),
    ],
)
def test_one_bad_row_is_quarantined_alone(
    folder: Path, tmp_path: Path, file: str, row: int, content: bytes, message: str
) -> None:
    edit(folder / file, lambda lines: lines.__setitem__(row - 1, content))
    for split in ("train", "test"):  # where nothing else names what is spoilt here
        edit(folder / "qrels" / f"{split}.tsv", lambda lines: spare(lines, file, b"q4", b"d4", b"d3"))
    dataset = open_dataset(folder, ["test"], max_bad_rows=0.02)
    assert dataset.quarantine.counts == {str(folder / file): 1}
    assert dataset.counts()["bad_rows"] == 1
    (entry,) = dataset.quarantine.entries
    assert json.loads(dataset.quarantine.write(tmp_path / "run").path.read_text()) == entry
    assert (entry["file"], entry["row"]) == (str(folder / file), row)
    assert entry["reason"].startswith(message)
    with pytest.raises(DataError) as caught:
        open_dataset(folder, ["test"], max_bad_rows=0)
    assert str(caught.value).startswith(f"{folder / file} row {row}: {message}")
    assert "; 1 of " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_bad_document_was_judged_for_is_bad_too(folder: Path) -> None:
    edit(folder / "corpus.jsonl", lambda lines: lines.__setitem__(160, b"{"))
    dataset = open_dataset(folder, ["test"], max_bad_rows=0.02)
    assert dict(dataset.quarantine.counts) == {str(folder / "corpus.jsonl"): 1, str(folder / "qrels" / "test.tsv"): 2}
    assert len({(entry["file"], entry["row"]) for entry in dataset.quarantine.entries}) == 3
    # No position moved onto another document.
    positives = dataset.positives("test")
    names = [dataset.documents.ids[positives.of(index)[0]] for index in range(len(positives))]
    assert names == [f"d{n}" for n in range(150, 200) if n != 160]


def test_the_same_row_twice_is_one(folder: Path) -> None:
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        edit(folder / file, lambda lines: lines.append(lines[-1]))
    counts = open_dataset(folder, ["test"], max_bad_rows=0).counts()
    assert (counts["documents"], counts["queries"], counts["test_judgements"]) == (200, 200, 100)


def test_all_splits_are_opened(folder: Path) -> None:
    assert sorted(open_all_splits(folder).judgements) == ["test", "train"]
    assert open_all_splits(folder, ["train"]).digest == open_dataset(folder, ["test", "train"]).digest
    with_dev = open_all_splits(folder, ["dev"])  # taken from train
    assert with_dev.digest == open_dataset(folder, ["dev", "test", "train"]).digest
    with pytest.raises(DataError, match="no split 'trian'; there are: test, train"):
        open_all_splits(folder, ["trian"])


def test_only_files_of_the_checked_splits_stop_the_opening_of_all(folder: Path) -> None:
    edit(folder / "qrels" / "test.tsv", lambda lines: lines.extend([b"q0\td9999\t1"] * 20))
    dataset = open_all_splits(folder, ["train"])
    assert sorted(dataset.judgements) == ["test", "train"]
    assert dataset.quarantine.total == 20
    for checked in (None, ["test"]):
        with pytest.raises(DataError, match=r"test\.tsv row \d+: unknown document"):
            open_all_splits(folder, checked)
