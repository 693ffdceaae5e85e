"""Questions of the study `abstain`, the confidences of a ranking, and the analysis of evaluations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.errors import DataError, StorageError
from raytriever.metrics.confidence import confidences
from raytriever.metrics.selective import area_under_risk_coverage
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.studies.claims import HELD
from raytriever.studies.definition import Evaluated, MeasuredDataset
from raytriever.studies.evaluation_files import score_best_documents
from raytriever.studies.recipes.abstain import analysis as analysis_module
from raytriever.studies.recipes.abstain.analysis import analyse
from raytriever.studies.recipes.abstain.measures import POOLED, pooled, read_answers
from raytriever.studies.recipes.abstain.questions import MIXTURE, StudySize, StudySource, write_questions
from raytriever.studies.recipes.abstain.study import claims_of

QUERIES, DOCUMENTS = 120, 200
SIZE = StudySize(train=30, dev=20, test=40, foreign_dev=4, foreign_test=8, documents=150)
ONE, OTHER = StudySource("One", "a", ("train", "", "test")), StudySource("Other", "b", ("", "", "test"))


def make_dataset(letter: str, splits: dict[str, range]) -> RetrievalDataset:
    """Return queries with a document each. Every fourth one shares that of the query before, one document is twice."""
    judgements = {}
    for split, queries in splits.items():
        documents = [query - 1 if query % 4 == 3 else query for query in queries]
        judgements[split] = Judgements(np.array(queries), np.array(documents), np.ones(len(queries), np.int64))
    texts = [f"{letter} text {row % 180}" for row in range(DOCUMENTS)]  # the last 20 have the texts of the first 20
    return RetrievalDataset(
        letter,
        Documents([f"{letter}{row}" for row in range(DOCUMENTS)], [""] * DOCUMENTS, texts),
        Queries([f"q{letter}{row}" for row in range(QUERIES)], [f"{letter} query {row}" for row in range(QUERIES)]),
        judgements,
    )


def write(folder: Path, size: StudySize = SIZE) -> dict[str, dict[str, int]]:
    sources = {
        ONE: lambda: make_dataset("a", {"train": range(60), "test": range(60, QUERIES)}),
        OTHER: lambda: make_dataset("b", {"test": range(QUERIES)}),
    }
    return write_questions(folder, sources, size)


def read_lines(path: Path) -> dict[str, str]:
    return {row["_id"]: row["text"] for row in map(json.loads, path.read_text().splitlines())}


def read_qrels(folder: Path, split: str) -> dict[str, str]:
    rows = [line.split("\t") for line in (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]]
    assert len({row[0] for row in rows}) == len(rows)  # one relevant document each
    return {row[0]: row[1] for row in rows}


def test_half_of_the_questions_have_no_answer_and_no_two_share_a_document(tmp_path: Path) -> None:
    counts = write(tmp_path / "q")
    for name, letter in (("One", "a"), ("Other", "b")):
        corpus = read_lines(tmp_path / "q" / name / "corpus.jsonl")
        asked: dict[str, str] = {}
        for split in ("dev", "test"):
            judged = read_qrels(tmp_path / "q" / name, split)
            own = {query: document for query, document in judged.items() if query.startswith("q")}
            foreign = judged.keys() - own.keys()
            removed = {query: document for query, document in own.items() if document not in corpus}
            assert all(document.startswith("absent:") for document in (*removed.values(), *map(judged.get, foreign)))
            assert 0 <= len(own) - 2 * len(removed) <= 1
            assert len(foreign) == (4 if split == "dev" else 8)
            assert counts[name][f"{split}: answer removed"] == len(removed)
            assert counts[name][f"{split}: with an answer"] == len(own) - len(removed)
            assert counts[name][f"{split}: of another domain"] == len(foreign)
            assert not asked.keys() & own.keys()
            asked |= own
            texts = {f"{letter} text {int(one.removeprefix('absent:')[1:]) % 180}" for one in removed.values()}
            assert not texts & set(corpus.values())
        assert len({one.removeprefix("absent:") for one in asked.values()}) == len(asked)
        assert len(corpus) == counts[name]["documents"] == 150


def test_no_question_is_trained_on_and_training_documents_exist(tmp_path: Path) -> None:
    write(tmp_path / "q")
    mixture = tmp_path / "q" / MIXTURE
    corpus, trained = read_lines(mixture / "corpus.jsonl"), read_qrels(mixture, "train")
    assert set(trained.values()) <= set(corpus)
    for name in ("One", "Other"):
        for split in ("dev", "test"):
            asked = read_qrels(tmp_path / "q" / name, split)
            own = {f"{name}:{query}" for query in asked if query.startswith("q")}
            assert not own & trained.keys()
            documents = {f"{name}:{one.removeprefix('absent:')}" for one in asked.values()}
            assert not documents & set(trained.values())
    assert {query.partition(":")[0] for query in trained} == {"One", "Other"}


def test_the_same_packs_give_the_same_bytes_and_are_read_once(tmp_path: Path) -> None:
    counts = write(tmp_path / "one")
    write(tmp_path / "two")
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) > 12
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()

    def refuse() -> RetrievalDataset:
        raise AssertionError("opened again")

    assert write_questions(tmp_path / "one", {ONE: refuse, OTHER: refuse}, SIZE) == counts


def test_too_few_questions_are_refused_in_one_line(tmp_path: Path) -> None:
    few = StudySize(train=30, dev=10, test=40, foreign_dev=4, foreign_test=8, documents=150)
    with pytest.raises(DataError, match="One: has 5 dev questions with or without an answer, too few") as error:
        write(tmp_path / "q", few)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "q").exists()


def test_confidences_of_a_ranking() -> None:
    scores = np.array([[0.9, 0.7, 0.6, 0.5, 0.3, 0.2], [3.0, 1.0, np.nan, np.nan, np.nan, np.nan]])
    found = confidences(scores, 0.5)
    assert found["score"].tolist() == [0.9, 3.0]
    assert found["margin"] == pytest.approx([0.2, 2.0])
    for row, values in enumerate(np.nan_to_num(scores)):
        shares = np.exp(values / 0.5) / np.exp(values / 0.5).sum()
        assert found["softmax"][row] == pytest.approx(shares.max())
        assert found["entropy"][row] == pytest.approx((shares * np.log(shares)).sum())
        assert found["deviation"][row] == pytest.approx(np.std(values))
        assert found["nqc"][row] == pytest.approx(np.std(values) / np.mean(values))
        assert found["wig"][row] == pytest.approx(np.mean(values[:5]) - np.mean(values))


def write_evaluation(folder: Path, model: str, dataset: str, seed: int, quality: float) -> Evaluated:
    """Write the files of an evaluation that the analysis reads: forty questions, half of them without an answer."""
    rng = np.random.default_rng([len(dataset), seed])
    answerable = np.arange(40) % 2 == 0
    right = answerable & (rng.random(40) < 0.8)
    top = quality * right + rng.normal(0, 0.3, 40)
    queries = [f"q {row}" for row in range(40)]  # white space is encoded in a run
    metrics = {"success_at_1": right.astype(float).tolist(), "ndcg_at_10": (0.9 * right).tolist()}
    content = {
        "queries": queries,
        "texts": queries,
        "models": {model: {"metrics": metrics, "top": [[]] * 40}},
        "relevant": [[["d", "", "", 1]] if one else [] for one in answerable],
    }
    (folder / "per_query").mkdir(parents=True)
    (folder / "runs").mkdir()
    (folder / "per_query" / f"{dataset}.json").write_text(json.dumps(content))
    lines = [
        f"q%20{row} Q0 d{rank} {rank} {score - 0.1 * rank:.9g} {model}\n"
        for row, score in enumerate(top)
        for rank in range(10)
    ]
    (folder / "runs" / f"{model}.{dataset}.trec").write_text("".join(lines))
    return Evaluated(seed, folder, model, dataset, folder / "cross.json")


def test_a_cross_encoder_scores_the_best_document(tiny_encoder: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    write(tmp_path / "q")
    folder, judge = tmp_path / "evaluation", tmp_path / "judge"
    evaluated = write_evaluation(folder, "CL", "A", 0, 1.0)
    file = folder / "per_query" / "A.json"
    content = json.loads(file.read_text())
    corpus = read_lines(tmp_path / "q" / "One" / "corpus.jsonl")
    best = list(corpus)[:39]
    content["models"]["CL"]["top"] = [[[name, "", "", 0.5, None]] for name in best] + [[]]
    file.write_text(json.dumps(content))
    shutil.copytree(tiny_encoder, judge)
    (judge / "model.safetensors").unlink()
    config = BertConfig.from_pretrained(tiny_encoder)
    config.num_labels = 1
    BertForSequenceClassification(config).save_pretrained(judge)
    dataset = MeasuredDataset("A", str(tmp_path / "q" / "One"), "test", (), cross_encoder=str(judge))
    score_best_documents(dataset, evaluated)
    expected = CrossEncoder(judge, torch.device("cpu"), "fp32").logits(
        content["texts"][:39], [corpus[name] for name in best]
    )
    scores = read_answers(evaluated, 0.1).confidence["cross-encoder"]
    assert scores[:39] == pytest.approx(expected, abs=1e-5)
    assert scores[39] == -np.inf
    evaluated.cross_scores.write_text('{"model": "judge", "scores": [0.5]}')
    with pytest.raises(StorageError, match="1 scores for 40 queries; remove it"):
        read_answers(evaluated, 0.1)


def test_the_analysis_of_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_module, "SAMPLES", 100)
    names = [("A", "A dev"), ("BB", "BB dev")]
    evaluations = {
        (row, dataset): [
            write_evaluation(tmp_path / row / str(seed) / dataset, row, dataset, seed, quality) for seed in range(4)
        ]
        for row, quality in (("CL", 0.2), ("MW", 2.0))
        for pair in names
        for dataset in pair
    }
    analysis = analyse(names, {"CL": 0.1, "MW": 0.1}, "CL", "MW", ["CL", "MW"], evaluations)
    results = analysis.results
    answers = read_answers(evaluations["MW", "A"][1], 0.1)
    area = float(area_under_risk_coverage(answers.scores, answers.right)[0])
    assert results.values("MW", "A", "aurc")[1] == pytest.approx(area)
    assert len(results.cells["MW", POOLED][0].per_query["aurc"]) == 80
    assert "precision_at_coverage_25" not in results.cells["MW", POOLED][0].per_query
    value, low, high = analysis.content["intervals"]["MW"]["A"]["aurc"]
    assert low < value < high
    assert value == results.mean("MW", "A", "aurc")
    value, low, high = analysis.content["minus CL"]["MW"][POOLED]["f1"]
    assert 0 < low < value < high
    own = analysis.content["f1 by source and target"]["MW"]["A"]["A"]
    lost = own - analysis.content["f1 by source and target"]["MW"]["BB"]["A"]
    assert results.mean("MW", "A", "transfer_loss") == pytest.approx(lost)
    claims = claims_of(["A", "BB"], ["CL", "MW"], [])
    assert [claim.verdict(results).word for claim in claims[:3]] == [HELD] * 3
    best = analysis.content["aurc by the best confidence, minus MW by its score"]
    for row in ("CL", "MW"):
        areas = []
        for seed in range(4):
            test, dev = (
                pooled([read_answers(evaluations[row, pair[at]][seed], 0.1) for pair in names]) for at in (0, 1)
            )
            on_dev = {name: area_under_risk_coverage(one, dev.right)[0] for name, one in dev.confidence.items()}
            chosen = test.confidence[min(on_dev, key=on_dev.__getitem__)]
            areas.append(float(area_under_risk_coverage(chosen, test.right)[0]))
        value, low, high = best[row]["aurc"]
        assert low < value < high
        assert value == pytest.approx(np.mean(areas))
        assert best[row]["difference"][0] == pytest.approx(value - results.mean("MW", POOLED, "aurc"))
    again = analyse(names, {"CL": 0.1, "MW": 0.1}, "CL", "MW", ["CL", "MW"], evaluations)
    assert json.dumps(analysis.content, allow_nan=False) == json.dumps(again.content)
    assert analysis.tables == again.tables
