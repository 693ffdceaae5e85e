"""Columns of texts and tokens; answers and prompts of single queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from beir import write_beir, write_rows

from raytriever.core.errors import DataError
from raytriever.data.columns import Rows, TextColumn, TokenColumn
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats.plan import answers_in
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.records_and_bad_rows import BadRow
from raytriever.models.prompts import PromptTable

SHARDS = [["a", "b", "c"], [], ["d"], ["e", "f"]]
LIVE = np.array([0, 2, 3, 5])


def column(live: np.ndarray | None) -> TextColumn:
    shards = [pa.array(shard, pa.large_string()) for shard in SHARDS]
    return TextColumn(shards, Rows.of([len(shard) for shard in SHARDS], live))


@pytest.mark.parametrize(("live", "expected"), [(None, list("abcdef")), (LIVE, list("acdf"))])
def test_a_column_reads_as_the_list_of_its_live_rows(live: np.ndarray | None, expected: list[str]) -> None:
    texts = column(live)
    assert len(texts) == len(expected)
    assert list(texts) == expected
    assert [texts[index] for index in range(len(texts))] == expected
    assert [texts[-index - 1] for index in range(len(texts))] == expected[::-1]
    assert texts[1:3] == expected[1:3]
    assert texts[::-2] == expected[::-2]
    assert texts.take(np.array([2, 0, 2])) == [expected[2], expected[0], expected[2]]
    assert texts == expected
    assert texts != expected[:-1]
    for position in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError, match=r"\[0, "):
            texts[position]


def test_tokens_stand_at_the_positions_of_their_texts() -> None:
    # Text number n has n tokens, all n.
    lengths = [list(range(3)), [], [3], [4, 5]]
    ids = [np.repeat(shard, shard).astype(np.uint16) for shard in lengths]
    offsets = [np.concatenate([[0], np.cumsum(shard)]).astype(np.int64) for shard in lengths]
    tokens = TokenColumn(ids, offsets, Rows.of([3, 0, 1, 2], LIVE))
    assert len(tokens) == 4
    assert [row.tolist() for row in tokens.take(np.array([3, 0, 1]))] == [[5] * 5, [], [2, 2]]
    assert tokens.lengths().tolist() == [0, 2, 3, 5]


def by_id(dataset: RetrievalDataset) -> dict[str, list[str]]:
    assert dataset.answers is not None
    return {name: dataset.answers.of(index) for index, name in enumerate(dataset.queries.ids)}


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    queries = [{"text": "question 0", "answers": ["own", "", 7]}, *(f"question {n}" for n in range(1, 4))]
    return write_beir(tmp_path / "set", ["text"], queries)


def test_answers_are_in_their_own_file_or_in_the_rows_of_queries(beir: Path) -> None:
    rows = [("q3", ["c\u2028d", "e"]), ("other", ["x"]), ("q1", "alone"), ("q0", ["more"]), ("q2", [])]
    write_rows(beir / "answers.jsonl", [{"_id": name, "answers": answers} for name, answers in rows])
    dataset = open_dataset(beir, [])
    assert by_id(dataset) == {"q0": ["own", "more"], "q1": ["alone"], "q2": [], "q3": ["c\u2028d", "e"]}
    assert not dataset.quarantine.total


def test_a_data_set_may_have_none(beir: Path) -> None:
    write_rows(beir / "queries.jsonl", [{"_id": "q0", "text": "question"}])
    before = open_dataset(beir, [])
    assert before.answers is None
    write_rows(beir / "answers.jsonl", [{"_id": "q0", "answers": ["now"]}])
    dataset = open_dataset(beir, [])
    assert by_id(dataset) == {"q0": ["now"]}
    assert dataset.digest == before.digest


@pytest.mark.parametrize(
    "row",
    [
        {"question": "who", "answers": ["me", "you"], "positive_ctxs": [{"title": "", "text": "text"}]},
        {"query_id": "1", "query": "who", "answers": ["me", "you"], "positive_passages": [{"docid": "1", "text": "x"}]},
    ],
)
def test_rows_of_other_formats_bring_theirs(tmp_path: Path, row: dict[str, Any]) -> None:
    file = write_rows(tmp_path / "train.jsonl", [row])
    assert list(by_id(open_dataset(file, ["train"])).values()) == [["me", "you"]]


def test_what_is_no_text_is_no_answer() -> None:
    assert answers_in({"answers": {"text": ["x"]}}) == answers_in({"answers": None}) == answers_in({}) == []
    with pytest.raises(BadRow, match="surrogate"):
        answers_in({"answers": ["\ud800"]})


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a data set of queries with these prompts; `...` is a row without one."""

    def written(name: str, prompts: list[Any]) -> Path:
        (tmp_path / name).mkdir()
        rows = [
            {"query": f"query {number}", "pos": [f"text {number}"], "neg": []}
            | ({} if prompt is ... else {"prompt": prompt})
            for number, prompt in enumerate(prompts)
        ]
        return write_rows(tmp_path / name / "train.jsonl", rows).parent

    return written


def tokens_of(dataset: RetrievalDataset) -> list[list[int]]:
    assert dataset.tokens is not None
    return [row.tolist() for row in dataset.tokens.queries.take(np.arange(len(dataset.queries)))]


def test_a_prompt_of_a_row_replaces_that_of_the_data_set(write: Write, words: Tokenization) -> None:
    folder = write("rows", ["title title", "", None, ..., "text"])
    words = Tokenization(words.tokenizer, query_prompt="query query ")
    dataset = open_dataset(folder, ["train"], tokenization=words)
    prompts = ["title title", *["query query "] * 3, "text"]
    assert dataset.prompts_of(range(5), "query query ") == prompts
    expected = words.encode([f"{prompt}query {n}" for n, prompt in enumerate(prompts)], "")
    assert tokens_of(dataset) == expected
    assert len({tuple(row[:2]) for row in expected}) == 3
    assert dataset.prompts is not None
    assert dataset.prompts.distinct() == ["text", "title title"]
    again = open_dataset(str(dataset.location), ["train"], tokenization=words)
    assert again.prompts_of([4, 0, 1], "x") == ["text", "title title", "x"]
    assert tokens_of(again) == expected


def test_prompts_decide_the_digests_of_their_data_set_alone(write: Write) -> None:
    plain, first, second = (open_dataset(write(n, p), ["train"]) for n, p in (("a", [...]), ("b", ["x"]), ("c", ["y"])))
    assert (plain.prompts, plain.prompts_of([0], "x")) == (None, "x")
    assert len({item.queries.digest for item in (plain, first, second)}) == 3
    assert len({item.digest for item in (plain, first, second)}) == 3
    assert plain.queries.ids[0] == first.queries.ids[0]  # tables of negatives keep their ids
    assert plain.documents.digest == first.documents.digest


def test_a_query_with_two_prompts_is_a_bad_row(tmp_path: Path) -> None:
    rows = [{"query": "a", "pos": ["b"], "prompt": prompt} for prompt in ("one", "one", "two")]
    rows += [{"query": f"q {n}", "pos": ["b"]} for n in range(5)]
    file = write_rows(tmp_path / "train.jsonl", rows)
    with pytest.raises(DataError, match="row 3"):
        open_dataset(file, ["train"], max_bad_rows=0)
    dataset = open_dataset(file, ["train"])
    assert dataset.quarantine.total == 1
    assert dataset.prompts_of([0], "") == ["one"]


def test_a_prompt_that_is_no_text_is_a_bad_row(write: Write) -> None:
    with pytest.raises(DataError, match='"prompt" is int, not a string'):
        open_dataset(write("rows", [3]), ["train"])


def test_prompts_by_data_set_change_one_preparation(small: Path, words: Tokenization, tmp_path: Path) -> None:
    """Only the data set that a prompt names is prepared again."""
    table = PromptTable("title ", "", {}, {"small-query": "query "})
    before, after = Tokenization(words.tokenizer, "title "), Tokenization(words.tokenizer, "title ", "", table)
    other = tmp_path / "other"
    other.symlink_to(small)
    locations = {
        name: [open_dataset(path, ["train"], tokenization=value).location for value in (before, after)]
        for name, path in (("small", small), ("other", other))
    }
    assert locations["small"][0] != locations["small"][1]
    assert locations["other"][0] == locations["other"][1]
    prepared = open_dataset(str(locations["small"][1]), ["train"], tokenization=after)
    assert tokens_of(prepared)[0][:1] == words.encode(["query"], "")[0]
    with pytest.raises(DataError, match="another tokenizer or prompt"):
        open_dataset(str(locations["small"][0]), ["train"], tokenization=after)
    assert after.for_dataset("other").digest == before.digest
