"""Mining whole: against a loop, with itself in other blocks and orders, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.data.answers import Answers
from raytriever.data.dataset import Documents, Judgements, NegativeRows, Queries, RetrievalDataset
from raytriever.data.negatives_file import read_negatives, write_negatives
from raytriever.data.open import open_dataset
from raytriever.data.records import ORIGINS
from raytriever.errors import ConfigError, DataError, ModelError
from raytriever.negatives.bm25 import Bm25Index
from raytriever.negatives.config import METHODS, MiningConfig
from raytriever.negatives.filters import REASONS
from raytriever.retrieval import mine_filtering
from raytriever.retrieval.mine import Mined, mine
from raytriever.retrieval.mine_scales import Embeddings, HeldEmbeddings

WORDS = ["river", "garden", "Garden ", "stone", "cloud"]
Pairs = list[tuple[int, int]]


def made(queries: list[str], documents: list[str], **splits: Pairs) -> RetrievalDataset:
    """A data set in memory; query n has the id `n`, as has document n + 3."""
    judgements = {}
    for split, pairs in splits.items():
        rows = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)
        judgements[split] = Judgements(rows[:, 0], rows[:, 1], np.ones(len(rows), np.int64))
    return RetrievalDataset(
        "made",
        Documents([str(n - 3) for n in range(len(documents))], [""] * len(documents), documents),
        Queries([str(n) for n in range(len(queries))], queries),
        judgements,
    )


def whole_numbers(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Embeddings whose dot products are exact."""
    return rng.integers(-2, 3, (rows, 4)).astype(np.float32)


def literal(
    dataset: RetrievalDataset, config: MiningConfig, scores: np.ndarray
) -> tuple[dict[int, list[tuple[int, int]]], dict[str, int]]:
    """Dense mining of the split `train` as one would write it down: (document, rank) by query, and counts."""
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
    for place, (query, relevant) in enumerate(sorted(of.items())):
        lowest = min(scores[place][document] for document in relevant)
        ranking = sorted(range(len(texts)), key=lambda d: (scores[place][d], dataset.documents.ids[d]), reverse=True)
        rank, table[query] = 0, []
        for document in ranking:
            if rank == config.depth:
                break
            rank += 1
            score = scores[place][document]
            if document in relevant or texts[document] in {texts[each] for each in relevant}:
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


def rows_of(mined: Mined) -> dict[int, list[tuple[int, int]]]:
    """(document, rank) by query."""
    found: dict[int, list[tuple[int, int]]] = {}
    columns = (mined.table.queries, mined.table.documents, mined.table.ranks)
    for query, document, rank in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault(query, []).append((document, rank))
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_dense_mining_is_that_of_a_loop(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = data.draw(st.integers(4, 14))
    documents = [str(rng.choice(WORDS)) for _ in range(size)]
    queries = [f"what is {rng.integers(3)}" for _ in range(6)]
    pairs = [(int(rng.integers(6)), int(rng.integers(size))) for _ in range(data.draw(st.integers(1, 9)))]
    dataset = made(queries, documents, train=pairs, test=[(int(rng.integers(6)), int(rng.integers(size)))])
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
    mined = mine(dataset, "train", config, embeddings=Embeddings.of(of_queries, of_documents))
    wanted, counts = literal(dataset, config, of_queries @ of_documents.T)
    assert rows_of(mined) == {query: rows for query, rows in wanted.items() if rows}
    told = mined.counts["dense"]
    assert {name: count for name, count in counts.items() if count or name == "kept"} == {
        name: count for name, count in told.items() if name != "candidates"
    }
    assert told["candidates"] == sum(counts.values())
    assert mined.found.tolist() == [len(wanted[query]) for query in asked.tolist()]
    scores = {(q, d): of_queries[asked.tolist().index(q)] @ of_documents[d] for q in wanted for d in range(size)}
    for query, document, score in zip(mined.table.queries, mined.table.documents, mined.table.scores, strict=True):
        assert score == scores[int(query), int(document)]


@pytest.fixture(scope="module")
def gardens() -> tuple[RetrievalDataset, Embeddings]:
    """60 documents of three words, 40 queries of two, gold negatives, and embeddings."""
    rng = np.random.default_rng(5)
    words = [f"word{n}" for n in range(25)]
    documents = [" ".join(rng.choice(words, 3, replace=False)) for _ in range(60)]
    queries = [" ".join(rng.choice(words, 2, replace=False)) for _ in range(40)]
    dataset = made(queries, documents, train=[(n, int(rng.integers(60))) for n in range(40)])
    gold = NegativeRows(
        np.repeat(np.arange(40), 2),
        rng.integers(0, 60, 80),
        np.full(80, ORIGINS.index("gold")),
        np.tile([0, 1], 40),
        np.full(80, np.nan, np.float32),
    )
    embeddings = Embeddings.of(
        rng.standard_normal((40, 16)).astype(np.float32), rng.standard_normal((60, 16)).astype(np.float32)
    )
    return replace(dataset, negatives=gold), embeddings


EVERY = MiningConfig(method=",".join(METHODS), num_negatives=3, range_max=9, sampling_strategy="random")


def test_counts_add_up_for_every_method(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    mined = mine(gardens[0], "train", replace(EVERY, relative_margin=0.3), embeddings=gardens[1])
    assert tuple(mined.counts) == METHODS
    for method, told in mined.counts.items():
        assert told["candidates"] == sum(count for name, count in told.items() if name != "candidates"), method
        assert told["kept"] == mined.table.counts()[method], method
    assert mined.found.sum() == len(mined.table)
    assert mined.scale == "encoder"
    positives = gardens[0].positives("train")
    lowest = {
        int(q): gardens[1].queries[n] @ gardens[1].documents.read(positives.of(n)).T
        for n, q in enumerate(positives.queries)
    }
    for query, score in zip(mined.table.queries.tolist(), mined.table.scores, strict=True):
        assert score <= lowest[query].min() - 0.3 * abs(lowest[query].min()) + 1e-6


def test_the_same_whatever_the_blocks(
    gardens: tuple[RetrievalDataset, Embeddings], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = mine(gardens[0], "train", EVERY, embeddings=gardens[1], seed=4)
    monkeypatch.setattr(mine_filtering, "BLOCK", 30)
    again = mine(gardens[0], "train", EVERY, embeddings=gardens[1], seed=4)
    assert again.table.digest == once.table.digest
    assert again.counts == once.counts
    assert mine(gardens[0], "train", EVERY, embeddings=gardens[1], seed=5).table.digest != once.table.digest
    for method in ("dense", "random"):
        found = [
            mine(gardens[0], "train", replace(EVERY, method=method), embeddings=gardens[1], seed=4, round=n).table
            for n in (0, 1)
        ]
        assert found[0].digest != found[1].digest


def test_what_a_query_gets_follows_from_its_id_not_its_place(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = gardens
    once = rows_of(mine(dataset, "train", replace(EVERY, method="dense,random"), embeddings=embeddings))
    order = np.random.default_rng(0).permutation(40)
    place = np.argsort(order)
    rows = dataset.judgements["train"]
    turned = np.lexsort((rows.documents, place[rows.queries]))
    moved = replace(
        dataset,
        queries=Queries(*([column[n] for n in order] for column in (dataset.queries.ids, dataset.queries.texts))),
        judgements={"train": Judgements(place[rows.queries][turned], rows.documents[turned], rows.scores)},
        negatives=None,
    )
    there = Embeddings(embeddings.queries[order], embeddings.documents)
    again = rows_of(mine(moved, "train", replace(EVERY, method="dense,random"), embeddings=there))
    assert {int(order[query]): rows for query, rows in again.items()} == once


def test_drawn_negatives_are_spread_over_the_range(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    config = MiningConfig(method="dense", num_negatives=3, range_min=2, range_max=12, sampling_strategy="random")
    ranks = mine(gardens[0], "train", config, embeddings=gardens[1]).table.ranks
    assert set(ranks.tolist()) == set(range(2, 12))
    assert len(ranks) == 120


def test_bm25_keeps_what_shares_a_term(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset = gardens[0]
    mined = mine(dataset, "train", MiningConfig(num_negatives=30))
    assert 0 < mined.found.min() < mined.found.max() < 30
    index = Bm25Index(dataset.passages())
    positives = dataset.positives("train")
    texts = dataset.queries.texts
    for query in positives.queries.tolist():
        own = dataset.queries.ids[query]
        relevant = {int(positives.of(twin)[0]) for twin in range(40) if texts[twin] == texts[query]}
        scores = index.scores(dataset.queries.texts[query])
        passed = [
            document
            for document in np.argsort(-scores, kind="stable").tolist()
            if scores[document] > 0 and document not in relevant and dataset.documents.ids[document] != own
        ]
        assert [document for document, _ in rows_of(mined).get(query, [])] == passed
    assert mined.scale == "bm25"


def test_cross_query_ranks_documents_by_their_most_similar_query() -> None:
    texts = [f"question {n}" for n in range(5)]
    dataset = made(
        texts, [f"text {n}" for n in range(9)], train=[(0, 4), (1, 5), (1, 6), (2, 6), (2, 7), (3, 8), (4, 4)]
    )
    angles = np.array([0, 0.1, 0.2, 1.0, 0.3])
    queries = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    embeddings = Embeddings.of(queries, np.ones((9, 2), np.float32))
    found = rows_of(mine(dataset, "train", MiningConfig(method="cross-query", num_negatives=4), embeddings=embeddings))
    # Query 4 has the positive of query 0; document 6 stands where query 1 stands, and counts once.
    assert [document for document, _ in found[0]] == [5, 6, 7, 8]
    assert [rank for _, rank in found[0]] == [0, 1, 2, 3]
    # Of query 3 document 6 bears the id.
    assert [document for document, _ in found[3]] == [4, 7, 5]


def test_a_range_deeper_than_one_search_of_similar_queries() -> None:
    texts = [f"question {n}" for n in range(40)]
    pairs = [(n, 0) for n in range(38)] + [(38, 2), (39, 1)]
    dataset = made(texts, [f"text {n}" for n in range(8)], train=pairs)
    queries = np.stack([np.ones(40), np.linspace(1, 0, 40)], axis=1).astype(np.float32)
    embeddings = Embeddings.of(queries, np.ones((8, 2), np.float32))
    config = MiningConfig(method="cross-query", num_negatives=1)
    # All queries that resemble query 5 share its positive; documents 2 and 1 come only with the last two.
    assert rows_of(mine(dataset, "train", config, embeddings=embeddings))[5] == [(2, 0)]


def test_a_judge_decides_in_the_encoders_place(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = gardens
    asked: list[tuple[str, str]] = []

    def judge(queries: Any, passages: Any) -> np.ndarray:
        asked.extend(zip(queries, passages, strict=True))
        return np.array(
            [len(set(q.split()) & set(p.split())) for q, p in zip(queries, passages, strict=True)], np.float32
        )

    config = MiningConfig(method="dense", num_negatives=3, max_score=0.5, judge="somewhere")
    mined = mine(dataset, "train", config, embeddings=embeddings, judge=judge)
    assert mined.scale == "judge"
    assert set(mined.table.scores.tolist()) == {0}
    assert mined.counts["dense"]["above max_score"] > 0
    for query, document in zip(mined.table.queries.tolist(), mined.table.documents.tolist(), strict=True):
        assert not set(dataset.queries.texts[query].split()) & set(dataset.documents.texts[document].split())
    with pytest.raises(ModelError, match="not finite"):
        mine(dataset, "train", config, embeddings=embeddings, judge=lambda q, p: np.full(len(q), np.nan, np.float32))


def test_passages_with_an_answer_go(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = gardens
    dataset = replace(dataset, answers=Answers(np.array([0, 1, 1, 3]), ["Word3", "word1", "word2", "no"]))
    config = MiningConfig(method="dense", num_negatives=60, range_max=60, drop_answers=True)
    mined = mine(dataset, "train", config, embeddings=embeddings)
    found = {query: {document for document, _ in rows} for query, rows in rows_of(mined).items()}
    for query, dropped in {0: {"word3"}, 1: {"word1", "word2"}, 2: set(), 3: set()}.items():
        kept = {d for d, text in enumerate(dataset.documents.texts) if not dropped & set(text.split())}
        positive = set(dataset.positives("train").of(query).tolist())
        assert found[query] | positive | ({query + 3}) == kept | positive | {query + 3}
    assert mined.counts["dense"]["holds an answer"] > 0


def test_the_table_is_what_training_reads(gardens: tuple[RetrievalDataset, Embeddings], tmp_path: Path) -> None:
    mined = mine(gardens[0], "train", replace(EVERY, method="bm25,dense"), embeddings=gardens[1], round=2)
    write_negatives(tmp_path / "table", mined.table, gardens[0], mined.meta())
    read = read_negatives(tmp_path / "table", gardens[0])
    assert read.digest == mined.table.digest
    assert set(read.rounds.tolist()) == {2}
    assert set(read.origins.tolist()) == {ORIGINS.index("bm25"), ORIGINS.index("dense")}


def test_gold_negatives_are_those_the_data_set_calls_so(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset = gardens[0]
    assert dataset.negatives is not None
    origins = dataset.negatives.origins.copy()
    origins[::4] = ORIGINS.index("bm25")
    mined = mine(replace(dataset, negatives=replace(dataset.negatives, origins=origins)), "train", MiningConfig("gold"))
    wanted: dict[int, list[int]] = {}
    for place, (query, document) in enumerate(zip(dataset.negatives.queries, dataset.negatives.documents, strict=True)):
        known = {int(dataset.positives("train").of(query)[0]), query + 3}
        if place % 4 and document not in known and document not in wanted.get(query, []):
            wanted.setdefault(int(query), []).append(int(document))
    assert {query: [document for document, _ in rows] for query, rows in rows_of(mined).items()} == wanted
    assert np.isnan(mined.table.scores).all()


@pytest.mark.parametrize(
    ("config", "error", "told"),
    [
        (MiningConfig(method="bm52"), ConfigError, "--method: unknown method 'bm52'; did you mean 'bm25'?"),
        (MiningConfig(method="bm25,bm25"), ConfigError, "'bm25' is named twice"),
        (MiningConfig(range_min=60), ConfigError, "--range-min: 60 passes over all 60 documents"),
        (MiningConfig(range_min=5, range_max=5), ConfigError, "--range-max: 5 is not above --range-min 5"),
        (MiningConfig(range_min=2, range_max=8), ConfigError, "--num-negatives: 10 negatives out of 6 ranks (2 to 7)"),
        (MiningConfig(method="random", max_score=1.0), ConfigError, "--max-score: nobody scores the candidates"),
        (MiningConfig(judge="x"), ConfigError, "--judge: its scores would remove nothing"),
        (MiningConfig(method="dense"), ConfigError, "dense and cross-query need embeddings"),
        (MiningConfig(drop_answers=True), ConfigError, "--drop-answers: made brings no answers along"),
        (MiningConfig(method="gold"), ConfigError, "--method gold: made brings no gold negatives along"),
    ],
)
def test_mistakes_are_told(
    gardens: tuple[RetrievalDataset, Embeddings], config: MiningConfig, error: type[Exception], told: str
) -> None:
    with pytest.raises(error) as raised:
        mine(replace(gardens[0], negatives=None), "train", config)
    assert told in str(raised.value)


def test_an_empty_split_and_broken_embeddings_are_told(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = gardens
    with pytest.raises(DataError, match="no query of split 'none' has a relevant document"):
        mine(made(["a"], ["b"], none=[]), "none", MiningConfig())
    dense = MiningConfig(method="dense")
    broken = embeddings.queries.copy()
    broken[7, 3] = np.nan
    with pytest.raises(ModelError, match="the embedding of query 7 is not finite"):
        mine(dataset, "train", dense, embeddings=Embeddings(broken, embeddings.documents))
    with pytest.raises(ModelError, match="39 embeddings of 40 queries"):
        mine(dataset, "train", dense, embeddings=Embeddings(embeddings.queries[1:], embeddings.documents))
    bad = np.full((60, 16), np.inf, np.float32)
    bad[0] = 0
    with pytest.raises(ModelError, match="the embedding of document 1 is not finite"):
        mine(dataset, "train", dense, embeddings=Embeddings.of(embeddings.queries, bad))


@dataclass(frozen=True)
class Partly(HeldEmbeddings):
    """Embeddings of which some rows are 0, for want of one."""

    missing: tuple[int, ...] = ()

    @property
    def left_out(self) -> np.ndarray:
        return np.array(self.missing, dtype=np.int64)


@pytest.mark.parametrize("method", ["dense", "bm25,dense", "dense,random,gold"])
def test_a_document_that_kills_the_encoder_is_no_negative_and_bounds_nothing(
    gardens: tuple[RetrievalDataset, Embeddings], method: str
) -> None:
    dataset, whole = gardens
    positive = int(dataset.positives("train").of(4)[0])
    missing = (positive, 7, 8, 9)
    array = whole.documents.read(np.arange(60)).copy()
    array[list(missing)] = 0
    config = MiningConfig(method=method, num_negatives=50, range_max=60, relative_margin=0.0)
    mined = mine(dataset, "train", config, embeddings=Embeddings(whole.queries, Partly(array, missing)))
    assert not set(mined.table.documents.tolist()) & set(missing)
    assert np.isfinite(mined.table.scores).all()
    assert mined.counts["dense"]["has no embedding"] > 50
    # A query none of whose positives has a score gets nothing that is held to one; others do.
    assert mined.found[4] == 0
    assert mined.found.max() > 5


@pytest.mark.data
def test_many_positives_a_query(data_packs: Path) -> None:
    dataset = open_dataset(data_packs / "adi", ["test"])
    positives = dataset.positives("test")
    mined = mine(dataset, "test", MiningConfig(num_negatives=20))
    index = Bm25Index(dataset.passages())
    for place, query in enumerate(positives.queries.tolist()):
        ranking = index.search([dataset.queries.texts[query]], 82)[1][0].tolist()
        own = dataset.queries.ids[query]
        wanted = [d for d in ranking if d not in positives.of(place) and dataset.documents.ids[d] != own]
        rows = rows_of(mined)[query]
        assert [document for document, _ in rows] == wanted[: len(rows)]
        assert len(rows) > 0
