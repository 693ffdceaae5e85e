"""Shares and files of test questions divide a single CSV, TSV or JSONL file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prepared import prepare

from raytriever.core.errors import ConfigError, DataError
from raytriever.data.data_settings import SplitConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_all_splits
from raytriever.data.prepare.prepare_dataset import Request

ROWS = [(f"q{number}?", f"answer {number}", "yes") for number in range(20)] + [(f"u{n}?", "", "no") for n in range(10)]


def csv_file(path: Path, rows: list[tuple[str, str, str]], header: str = "question,answer,answerable") -> Path:
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return path


def jsonl_file(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    keys = ("question", "answer", "answerable")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return path


def opened(path: Path, **settings: object) -> RetrievalDataset:
    return open_all_splits(prepare(Request(str(path), division=SplitConfig(**settings))))  # type: ignore[arg-type]


def sizes(dataset: RetrievalDataset) -> dict[str, tuple[int, int]]:
    counts = dataset.counts()
    return {
        split: (counts[f"{split}_queries"], counts.get(f"{split}_unanswerable", 0))
        for split in ("train", "dev", "test")
        if split in dataset.judgements
    }


@pytest.mark.parametrize("write", [csv_file, jsonl_file])
@pytest.mark.parametrize("name", ["faq", "train"])
def test_fractions(tmp_path: Path, write: object, name: str) -> None:
    path = write(tmp_path / f"{name}.{'csv' if write is csv_file else 'jsonl'}", ROWS)  # type: ignore[operator]
    assert sizes(opened(path, test_fraction=0.4, dev_fraction=0.2)) == {"train": (8, 4), "dev": (4, 2), "test": (8, 4)}
    assert sizes(opened(path, test_fraction=0.4, dev_fraction=0.0)) == {"train": (12, 6), "test": (8, 4)}


@pytest.mark.parametrize("write", [csv_file, jsonl_file])
def test_a_file_of_test_questions(tmp_path: Path, write: object) -> None:
    ending = "csv" if write is csv_file else "jsonl"
    main = write(tmp_path / f"faq.{ending}", ROWS)  # type: ignore[operator]
    (tmp_path / "other").mkdir()
    more = [("t0?", "answer t", "yes"), ("t1?", "answer t", ""), ("t2?", "", "no")]
    test = write(tmp_path / "other" / f"held-out.{ending}", more)  # type: ignore[operator]
    dataset = opened(main, test_questions=str(test), dev_fraction=0.2)
    assert sizes(dataset) == {"train": (16, 8), "dev": (4, 2), "test": (2, 1)}
    write(test, [("Q3? ", "a", "yes")])  # type: ignore[operator]
    with pytest.raises(
        DataError, match=r"held-out\.\w+ row \d: the question is also in .*faq\.\w+; remove it from one"
    ):
        opened(main, test_questions=str(test))


def test_another_share_is_another_data_set(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "faq.csv", ROWS)
    assert opened(path, test_fraction=0.4).location != opened(path).location
    assert opened(path).location == opened(path).location


def test_fractions_that_cannot_be_used(tmp_path: Path) -> None:
    path, questions = csv_file(tmp_path / "faq.csv", ROWS), csv_file(tmp_path / "t.csv", [("t?", "a", "")])
    with pytest.raises(ConfigError, match="have a sum above 1"):
        opened(path, test_fraction=0.6, dev_fraction=0.5)
    with pytest.raises(ConfigError, match="no effect with test_questions; leave out one"):
        opened(path, test_fraction=0.2, test_questions=str(questions))


def test_fractions_without_effect(tmp_path: Path, small: Path) -> None:
    named = csv_file(tmp_path / "a.csv", [("q?", "a", "train")] * 3, "query,passage,split")
    for path in (named, small):
        with pytest.raises(ConfigError, match=r"has no effect: its files, or a column, name the splits; leave it out"):
            opened(path, test_fraction=0.5)
