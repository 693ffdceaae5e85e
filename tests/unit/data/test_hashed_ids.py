"""Keys of ids; and equal texts under different ids, which count as one everywhere."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from beir import write_beir
from hypothesis import given
from hypothesis import strategies as st
from prepared import prepare

from raytriever.core.errors import DataError
from raytriever.data.combine_datasets import combine
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.hashed_ids import Copies, KeyIndex, hash_texts, key_of, keys_of
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import Request
from raytriever.data.prepare.prepared import PreparedDirectory
from raytriever.data.sampling.training_examples import Examples
from raytriever.evaluation.dataset_evaluation import count_copies_above
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.report_document import notes_on
from raytriever.evaluation.results import About
from raytriever.retrieval.mining.filters import ExcludedDocuments

# Few values in each word, so that keys repeat and keys share their first word only.
WORDS = st.integers(0, 3)
KEYS = st.lists(st.tuples(WORDS, WORDS), max_size=30)


def array(keys: list[tuple[int, int]]) -> np.ndarray:
    return np.array(keys, dtype=np.uint64).reshape(-1, 2)


@given(KEYS, KEYS)
def test_the_first_of_equal_keys_is_found(keys: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    first = {key: len(keys) - 1 - position for position, key in enumerate(reversed(keys))}
    index = KeyIndex(array(keys))
    assert index.find(array(asked)).tolist() == [first.get(key, -1) for key in asked]
    assert index.first().tolist() == [first[key] for key in keys]


def test_texts_do_not_run_together() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("", "abc"), key_of("abc", "")}) == 5
    assert keys_of([key_of("a"), key_of("b")]).shape == (2, 2)


def test_an_array_of_keys_needs_no_object_for_each() -> None:
    tracemalloc.start()
    try:
        keys = keys_of(key_of(str(number)) for number in range(100_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(keys) == 100_000
    assert peak < 40 * len(keys)  # 16 bytes each, and room to grow


TEXTS = ["A  kettle", "a kettle", "A drill", "ａ ＤＲＩＬＬ", "a spade", "a rope"]


def test_texts_are_equal_but_for_case_white_space_and_composition() -> None:
    copies = Copies.of(hash_texts([*TEXTS, "A KETTLE", "cafe\u0301", "caf\u00e9", "cafe"]))
    assert copies.positions.tolist() == [1, 3, 6, 8]
    assert copies.firsts.tolist() == [0, 2, 0, 7]
    assert copies.first(np.array([[0, 1, -1], [6, 9, 3]])).tolist() == [[0, 0, -1], [0, 9, 2]]
    assert len(Copies.of(hash_texts([]))) == len(Copies.of(hash_texts(["a", "b"]))) == 0


def _dataset(
    positives: list[list[int]], texts: list[str], queries: list[str], splits: tuple[str, ...] = ("train",)
) -> RetrievalDataset:
    rows = np.array([(q, d, 1) for q, documents in enumerate(positives) for d in documents]).T
    names = [f"d{n}" for n in range(len(texts))]
    return RetrievalDataset(
        "made",
        Documents(names, [""] * len(texts), texts),
        Queries([f"q{n}" for n in range(len(queries))], queries),
        dict.fromkeys(splits, Judgements(*rows)),
    )


QUESTIONS = ["where is the kettle", "the drill?", "Where is  the KETTLE", "a rope"]
DATASET = _dataset([[0], [2], [4], [5]], TEXTS, QUESTIONS)


def test_answers_of_equal_questions_and_copies_of_answers_are_known() -> None:
    examples = Examples.of(DATASET, "train", 0)
    rows, documents = examples.known(np.array([2, 1, 0]))
    assert list(zip(rows.tolist(), documents.tolist(), strict=True)) == [(0, 0), (0, 4), (1, 2), (2, 0), (2, 4)]


def test_a_random_negative_is_never_equal_to_a_known_positive() -> None:
    examples = Examples.of(DATASET, "train", 0)
    every = np.arange(4)
    sampled = np.concatenate([examples.groups(every, np.full(4, epoch), 1, 3)[1][:, 1:] for epoch in range(50)], 1)
    assert [set(row.tolist()) for row in sampled] == [{2, 3, 5}, {0, 1, 4, 5}, {2, 3, 5}, {0, 1, 2, 3, 4}]


def test_a_corpus_of_copies_of_one_answer_is_refused() -> None:
    examples = Examples.of(_dataset([[0]], ["a", "A", "a "], ["q"]), "train", 0)
    with pytest.raises(DataError, match="every document is a copy of a relevant document"):
        examples.groups(np.array([0]), np.array([0]), 1, 1)


def test_a_table_of_negatives_and_mining_leave_out_copies_of_positives() -> None:
    pairs = [(0, 1), (0, 4), (0, 2), (1, 3), (1, 0), (2, 1), (2, 5)]
    table = NegativesTable.of(DATASET, *np.array(pairs).T, "bm25")
    assert list(zip(table.queries.tolist(), table.documents.tolist(), strict=True)) == [(0, 2), (1, 0), (2, 5)]
    assert table.relevant == 4
    excluded = ExcludedDocuments.of_split(DATASET, "train")
    assert excluded.documents[excluded.offsets[0] : excluded.offsets[1]].tolist() == [0, 1, 4]


def test_copies_are_found_across_combined_data_sets() -> None:
    both = combine([DATASET, _dataset([[1]], ["a plane", "A Rope"], ["A ROPE"])])
    assert both.documents.copies.firsts.tolist() == [0, 2, 5]
    rows, documents = Examples.of(both, "train", 0).known(np.array([3, 4]))
    assert (rows.tolist(), documents.tolist()) == ([0, 1], [5, 5])


def test_prepare_stores_the_forms_and_counts_the_copies(tmp_path: Path) -> None:
    # Title and text together are the passage.
    corpus = [*TEXTS, *[{"_id": "d6", "title": "A", "text": "Kettle"}] * 2]
    prepared = prepare(Request(str(write_beir(tmp_path / "set", corpus, QUESTIONS, train=[(0, 0)]))))
    directory = PreparedDirectory.find(prepared)
    assert directory is not None
    assert [directory.meta["sides"][side]["same_text"] for side in ("documents", "queries")] == [3, 1]
    opened = open_dataset(prepared, ["train"])
    assert opened.documents.stored_hashes is not None
    assert opened.documents.copies.positions.tolist() == [1, 3, 6]
    assert opened.queries.copies.positions.tolist() == [2]
    np.testing.assert_array_equal(opened.documents.hashes, hash_texts(opened.passages()))


@pytest.mark.parametrize(
    ("relevant", "ranking", "count"),
    [
        ([0, 4], [1, 0, 2], 1),
        ([0, 4], [0, 1, 2], 0),
        ([0, 4], [2, 1, 5], 1),
        ([0, 4], [2, 5, 4], 0),
        ([0, 4], [0, 2, 1], 0),
        # Each copy counts, in any order.
        ([0, 2], [0, 1, 3, 2], 1),
        ([0, 2], [3, 2, 0, 1], 1),
        ([0, 2], [0, 1, 2, 3], 0),
    ],
)
def test_an_evaluation_counts_queries_with_a_copy_above_the_relevant_passage(
    relevant: list[int], ranking: list[int], count: int
) -> None:
    dataset = _dataset([relevant], TEXTS, ["where is the kettle"], ("test",))
    system = SimpleNamespace(
        search=lambda queries, depth: (np.zeros((1, len(ranking))), np.array([ranking])),
        score=lambda queries, documents: np.zeros(len(queries), np.float32),
    )
    evaluation = evaluate(dataset, "test", system)
    judged = select_judged_queries(dataset, "test", Protocol())
    assert count_copies_above(dataset, judged, evaluation) == count
    notes = notes_on(About(1, 9, "test", 0, 1, 0, copies_above={"minilm": count}))
    line = "Queries, of 1, with a copy ranked above a relevant passage: minilm 1. The copy counts as not relevant."
    assert notes == [line] * bool(count)
