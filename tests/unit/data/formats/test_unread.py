"""Published formats that are not read: one line says what the file is, and its remedy works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import raytriever as rt
from raytriever.data.formats.recognise import recognise
from raytriever.data.prepare.open import open_all_splits
from raytriever.data.sources import Source
from raytriever.errors import DataError

ROWS = [{"query": f"how do I clean part {n}", "pos": [f"Wipe it {n} times."], "neg": ["Turn it."]} for n in range(9)]


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as error:
        recognise(Source.open(path))
    return str(error.value)


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_called_jsonl_is_read(tmp_path: Path, indent: int | None) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROWS[:2], indent=indent))
    assert len(open_all_splits(tmp_path).queries) == 2


@pytest.mark.parametrize("indent", [None, 4])
def test_a_data_set_of_llama_index(tmp_path: Path, indent: int | None) -> None:
    content: dict[str, Any] = {
        "queries": {f"q{n}": row["query"] for n, row in enumerate(ROWS)},
        "corpus": {f"d{n}": row["pos"][0] for n, row in enumerate(ROWS)},
        "relevant_docs": {f"q{n}": [f"d{n}"] for n in range(len(ROWS))},
        "mode": "text",
    }
    (tmp_path / "train_dataset.json").write_text(json.dumps(content, indent=indent))
    line = refusal(tmp_path)
    assert "train_dataset.json: looks like EmbeddingQAFinetuneDataset of LlamaIndex, not read here; in Python, " in line
    code = line.rpartition(" and ")[2]
    dataset = eval(code, {"rt": rt, "data": content})  # noqa: S307
    assert dataset.counts["train_positives"] == len(ROWS)


@pytest.mark.parametrize("indent", [None, 2])
def test_squad(tmp_path: Path, indent: int | None) -> None:
    asked = [{"id": "q", "question": "who?", "answers": [{"text": "She", "answer_start": 0}], "is_impossible": False}]
    content = {"version": "2.0", "data": [{"title": "T", "paragraphs": [{"context": "She did.", "qas": asked}]}]}
    (tmp_path / "train.json").write_text(json.dumps(content, indent=indent))
    assert 'train.json: looks like SQuAD (paragraphs of context and qas), not read here; write {"query"' in refusal(
        tmp_path
    )
    rows = [{"query": "who?", "positive": "She did."}, {"query": "when?", "answerable": "no", "positive": ""}]
    (tmp_path / "train.json").unlink()
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert open_all_splits(tmp_path, max_bad_rows=0).counts()["train_unanswerable"] == 1


def test_triples_without_a_header(tmp_path: Path) -> None:
    text = "".join(f"{row['query']}\t{row['pos'][0]}\tTurn the other part {n}.\n" for n, row in enumerate(ROWS))
    file = tmp_path / "triples.train.small.tsv"
    file.write_text(text)
    line = refusal(tmp_path)
    assert "has no header: its first row is 'how do I clean part 0', 'Wipe it 0 times.', " in line
    assert "looks like triples of MS MARCO" in line
    header = line.rpartition("such as ")[2].replace("<TAB>", "\t")
    file.write_text(f"{header}\n{text}")
    dataset = open_all_splits(tmp_path, max_bad_rows=0)
    assert (len(dataset.documents), dataset.negatives is not None and len(dataset.negatives.queries)) == (18, 9)


def test_a_collection_without_headers(tmp_path: Path) -> None:
    for name in ("collection.tsv", "queries.tsv"):
        (tmp_path / name).write_text("0\tsome text\n")
    (tmp_path / "qrels.tsv").write_text("0\t0\t0\t1\n")
    assert "looks like the files of ColBERT and MS MARCO without headers (collection.tsv, queries.tsv), n" in refusal(
        tmp_path
    )


def test_a_pair_file_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "faq.csv").write_text("how do I clean it,Wipe it with a dry cloth.\nhow do I turn it,Slowly.\n")
    assert refusal(tmp_path).endswith("write the names of its columns above it, such as query,passage")
