"""Dense mining and filters of candidates, compared with plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mining_data import dataset_of, rows_of, whole_numbers
from simulated_gpu import CUDA, simulated_gpu

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hashed_ids import normalize
from raytriever.retrieval.index import exact_top_k
from raytriever.retrieval.index.exact_top_k import Corpus
from raytriever.retrieval.mining import miner
from raytriever.retrieval.mining.candidate_search import ArrayEmbeddings, Embeddings
from raytriever.retrieval.mining.filters import (
    KEPT,
    NOT_CHOSEN,
    OWN_ID,
    RANGE,
    REASONS,
    RELEVANT,
    SAME_TEXT,
    ExcludedDocuments,
    choose,
    contains_answer,
)
from raytriever.retrieval.mining.miner import mine
from raytriever.retrieval.mining.mining_settings import MiningConfig

WORDS = ["river", "garden", "Garden ", "stone", "cloud"]


def mine_by_loop(
    dataset: RetrievalDataset, config: MiningConfig, scores: np.ndarray
) -> tuple[dict[int, list[tuple[int, int]]], dict[str, int]]:
    """Mine the split `train` by a loop; return (document, rank) by query, and counts."""
    of = {
        query: {
            document
            for rows in dataset.judgements.values()
            for other, document in zip(rows.queries, rows.documents, strict=True)
            if dataset.queries.texts[other].split() == dataset.queries.texts[query].split()
        }
        for query in dataset.judgements["train"].queries.tolist()
    }
    texts = [text.strip().lower() for text in dataset.documents.texts]
    table, counts = {}, dict.fromkeys(REASONS, 0)
    for index, (query, relevant) in enumerate(sorted(of.items())):
        lowest = min(scores[index][document] for document in relevant)
        ranking = sorted(range(len(texts)), key=lambda d: (scores[index][d], dataset.documents.ids[d]), reverse=True)
        rank, table[query] = 0, []
        for document in ranking:
            if rank == config.depth:
                break
            rank += 1
            score = scores[index][document]
            if document in relevant or texts[document] in {texts[item] for item in relevant}:
                rank -= 1
                why = "relevant" if document in relevant else "same text as a positive"
            elif dataset.documents.ids[document] == dataset.queries.ids[query]:
                rank -= 1
                why = "the query's own id"
            elif rank <= config.range_min:
                why = "before the range"
            elif config.max_score is not None and score > config.max_score:
                why = "above max_score"
            elif config.absolute_margin is not None and score > lowest - config.absolute_margin:
                why = "within absolute_margin"
            elif config.relative_margin is not None and score > lowest - abs(lowest) * config.relative_margin:
                why = "within relative_margin"
            elif len(table[query]) == config.num_negatives:
                why = "not chosen"
            else:
                why = "kept"
                table[query].append((document, rank - 1))
            counts[why] += 1
    return table, counts


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_dense_mining_equals_a_loop(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = data.draw(st.integers(4, 14))
    documents = [str(rng.choice(WORDS)) for _ in range(size)]
    queries = [f"what is {rng.integers(3)}" for _ in range(6)]
    pairs = [(int(rng.integers(6)), int(rng.integers(size))) for _ in range(data.draw(st.integers(1, 9)))]
    dataset = dataset_of(queries, documents, train=pairs, test=[(int(rng.integers(6)), int(rng.integers(size)))])
    low = data.draw(st.integers(0, 3))
    bound = st.none() | st.integers(0, 6).map(float)
    config = MiningConfig(
        method="dense",
        num_negatives=data.draw(st.integers(1, 4)),
        range_min=low,
        range_max=low + data.draw(st.integers(4, 9)),
        max_score=data.draw(bound),
        absolute_margin=data.draw(bound),
        relative_margin=data.draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
    )
    asked = dataset.positives("train").queries
    of_queries, of_documents = whole_numbers(rng, len(asked)), whole_numbers(rng, size)
    mined = mine(dataset, "train", config, embeddings=Embeddings(of_queries, ArrayEmbeddings(of_documents)))
    wanted, counts = mine_by_loop(dataset, config, of_queries @ of_documents.T)
    assert rows_of(mined) == {query: rows for query, rows in wanted.items() if rows}
    dense = mined.counts["dense"]
    assert {name: count for name, count in counts.items() if count or name == "kept"} == {
        name: count for name, count in dense.items() if name != "candidates"
    }
    assert dense["candidates"] == sum(counts.values())
    assert mined.counts_per_query.tolist() == [len(wanted[query]) for query in asked.tolist()]
    scores = {(q, d): of_queries[asked.tolist().index(q)] @ of_documents[d] for q in wanted for d in range(size)}
    for query, document, score in zip(mined.table.queries, mined.table.documents, mined.table.scores, strict=True):
        assert score == scores[int(query), int(document)]


@pytest.mark.parametrize("fits", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_mining_copies_the_embeddings_to_a_gpu_once_if_they_fit(
    word_data: tuple[RetrievalDataset, Embeddings], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, embeddings = word_data
    config = MiningConfig(method="dense", num_negatives=2, range_max=5)
    expected = mine(dataset, "train", config, embeddings=embeddings).table
    monkeypatch.setattr(miner, "BLOCK", 20)
    blocks, reads, run, read = list[int](), list[int](), Corpus.keys, Corpus._read
    monkeypatch.setattr(Corpus, "keys", lambda *arguments: blocks.append(1) or run(*arguments))
    monkeypatch.setattr(Corpus, "_read", lambda *arguments: reads.append(1) or read(*arguments))
    monkeypatch.setattr(exact_top_k, "default_device", lambda: CUDA)
    if not fits:
        needed = 4 * embeddings.queries.shape[1] * len(embeddings.documents)
        monkeypatch.setattr(exact_top_k, "free_memory", lambda device: needed)
    with simulated_gpu():
        table = mine(dataset, "train", config, embeddings=embeddings).table
    assert len(blocks) > 2
    assert np.array_equal(table.documents, expected.documents)
    assert len(reads) == (1 if fits else len(blocks))


def test_a_document_has_the_reason_of_its_own_query_alone() -> None:
    reasons = np.array([RELEVANT, SAME_TEXT, OWN_ID], np.int8)
    excluded = ExcludedDocuments(np.array([0, 2, 2, 3]), np.array([1, 4, 0]), reasons)
    documents = np.array([[4, -1, 0, 1], [0, 4, -1, 5], [4, 0, 1, -1]])
    expected = [[SAME_TEXT, KEPT, KEPT, RELEVANT], [OWN_ID, KEPT, KEPT, KEPT], [KEPT] * 4]
    assert excluded.reasons_of(np.array([0, 2, 1]), documents).tolist() == expected
    assert excluded.reasons_of(np.array([1]), documents[:1]).tolist() == [[KEPT] * 4]


def test_random_candidates_are_those_with_the_smallest_draws() -> None:
    verdicts = np.array([[KEPT, RANGE, KEPT, KEPT], [RANGE, RANGE, KEPT, RANGE]], np.int8)
    random_keys = np.array([[5, 0, 2**64 - 1, 1], [0, 0, 9, 0]], np.uint64)
    choose(verdicts, 2, random_keys)
    assert verdicts.tolist() == [[KEPT, RANGE, NOT_CHOSEN, KEPT], [RANGE, RANGE, KEPT, RANGE]]


@pytest.mark.parametrize(
    ("passage", "answer", "is_contained"),
    [
        ("He joined the US army.", "us", True),
        ("He took a bus.", "us", False),
        ("a bus in the US", "US", True),
        ("Born in 1920.", "192", False),
        ("Born in 1920.", "1920", True),
        ("It cost $5.", "$5", True),
        ("It cost $50.", "$5", False),
        ("the Great  Sichuan\nEarthquake", "great sichuan earthquake", True),
        ("東京は日本の首都である", "東京", True),
        ("2008年に", "2008", True),
        ("E\u0301mile Zola", "Émile", True),
        ("anything", "", False),
        ("anything", "  ", False),
    ],
)
def test_answers_match_whole_words(passage: str, answer: str, is_contained: bool) -> None:
    assert contains_answer(normalize(passage), ["nowhere", normalize(answer)]) is is_contained
