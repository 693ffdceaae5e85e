"""Prompts of single queries, from the column `prompt` of FlagEmbedding's rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes, in_this_process
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.errors import DataError
from raytriever.prompts import PromptTable

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, prompts: list[Any]) -> Path:
        rows = [
            {"query": f"query {number}", "pos": [f"text {number}"], "neg": []}
            | ({} if prompt is ... else {"prompt": prompt})
            for number, prompt in enumerate(prompts)
        ]
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return written


def tokens_of(dataset: RetrievalDataset) -> list[list[int]]:
    assert dataset.tokens is not None
    return [row.tolist() for row in dataset.tokens.queries.take(np.arange(len(dataset.queries)))]


@pytest.mark.parametrize("run", [in_this_process, in_processes])
def test_a_prompt_of_a_row_replaces_that_of_the_data_set(write: Write, words: Tokenisation, run: Any) -> None:
    folder = write("rows", ["title title", "", None, ..., "text"])
    words = Tokenisation(words.tokenizer, query_prompt="query query ")
    dataset = open_dataset(folder, ["train"], tokenisation=words, run=run)
    prompts = ["title title", *["query query "] * 3, "text"]
    assert dataset.prompts_of(range(5), "query query ") == prompts
    expected = words.encode([f"{prompt}query {n}" for n, prompt in enumerate(prompts)], "")
    assert tokens_of(dataset) == expected
    assert len({tuple(row[:2]) for row in expected}) == 3
    assert dataset.prompts is not None
    assert dataset.prompts.distinct() == ["text", "title title"]
    again = open_dataset(str(dataset.location), ["train"], tokenisation=words)
    assert again.prompts_of([4, 0, 1], "x") == ["text", "title title", "x"]
    assert tokens_of(again) == expected


def test_queries_without_prompts_have_none(write: Write, small: Path) -> None:
    assert open_dataset(write("rows", [..., "", None]), ["train"]).prompts is None
    dataset = open_dataset(small, ["train"])
    assert dataset.prompts is None
    assert dataset.prompts_of([0, 1], "x") == "x"


def test_prompts_decide_the_digests_of_their_data_set_alone(write: Write) -> None:
    plain, first, second = (open_dataset(write(n, p), ["train"]) for n, p in (("a", [...]), ("b", ["x"]), ("c", ["y"])))
    assert len({each.queries.digest for each in (plain, first, second)}) == 3
    assert len({each.digest for each in (plain, first, second)}) == 3
    assert plain.queries.ids[0] == first.queries.ids[0]  # tables of negatives keep their ids
    assert plain.documents.digest == first.documents.digest


def test_a_query_with_two_prompts_is_a_bad_row(tmp_path: Path) -> None:
    rows = [{"query": "a", "pos": ["b"], "prompt": prompt} for prompt in ("one", "one", "two")]
    rows += [{"query": f"q {n}", "pos": ["b"]} for n in range(5)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="row 3"):
        open_dataset(tmp_path / "train.jsonl", ["train"], max_bad_rows=0)
    dataset = open_dataset(tmp_path / "train.jsonl", ["train"])
    assert dataset.quarantine.total == 1
    assert dataset.prompts_of([0], "") == ["one"]


def test_a_prompt_that_is_no_text_is_a_bad_row(write: Write) -> None:
    with pytest.raises(DataError, match='"prompt" is int, not a string'):
        open_dataset(write("rows", [3]), ["train"])


def test_prompts_by_data_set_change_one_preparation(small: Path, words: Tokenisation, tmp_path: Path) -> None:
    """Only the data set that a prompt names is prepared again."""
    table = PromptTable("title ", "", {}, {"small-query": "query "})
    before, after = Tokenisation(words.tokenizer, "title "), Tokenisation(words.tokenizer, "title ", "", table)
    other = tmp_path / "other"
    other.symlink_to(small)
    locations = {
        name: [open_dataset(path, ["train"], tokenisation=each).location for each in (before, after)]
        for name, path in (("small", small), ("other", other))
    }
    assert locations["small"][0] != locations["small"][1]
    assert locations["other"][0] == locations["other"][1]
    prepared = open_dataset(str(locations["small"][1]), ["train"], tokenisation=after)
    assert tokens_of(prepared)[0][:1] == words.encode(["query"], "")[0]
    with pytest.raises(DataError, match="another tokenizer or prompt"):
        open_dataset(str(locations["small"][0]), ["train"], tokenisation=after)
    assert after.for_dataset("other").digest == before.digest
