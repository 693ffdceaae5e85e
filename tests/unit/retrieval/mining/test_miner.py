"""Mining by every method, user errors, the sources of a run's negatives, and a mining that was stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beir import write_beir
from mining_data import EVERY, dataset_of, rows_of

from raytriever.core.errors import ConfigError, DataError, ModelError
from raytriever.core.store.unfinished_pieces import Pieces
from raytriever.data.columns import Answers
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import Judgements, NegativeRows, Queries, RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable, write_negatives
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.retrieval.mining import miner
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.retrieval.mining.candidate_search import ArrayEmbeddings, Embeddings
from raytriever.retrieval.mining.miner import CandidateFilter, MinedBlock, build_negatives_table, mine
from raytriever.retrieval.mining.mining_settings import METHODS, MiningConfig


def test_counts_add_up_for_every_method(word_data: tuple[RetrievalDataset, Embeddings]) -> None:
    mined = mine(word_data[0], "train", replace(EVERY, relative_margin=0.3), embeddings=word_data[1])
    assert tuple(mined.counts) == METHODS
    for method, counts in mined.counts.items():
        assert counts["candidates"] == sum(count for name, count in counts.items() if name != "candidates"), method
        assert counts["kept"] == mined.table.counts()[method], method
    assert mined.counts_per_query.sum() == len(mined.table)
    assert mined.scorer == "encoder"
    positives = word_data[0].positives("train")
    lowest = {
        int(q): word_data[1].queries[n] @ word_data[1].documents.read(positives.of(n)).T
        for n, q in enumerate(positives.queries)
    }
    for query, score in zip(mined.table.queries.tolist(), mined.table.scores, strict=True):
        assert score <= lowest[query].min() - 0.3 * abs(lowest[query].min()) + 1e-6


def test_block_sizes_do_not_change_the_table(
    word_data: tuple[RetrievalDataset, Embeddings], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = mine(word_data[0], "train", EVERY, embeddings=word_data[1], seed=4)
    monkeypatch.setattr(miner, "BLOCK", 30)
    monkeypatch.setattr(miner, "BM25_QUERIES", 2)
    repeated = mine(word_data[0], "train", EVERY, embeddings=word_data[1], seed=4)
    assert repeated.table.digest == once.table.digest
    assert repeated.counts == once.counts
    assert mine(word_data[0], "train", EVERY, embeddings=word_data[1], seed=5).table.digest != once.table.digest
    for method in ("dense", "random"):
        results = [
            mine(word_data[0], "train", replace(EVERY, method=method), embeddings=word_data[1], seed=4, round=n).table
            for n in (0, 1)
        ]
        assert results[0].digest != results[1].digest


def test_negatives_follow_from_the_id_of_a_query_not_its_position(
    word_data: tuple[RetrievalDataset, Embeddings],
) -> None:
    dataset, embeddings = word_data
    once = rows_of(mine(dataset, "train", replace(EVERY, method="dense,random"), embeddings=embeddings))
    order = np.random.default_rng(0).permutation(40)
    position = np.argsort(order)
    rows = dataset.judgements["train"]
    turned = np.lexsort((rows.documents, position[rows.queries]))
    moved = replace(
        dataset,
        queries=Queries(*([column[n] for n in order] for column in (dataset.queries.ids, dataset.queries.texts))),
        judgements={"train": Judgements(position[rows.queries][turned], rows.documents[turned], rows.scores)},
        negatives=None,
    )
    there = Embeddings(embeddings.queries[order], embeddings.documents)
    repeated = rows_of(mine(moved, "train", replace(EVERY, method="dense,random"), embeddings=there))
    assert {int(order[query]): rows for query, rows in repeated.items()} == once


def test_random_negatives_cover_the_whole_range(word_data: tuple[RetrievalDataset, Embeddings]) -> None:
    config = MiningConfig(method="dense", num_negatives=3, range_min=2, range_max=12, sampling_strategy="random")
    ranks = mine(word_data[0], "train", config, embeddings=word_data[1]).table.ranks
    assert set(ranks.tolist()) == set(range(2, 12))
    assert len(ranks) == 120


def test_bm25_keeps_documents_that_share_a_term(word_data: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset = word_data[0]
    mined = mine(dataset, "train", MiningConfig(num_negatives=30))
    assert 0 < mined.counts_per_query.min() < mined.counts_per_query.max() < 30
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
    assert mined.scorer == "bm25"


def test_cross_query_ranks_documents_by_their_most_similar_query() -> None:
    texts = [f"question {n}" for n in range(5)]
    dataset = dataset_of(
        texts, [f"text {n}" for n in range(9)], train=[(0, 4), (1, 5), (1, 6), (2, 6), (2, 7), (3, 8), (4, 4)]
    )
    angles = np.array([0, 0.1, 0.2, 1.0, 0.3])
    queries = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    embeddings = Embeddings(queries, ArrayEmbeddings(np.ones((9, 2), np.float32)))
    result = rows_of(mine(dataset, "train", MiningConfig(method="cross-query", num_negatives=4), embeddings=embeddings))
    # Query 4 has the positive of query 0; document 6 has the rank of query 1, and counts once.
    assert [document for document, _ in result[0]] == [5, 6, 7, 8]
    assert [rank for _, rank in result[0]] == [0, 1, 2, 3]
    # Document 6 has the id of query 3.
    assert [document for document, _ in result[3]] == [4, 7, 5]


def test_a_range_deeper_than_one_search_of_similar_queries() -> None:
    texts = [f"question {n}" for n in range(40)]
    pairs = [(n, 0) for n in range(38)] + [(38, 2), (39, 1)]
    dataset = dataset_of(texts, [f"text {n}" for n in range(8)], train=pairs)
    queries = np.stack([np.ones(40), np.linspace(1, 0, 40)], axis=1).astype(np.float32)
    embeddings = Embeddings(queries, ArrayEmbeddings(np.ones((8, 2), np.float32)))
    config = MiningConfig(method="cross-query", num_negatives=1)
    # All queries that resemble query 5 share its positive; documents 2 and 1 come only with the last two.
    assert rows_of(mine(dataset, "train", config, embeddings=embeddings))[5] == [(2, 0)]


def test_a_judge_replaces_the_scores_of_the_encoder(word_data: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = word_data
    asked: list[tuple[str, str]] = []

    def judge(queries: Any, passages: Any) -> np.ndarray:
        asked.extend(zip(queries, passages, strict=True))
        return np.array(
            [len(set(q.split()) & set(p.split())) for q, p in zip(queries, passages, strict=True)], np.float32
        )

    config = MiningConfig(method="dense", num_negatives=3, max_score=0.5, judge="somewhere")
    mined = mine(dataset, "train", config, embeddings=embeddings, judge=judge)
    assert mined.scorer == "judge"
    assert set(mined.table.scores.tolist()) == {0}
    assert mined.counts["dense"]["above max_score"] > 0
    for query, document in zip(mined.table.queries.tolist(), mined.table.documents.tolist(), strict=True):
        assert not set(dataset.queries.texts[query].split()) & set(dataset.documents.texts[document].split())
    with pytest.raises(ModelError, match="not finite"):
        mine(dataset, "train", config, embeddings=embeddings, judge=lambda q, p: np.full(len(q), np.nan, np.float32))


def test_passages_with_an_answer_are_removed(word_data: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = word_data
    dataset = replace(dataset, answers=Answers(np.array([0, 1, 1, 3]), ["Word3", "word1", "word2", "no"]))
    config = MiningConfig(method="dense", num_negatives=60, range_max=60, drop_answers=True)
    mined = mine(dataset, "train", config, embeddings=embeddings)
    results = {query: {document for document, _ in rows} for query, rows in rows_of(mined).items()}
    for query, dropped in {0: {"word3"}, 1: {"word1", "word2"}, 2: set(), 3: set()}.items():
        without_answer = {d for d, text in enumerate(dataset.documents.texts) if not dropped & set(text.split())}
        positive = set(dataset.positives("train").of(query).tolist())
        assert results[query] | positive | ({query + 3}) == without_answer | positive | {query + 3}
    assert mined.counts["dense"]["holds an answer"] > 0


def test_gold_negatives_come_from_the_data_set(word_data: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset = word_data[0]
    assert dataset.negatives is not None
    origins = dataset.negatives.origins.copy()
    origins[::4] = ORIGINS.index("bm25")
    mined = mine(replace(dataset, negatives=replace(dataset.negatives, origins=origins)), "train", MiningConfig("gold"))
    wanted: dict[int, list[int]] = {}
    for position, (query, document) in enumerate(
        zip(dataset.negatives.queries, dataset.negatives.documents, strict=True)
    ):
        known = {int(dataset.positives("train").of(query)[0]), query + 3}
        if position % 4 and document not in known and document not in wanted.get(query, []):
            wanted.setdefault(int(query), []).append(int(document))
    assert {query: [document for document, _ in rows] for query, rows in rows_of(mined).items()} == wanted
    assert np.isnan(mined.table.scores).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MiningConfig(method="bm25,bm25"), "'bm25' is named twice"),
        (MiningConfig(method="random", max_score=1.0), "max_score: has no effect with method random and without judge"),
        (MiningConfig(judge="x"), "judge: has no effect without relative_margin and without absolute_margin"),
    ],
)
def test_settings_that_contradict_each_other_name_the_flag(config: MiningConfig, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.check()
    assert message in str(raised.value)


def test_an_empty_split_and_broken_embeddings_are_refused(word_data: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = word_data
    with pytest.raises(DataError, match="no query of split 'none' has a relevant document"):
        mine(dataset_of(["a"], ["b"], none=[]), "none", MiningConfig())
    dense = MiningConfig(method="dense")
    broken = embeddings.queries.copy()
    broken[7, 3] = np.nan
    with pytest.raises(ModelError, match=r"the embedding of query \d+ is not finite"):
        mine(dataset, "train", dense, embeddings=Embeddings(broken, embeddings.documents))
    bad = np.full((60, 16), np.inf, np.float32)
    bad[0] = 0
    with pytest.raises(ModelError, match="the embedding of document 1 is not finite"):
        mine(dataset, "train", dense, embeddings=Embeddings(embeddings.queries, ArrayEmbeddings(bad)))


@pytest.fixture
def dataset(tmp_path: Path) -> RetrievalDataset:
    """Data set of 160 documents that share a word with every query; the training split has 96 of the queries."""
    documents, queries = ([f"{text} {n}" for n in range(160)] for text in ("garden number", "garden of"))
    return open_dataset(
        write_beir(tmp_path / "words", documents, queries, train=[(n, n) for n in range(96)]), ["train"]
    )


def with_negatives(dataset: RetrievalDataset, origin: str) -> RetrievalDataset:
    queries = np.arange(96)
    rows = NegativeRows(
        queries,
        (queries + 5) % 160,
        np.full(96, ORIGINS.index(origin)),
        np.zeros(96, np.int64),
        np.full(96, np.nan, np.float32),
    )
    return replace(dataset, negatives=rows)


def count_by_origin(dataset: RetrievalDataset, table: str = "", mix: str = "") -> dict[str, int]:
    config = DataConfig(negatives_per_query=2, negatives_mix=mix)
    counts = build_negatives_table(dataset, config, table, lambda: Bm25Index(dataset.passages())).counts()
    return {name: counts[name] for name in ORIGINS if name in counts}


def test_bm25_is_mined_if_the_data_set_or_the_mix_needs_it(dataset: RetrievalDataset) -> None:
    assert list(count_by_origin(dataset)) == ["bm25"]
    assert count_by_origin(with_negatives(dataset, "gold")) == {"gold": 96}
    assert list(count_by_origin(with_negatives(dataset, "gold"), mix="gold=1,bm25=1")) == ["gold", "bm25"]
    assert count_by_origin(with_negatives(dataset, "bm25"), mix="gold=1,bm25=1") == {"bm25": 96}
    assert count_by_origin(with_negatives(dataset, "gold"), mix="gold=1,random=1") == {"gold": 96}
    assert count_by_origin(dataset, mix="random=1") == {}


def test_a_table_is_merged_with_the_negatives_of_the_data_set(dataset: RetrievalDataset, tmp_path: Path) -> None:
    mined = NegativesTable.of(dataset, np.arange(96), (np.arange(96) + 9) % 160, "dense")
    write_negatives(tmp_path / "mined", mined, dataset)
    assert count_by_origin(with_negatives(dataset, "gold"), table=str(tmp_path / "mined")) == {"gold": 96, "dense": 96}


Data = tuple[RetrievalDataset, Embeddings]


@pytest.fixture
def mined_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the first query of each block that is mined, in blocks of a few queries."""
    mined: list[int] = []
    mine_block = CandidateFilter._mine

    def record(self, ann_index, rows, first, end):  # type: ignore[no-untyped-def]
        mined.append(int(rows[0]))
        return mine_block(self, ann_index, rows, first, end)

    monkeypatch.setattr(miner, "BLOCK", 60)
    monkeypatch.setattr(miner, "BM25_QUERIES", 5)
    monkeypatch.setattr(CandidateFilter, "_mine", record)
    return mined


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("settings", [{}, {"relative_margin": 0.3}])
def test_finished_blocks_are_not_mined_again(
    word_data: Data, mined_blocks: list[int], tmp_path: Path, settings: dict[str, float]
) -> None:
    config = replace(EVERY, **settings)
    whole = mine(word_data[0], "train", config, embeddings=word_data[1], seed=4)
    every = mined_blocks.copy()
    folder = tmp_path / "blocks"
    mine(word_data[0], "train", config, embeddings=word_data[1], seed=4, finished=folder)
    files = sorted(folder.iterdir())
    assert len(files) == len(every)
    assert {file.name.partition("-0")[0] for file in files} == set(METHODS)
    bm25, dense = (sorted(folder.glob(f"{method}-*")) for method in ("bm25", "dense"))
    shutil.rmtree(dense[2])
    damaged = folder / "bm25-00000005" / "block.npz"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    mined_blocks.clear()
    again = mine(word_data[0], "train", config, embeddings=word_data[1], seed=4, finished=folder)
    assert again.table.digest == whole.table.digest
    assert again.counts == whole.counts
    assert len(mined_blocks) == len(bm25) - 1 + len(dense) - 2  # a killed command leaves no gap
    mined_blocks.clear()
    last = mine(word_data[0], "train", config, embeddings=word_data[1], seed=4, finished=folder)
    assert last.table.digest == whole.table.digest
    assert mined_blocks == []


def test_mining_goes_on_where_no_block_can_be_written(
    word_data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    mined = mine(word_data[0], "train", EVERY, embeddings=word_data[1], finished=file / "blocks")
    assert capsys.readouterr().err.count("if a mining is stopped, it starts over, because") == 1
    assert mined.table.digest == mine(word_data[0], "train", EVERY, embeddings=word_data[1]).table.digest
    assert Pieces(file / "blocks").read("dense-00000000", MinedBlock.load) is None
