"""Folders that `datasets` saved to the disk, as data sets."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source
from raytriever.data.formats.file_blocks import parse_block, read_blocks
from raytriever.data.formats.known_formats import recognize
from raytriever.data.prepare.open_dataset import open_all_splits


def pairs(count: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {"anchor": [f"q{n}" for n in range(count)], "positive": [f"d{n}" for n in range(count)]}
    )


def test_splits_of_pairs(tmp_path: Path) -> None:
    parts = {"train": pairs(8), "validation": pairs(3)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set", num_shards={"train": 2, "validation": 1})
    (tmp_path / "set" / "train" / "cache-0123.arrow").write_bytes(b"of map()")
    counts = open_all_splits(tmp_path / "set").counts()
    assert (counts["train_queries"], counts["dev_queries"], counts["documents"]) == (8, 3, 8)


def test_a_corpus_with_judgements(tmp_path: Path) -> None:
    parts = {
        "corpus": {"_id": ["d1"], "title": ["t"], "text": ["x"]},
        "queries": {"_id": ["q1"], "text": ["a?"]},
        "test": {"query-id": ["q1"], "corpus-id": ["d1"], "score": [1]},
    }
    tables = {name: datasets.Dataset.from_dict(columns) for name, columns in parts.items()}
    datasets.DatasetDict(tables).save_to_disk(tmp_path / "set")
    assert open_all_splits(tmp_path / "set").counts()["test_positives"] == 1


def test_rows_have_their_numbers_in_chunks_of_any_size(tmp_path: Path) -> None:
    pairs(2500).save_to_disk(tmp_path / "set")
    [part] = recognize(Source.open(tmp_path / "set")).parts
    for size in (1, 20_000, 1 << 20):
        parsed = [parse_block(part, block) for block in read_blocks(part, 0, size)]
        assert np.concatenate([item.rows_of("queries") for item in parsed]).tolist() == list(range(1, 2501))


@pytest.mark.parametrize("damage", ["cut", "words", "pickled", "empty"])
def test_a_broken_file_is_one_line(tmp_path: Path, damage: str) -> None:
    pairs(2500).save_to_disk(tmp_path / "set")
    [file] = (tmp_path / "set").glob("data-*.arrow")
    raw = file.read_bytes()
    if damage == "pickled":
        about = {b"ARROW:extension:name": b"ray.data.arrow_pickled_object", b"ARROW:extension:metadata": b""}
        schema = pa.schema([pa.field("anchor", pa.string()), pa.field("positive", pa.binary(), metadata=about)])
        with pa.ipc.new_stream(file, schema) as writer:
            writer.write_table(pa.table([["a"], [b"."]], schema=schema))
    else:
        file.write_bytes({"cut": raw[: len(raw) // 2], "words": b"no arrow at all", "empty": b""}[damage])
    with pytest.raises(DataError) as error:
        open_all_splits(tmp_path / "set")
    expected = {"cut": "Arrow file is broken", "words": "not an Arrow", "pickled": "extension type", "empty": "no row"}
    assert expected[damage] in str(error.value)
    assert str(file) in str(error.value)
