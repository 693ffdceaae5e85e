"""Programs of the studies: the query-document gap, subsets of data sets, and questions that are made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest
import torch
from beir import write_beir
from numpy import ndarray
from synthetic import control

from gap import (
    GapEmbeddings,
    IndexCurve,
    describe_gap,
    embed,
    evaluate_gap,
    evaluate_index,
    format_tables,
    hold_out,
    main,
    query_positive_distance,
    recall_within,
    to_json,
)
from hard_questions import hard_questions
from packs import Subset, write_subset
from raytriever.core.errors import DataError
from raytriever.data.dataset import Documents, Judgements, NegativeRows, Queries, RetrievalDataset
from raytriever.data.prepare.open_dataset import open_all_splits, open_dataset
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss import distribution_distance
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.index.approximate.index_recall import OperatingPoint
from raytriever.retrieval.index.approximate.index_settings import IndexConfig


def cloud(seed: int, rows: int, at: float = 0.0) -> ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32) + np.float32(at)


def test_distances_equal_the_formulas_and_the_regularizer() -> None:
    documents, queries, held_out = cloud(0, 300), cloud(1, 40, at=0.5), cloud(2, 40)
    result = evaluate_gap(documents, queries, held_out)
    center = documents.astype(np.float64).mean(0)
    assert result.queries == pytest.approx(((queries.mean(0) - center) ** 2).sum(), rel=1e-5)
    assert result.query_scores == pytest.approx([((query - center) ** 2).sum() for query in queries], rel=1e-5)
    assert result.held_out < result.queries / 5
    regularizer = distribution_distance(torch.tensor(queries), torch.tensor(documents), 40, ALONE)
    spread = np.square(documents - center).sum(1).mean()
    assert float(regularizer) == pytest.approx(result.query_scores.mean() + spread, rel=1e-5)
    pairs = [(q > p) + 0.5 * (q == p) for q in result.query_scores for p in result.held_out_scores]
    assert result.beyond == pytest.approx(np.mean(pairs))
    of, to = np.array([0, 0, 3]), np.array([7, 8, 9])
    apart = [np.linalg.norm(queries[a] - documents[b]) for a, b in zip(of, to, strict=True)]
    assert query_positive_distance(queries, documents, of, to) == pytest.approx(np.mean(apart), rel=1e-6)


def evaluation(queries: float, held_out: float) -> IndexCurve:
    points = [OperatingPoint(10, 0.8, 50.0, 9.0), OperatingPoint(20, 0.9, 90.0, 5.0)]
    return IndexCurve(
        build_seconds=1.0,
        bytes=10,
        curve=points,
        queries=OperatingPoint(9, 0.95, queries, nan),
        held_out=OperatingPoint(8, 0.95, held_out, nan),
    )


def test_the_description_follows_from_hnsw() -> None:
    assert describe_gap({"hnsw": evaluation(105.0, 100.0)}).startswith("no gap: at equal recall HNSW scores 1.05 x")
    assert describe_gap({"hnsw": evaluation(130.0, 100.0)}).startswith("a slight gap")
    both = {"hnsw": evaluation(200.0, 100.0), "roargraph": evaluation(80.0, 100.0)}
    assert describe_gap(both).startswith("a gap: at equal recall HNSW scores 2.00 x")
    assert describe_gap(both).endswith("RoarGraph at 0.80 x")
    assert "unknown" in describe_gap({"ivf": evaluation(1.0, 1.0)})
    assert "unknown" in describe_gap({"hnsw": replace(evaluation(1.0, 1.0), queries=OperatingPoint(0, 0.9, nan, nan))})
    assert [recall_within(both["hnsw"].curve, budget) for budget in (60, 100)] == [0.8, 0.9]
    text = format_tables(both, evaluate_gap(cloud(0, 90), cloud(1, 9), cloud(2, 9)), 0.5, 5_000)
    assert "hnsw" in text.splitlines()[1]
    assert "0.800" in text.splitlines()[1]  # 50 candidates are 1 % of the documents
    assert json.dumps(to_json(both, evaluate_gap(cloud(0, 90), cloud(1, 9), cloud(2, 9)), 0.5, 5_000), allow_nan=False)


def test_too_few_passages_cannot_be_held_out() -> None:
    remaining, out = hold_out(cloud(0, 100), 20, 3)
    assert sorted([*remaining, *out]) == list(range(100))
    with pytest.raises(DataError, match="30 passages are too few to hold out 20"):
        hold_out(cloud(0, 30), 20, 3)


@pytest.mark.slow
def test_the_control_has_a_gap_and_its_own_documents_have_none() -> None:
    drawn = control(20_000, 200)
    shifted = GapEmbeddings(drawn.documents, drawn.unshifted, drawn.shifted, drawn.training)
    results = {kind: evaluate_index(shifted, IndexConfig(index=kind), 0) for kind in ("hnsw", "roargraph")}
    assert describe_gap(results).startswith("a gap")
    assert results["roargraph"].ratio <= 1.1
    alike = GapEmbeddings(drawn.documents, drawn.unshifted[:100], drawn.unshifted[100:], drawn.documents[:5_000])
    assert describe_gap({"hnsw": evaluate_index(alike, IndexConfig(index="hnsw"), 0)}).startswith("no gap")


@pytest.mark.slow
def test_the_command_writes_what_it_prints(
    tiny_dataset: Path,
    tiny_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [str(tiny_dataset), str(tiny_encoder), "--output", str(tmp_path / "out"), "--indexes", "hnsw,roargraph"]
    monkeypatch.setattr("sys.argv", ["gap.py", *words])
    main()
    printed = capsys.readouterr().out
    assert "mean distance of a query and its positives" in printed
    results = json.loads((tmp_path / "out" / "encoder.json").read_text())
    assert results["documents"] == 144
    assert results["verdict"] in printed
    assert set(results["indexes"]) == {"hnsw", "roargraph"}


def test_held_out_passages_are_not_indexed_and_training_queries_are_those_of_train(
    tiny_dataset: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("gap.QUERIES", 9)
    data, _ = embed(str(tiny_encoder), str(tiny_dataset), "test")
    dataset = open_dataset(tiny_dataset, ["train", "test"])
    retriever = load_for_encoding(ModelConfig(str(tiny_encoder)), "fp32")
    passages = encode_texts(retriever, dataset.passages(), "passage")

    def rows(vectors: ndarray, among: ndarray) -> list[int]:
        apart = np.abs(vectors[:, None] - among[None]).max(2)
        assert apart.min(1).max() < 1e-5
        return apart.argmin(1).tolist()

    def texts(split: str) -> list[str]:
        return [dataset.queries.texts[int(query)] for query in dataset.positives(split).queries]

    documents, held_out = rows(data.documents, passages), rows(data.held_out, passages)
    assert len(held_out) == 9
    assert sorted(documents + held_out) == list(range(160))
    assert rows(data.training, encode_texts(retriever, texts("train"), "query")) == list(range(96))
    asked = rows(data.queries, encode_texts(retriever, texts("test"), "query"))
    assert len(set(asked)) == 9


DOCUMENTS, QUERIES, EACH = 200, 60, 3
SPLITS = {"train": range(30), "dev": range(30, 40), "test": range(40, 60)}


def make_dataset() -> RetrievalDataset:
    """Return sixty queries with three relevant documents of grades 1, 1 and 2 each, and one judged 0."""
    judgements = {}
    for split, queries in SPLITS.items():
        rows = [(query, 3 * query + at, grade) for query in queries for at, grade in enumerate((1, 1, 2))]
        rows += [(query, (3 * query + 50) % DOCUMENTS, 0) for query in queries]
        table = np.array(sorted(rows), dtype=np.int64)
        judgements[split] = Judgements(table[:, 0], table[:, 1], table[:, 2])
    gold = np.arange(5, dtype=np.int64)
    negatives = NegativeRows(
        gold, gold + 190, np.full(5, ORIGINS.index("gold"), np.int64), np.zeros(5, np.int64), np.zeros(5, np.float32)
    )
    return RetrievalDataset(
        "made",
        Documents([f"d{n}" for n in range(DOCUMENTS)], [""] * DOCUMENTS, [f"document {n}" for n in range(DOCUMENTS)]),
        Queries([f"q{n}" for n in range(QUERIES)], [f"query {n}" for n in range(QUERIES)]),
        judgements,
        negatives=negatives,
    )


def open_subset(folder: Path, subset: Subset) -> RetrievalDataset:
    write_subset(make_dataset(), subset, folder)
    return open_dataset(folder, ["train", "dev", "test"])


def first_by_hash(split: str, count: int) -> set[str]:
    names = [f"q{n}" for n in SPLITS[split]]
    return set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count])


def names_of(dataset: RetrievalDataset, split: str) -> set[str]:
    return {dataset.queries.ids[int(position)] for position in dataset.positives(split).queries}


def test_queries_with_the_smallest_hashes_and_all_judged_documents_are_kept(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(train=10, dev=4, test=6, documents=100))
    for split, count in (("train", 10), ("dev", 4), ("test", 6)):
        assert names_of(dataset, split) == first_by_hash(split, count)
        assert (np.diff(dataset.positives(split).offsets) == EACH).all()
    assert len(dataset.documents) == 100
    few = open_subset(tmp_path / "small", Subset(10, 4, 6, documents=1))
    assert len(few.documents) > 0  # never fewer than are judged
    assert len(few.documents) == len({int(d) for rows in few.judgements.values() for d in rows.documents})


def test_queries_with_the_text_of_a_test_query_are_not_trained_on(tmp_path: Path) -> None:
    made = make_dataset()
    texts = list(made.queries.texts)
    texts[3], texts[33] = "QUERY  40", "query 41"
    repeated = replace(made, queries=Queries(made.queries.ids, texts))
    write_subset(repeated, Subset(30, 10, 20, 200), tmp_path / "cut")
    dataset = open_dataset(tmp_path / "cut", ["train", "dev", "test"])
    assert names_of(dataset, "train") == {f"q{n}" for n in SPLITS["train"] if n != 3}
    assert names_of(dataset, "dev") == {f"q{n}" for n in SPLITS["dev"] if n != 33}
    assert len(names_of(dataset, "test")) == 20


def test_a_budget_removes_labels_and_queries_of_the_training_split_only(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(20, 4, 6, 100, fraction=0.5, labels=2))
    assert names_of(dataset, "train") == first_by_hash("train", 10)
    assert (np.diff(dataset.positives("train").offsets) == 2).all()
    assert (np.diff(dataset.positives("test").offsets) == EACH).all()
    relevant = dataset.judgements["train"].where(dataset.judgements["train"].scores > 0)
    assert set(relevant.ranks.tolist()) == {0, 1}


def test_the_first_positive_is_human_and_the_others_are_of_an_llm(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(20, 4, 6, 100, by_llm=True))
    positives = dataset.positives("train")
    assert ((positives.sources == 0) == (positives.ranks == 0)).all()
    assert (dataset.positives("test").sources == 0).all()


TOWNS = ["Graz", "Linz", "Wels", "Steyr", "Krems", "Zwettl", "Melk", "Horn", "Tulln", "Baden"]
PAGES = [
    f"The town of {town} has a bridge that masons repaired in {1800 + 7 * number}. Trains leave {town} in the morning. "
    f"A market in {town} opens daily. The mayor of {town} lives near the market in {town} today."
    for number, town in enumerate(TOWNS)
]


def opened(folder: Path, pages: list[str], questions: list[tuple[str, int]]) -> RetrievalDataset:
    judged = [(n, page) for n, (_, page) in enumerate(questions)]
    return open_all_splits(write_beir(folder / "set", pages, [text for text, _ in questions], test=judged))


def test_a_name_is_replaced_by_one_of_another_passage(tmp_path: Path) -> None:
    page = (
        "A cathedral of granite was painted by monks. The cathedral stands in Linz today. A market in Linz opens daily."
    )
    questions = [
        ("Who painted the granite cathedral in Linz?", 10),
        ("who painted the granite cathedral in linz", 10),
        ("who painted the granite cathedral", 10),
    ]
    dataset = opened(tmp_path, [*PAGES, page], questions)
    made = hard_questions(dataset, [0, 1, 2], 0)
    assert list(made) == [0, 1]
    begin, end = "Who painted the granite cathedral in ", "?"
    assert made[0].startswith(begin)
    assert made[0].endswith(end)
    town = made[0].removeprefix(begin).removesuffix(end)
    assert town in set(TOWNS) - {"Linz"}
    assert made[1].removeprefix(begin.lower()).capitalize() in set(TOWNS) - {"Linz"}
    assert made == hard_questions(dataset, [0, 1, 2], 0)
    assert len({hard_questions(dataset, [0], seed)[0] for seed in range(8)}) > 1


def test_no_question_is_made_that_a_passage_answers(tmp_path: Path) -> None:
    # The page of every town has the words of the question: another town gives a question that has an answer.
    others = [f"Grass grows slowly on hill {letter}." for letter in "abcdefgh"]
    dataset = opened(tmp_path, [*PAGES, *others], [("Where did masons repair the bridge of Linz?", 1)])
    assert hard_questions(dataset, [0], 0) == {}


def test_years_and_numbers(tmp_path: Path) -> None:
    page = "The tower of iron was opened to visitors in 1850 and has 412 steps."
    dataset = opened(tmp_path, [*PAGES, page], [("who opened the iron tower in 1850", 10), ("what has 412 steps", 10)])
    made = hard_questions(dataset, [0, 1], 0)
    year = int(made[0].removeprefix("who opened the iron tower in "))
    assert year in {1800 + 7 * number for number in range(10)}
    assert 3 <= abs(year - 1850) <= 60
    assert 1 not in made  # no other number of three digits
