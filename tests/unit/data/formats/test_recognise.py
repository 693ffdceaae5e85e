from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from raytriever.data.formats.recognise import FORMATS, recognise
from raytriever.data.sources import Source
from raytriever.errors import DataError

PAIR = {"anchor": "a", "positive": "b"}
LISTS = {"query": "a", "pos": ["b"], "neg": ["c"]}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("anything.jsonl", "train"),
        ("validation.jsonl.gz", "dev"),
        ("val.json", "dev"),
        ("nq-dev.json.gz", "dev"),
        ("test-00001-of-00003.parquet", "test"),
        ("test/part-0.parquet", "test"),
        ("data/train-00000-of-00001.parquet", "train"),
        ("pretraining.jsonl", "train"),
        ("contest.jsonl", "train"),
        ("train.valid.jsonl", "dev"),
    ],
)
def test_names_tell_splits(tmp_path: Path, write, name: str, split: str) -> None:
    write(name, [PAIR])
    plan = recognise(Source.open(tmp_path / "set"))
    assert [part.split for part in plan.parts] == [split]
    assert plan.splits == (split,)
    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301


def test_shards_and_what_is_no_data(tmp_path: Path, write) -> None:
    for n in range(3):
        write(f"data/train-0000{n}-of-00003.parquet", [PAIR])
    write("data/test-00000-of-00001.parquet", [PAIR])
    write("dataset_infos.json", [{"about": 1}])
    (tmp_path / "set" / "config.json").write_text('{\n  "about": 1\n}\n')
    (tmp_path / "set" / "README.md").write_text("about")
    plan = recognise(Source.open(tmp_path / "set"))
    assert [part.split for part in plan.parts] == ["test", "train", "train", "train"]
    assert plan.splits == ("test", "train")


def test_lines_that_are_called_json(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"anchor": "a", "positive": "b"}\n{"anchor": "c", "positive": "d"}\n')
    assert [part.kind for part in recognise(Source.open(tmp_path)).parts] == ["json"]


def test_a_bad_first_row_costs_itself_alone(tmp_path: Path, read) -> None:
    (tmp_path / "train.jsonl").write_bytes(b"{\n[1]\n\xff\n" + b'{"anchor": "a", "positive": "b"}\n')
    result = read(tmp_path)
    assert len(result.bad) == 3
    assert result.positives() == [("a", "b", 0)]


def test_an_unknown_folder_is_reported_with_the_known_formats(tmp_path: Path, write) -> None:
    write("train.jsonl", [{"prompt": "a", "chosen": "b"}])
    with pytest.raises(DataError) as caught:
        recognise(Source.open(tmp_path / "set"))
    message = str(caught.value)
    assert (
        "in no known format; it holds train (the fields chosen, prompt); known formats are beir: corpus.jsonl"
        in message
    )
    assert "\n" not in message
    assert all(name in message for name in FORMATS if name != "ir_datasets")
    with pytest.raises(DataError, match=r"not in the format dpr; it holds train \(the fields chosen, prompt\)"):
        recognise(Source.open(tmp_path / "set"), "dpr")
    (tmp_path / "set" / "train.jsonl").rename(tmp_path / "set" / "train.txt")
    with pytest.raises(DataError, match=r"in no known format; it holds train\.txt"):
        recognise(Source.open(tmp_path / "set"))


def test_several_formats_are_reported_until_one_is_named(tmp_path: Path, write, read) -> None:
    write("a.jsonl", [LISTS])
    write("b.jsonl", [PAIR])
    message = r"not in one format; it holds a \(flagembedding\), b \(sentence-transformers\); give one of the files"
    with pytest.raises(DataError, match=message):
        recognise(Source.open(tmp_path / "set"))
    assert read(tmp_path / "set", "flagembedding").positives() == [("a", "b", 0)]
    write("c.jsonl", [{"some": "thing"}])
    (tmp_path / "set" / "b.jsonl").unlink()
    with pytest.raises(DataError, match=r"a \(flagembedding\), c \(the fields some\)"):
        recognise(Source.open(tmp_path / "set"))


def test_several_data_sets_in_one_folder_are_reported(tmp_path: Path, write) -> None:
    write("pair/train-00000-of-00001.parquet", [PAIR])
    write("triplet/train-00000-of-00001.parquet", [PAIR | {"negative": "c"}])
    with pytest.raises(DataError, match=r"holds several data sets, in pair, triplet; give one of these folders"):
        recognise(Source.open(tmp_path / "set"))
    assert recognise(Source.open(tmp_path / "set" / "pair")).format == "sentence-transformers"
