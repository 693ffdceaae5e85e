"""Statistics of a data set; and queries that are trained on and measured, refused where they are many."""

from __future__ import annotations

from pathlib import Path

import pytest
from beir import write_beir
from prepared import prepare

from raytriever.core.errors import ConfigError, DataError
from raytriever.core.store.commit import read_manifest
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset_statistics import Overlap, check_overlap, describe, overlaps
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_all_splits, open_dataset
from raytriever.data.prepare.prepare_dataset import Request
from raytriever.training.run_config import Config, check_config


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
