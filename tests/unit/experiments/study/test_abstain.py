"""Questions of the study `abstain`, and the analysis of evaluations: what dev chooses, and what test measures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import analysis as analysis_module
from abstain import UNTRAINED, analyze, choose
from questions import MIXTURE, StudySize, StudySource, write_questions
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.evaluated_datasets import EvaluationDataset
from raytriever.experiments.study.claims import NOT_EVALUATED
from raytriever.experiments.study.study_file import load_study
from raytriever.experiments.study.train_variant import variant_folder
from system_metrics import POOLED

QUERIES, DOCUMENTS, SEEDS = 120, 200, 3
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
            own = {query: document for query, document in judged.items() if not query.startswith("foreign:")}
            foreign = judged.keys() - own.keys()
            removed = {query: document for query, document in own.items() if document not in corpus}
            assert {query.partition(":")[0] for query in removed} == {"removed"}
            assert {query.partition(":")[0] for query in own.keys() - removed.keys()} == {"answerable"}
            assert all(document.startswith("absent:") for document in (*removed.values(), *map(judged.get, foreign)))
            assert 0 <= len(own) - 2 * len(removed) <= 1
            assert len(foreign) == (4 if split == "dev" else 8)
            assert counts[name][f"{split}: answer removed"] == len(removed)
            assert counts[name][f"{split}: with an answer"] == len(own) - len(removed)
            assert counts[name][f"{split}: of another domain"] == len(foreign)
            assert not asked.keys() & own.keys()
            asked |= own
            texts = {f"{letter} text {int(value.removeprefix('absent:')[1:]) % 180}" for value in removed.values()}
            assert not texts & set(corpus.values())
        assert len({value.removeprefix("absent:") for value in asked.values()}) == len(asked)
        assert len(corpus) == counts[name]["documents"] == 150


def test_no_question_is_trained_on_and_training_documents_exist(tmp_path: Path) -> None:
    write(tmp_path / "q")
    mixture = tmp_path / "q" / MIXTURE
    corpus, trained = read_lines(mixture / "corpus.jsonl"), read_qrels(mixture, "train")
    assert set(trained.values()) <= set(corpus)
    for name in ("One", "Other"):
        for split in ("dev", "test"):
            asked = read_qrels(tmp_path / "q" / name, split)
            own = {f"{name}:{query.partition(':')[2]}" for query in asked if not query.startswith("foreign:")}
            assert own
            assert not own & trained.keys()
            documents = {f"{name}:{value.removeprefix('absent:')}" for value in asked.values()}
            assert not documents & set(trained.values())
    assert {query.partition(":")[0] for query in trained} == {"One", "Other"}


def write_evaluation(
    folder: Path, questions: EvaluationDataset, seed: int, quality: float, margin: float = 0.0
) -> None:
    """Write the files of an evaluation that the analysis reads.

    `quality` and `margin` are by how much the score and the margin are higher for right answers."""
    [source] = questions.parts.values()
    dataset = open_dataset(source, [questions.split], max_bad_rows=1.0)
    names = sorted(read_qrels(Path(source), questions.split))
    position = {name: row for row, name in enumerate(dataset.queries.ids)}
    rng = np.random.default_rng([len(questions.name), seed])
    answerable = np.array([name.startswith("answerable:") for name in names])
    right = answerable & (rng.random(len(names)) < 0.8)
    top = 5 + quality * right + rng.normal(0, 0.3, len(names))
    second = top - 1 - margin * right - rng.random(len(names)) / 10
    best = [dataset.documents.ids[row] for row in rng.integers(0, len(dataset.documents), len(names))]
    metrics = {"success_at_1": right.astype(float).tolist()}
    content = {
        "dataset": questions.name,
        "queries": names,
        "texts": [dataset.queries.texts[position[name]] for name in names],
        "models": {"after": {"metrics": metrics, "top": [[[item, "", "", 1.0, None]] for item in best]}},
        "relevant": [
            [["d0" if shown else "d4", "", "", 1]] if value else []
            for value, shown in zip(answerable, right, strict=True)
        ],
    }
    (folder / "per_query").mkdir(parents=True, exist_ok=True)
    (folder / "runs" / "after").mkdir(parents=True, exist_ok=True)
    (folder / "per_query" / f"{questions.name}.json").write_text(json.dumps(content))
    lines = [
        f"{name} Q0 d{rank} {rank} {score:.9g} after\n"
        for name, first, other in zip(names, top, second, strict=True)
        for rank, score in enumerate([first, *(other - 0.1 * rank for rank in range(9))])
    ]
    (folder / "runs" / "after" / f"{questions.name}.trec").write_text("".join(lines))


STUDY = """
metrics: success@1
evaluated:
  One: {dataset: q/One, drop_own: false, max_bad_rows: 1.0}
  One dev: {dataset: q/One, test_split: dev, dev_split: test, drop_own: false, max_bad_rows: 1.0}
  Other: {dataset: q/Other, drop_own: false, max_bad_rows: 1.0}
  Other dev: {dataset: q/Other, test_split: dev, dev_split: test, drop_own: false, max_bad_rows: 1.0}
settings: {data: {dataset: q/mixture}}
variants:
  MiniLM, untrained: minilm
  CL, temperature 1: {loss: {loss: infonce, temperature: 1.0}}
  MW, temperature 1: {loss: {loss: mw, temperature: 1.0}}
  MW, temperature 2: {loss: {loss: mw, temperature: 2.0}}
  "MW + 1 CL, temperature 1": {loss: {loss: mw+infonce, temperature: 1.0}}
"""


def test_dev_batches_choose_where_no_dev_questions_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean over the data sets decides, and claims are about the chosen variants."""
    monkeypatch.chdir(tmp_path)
    areas = {"CL": (0.9, 0.7), "CL, 0.05": (0.6, 0.9), "MW": (0.5, 0.5), "MW, 0.05": (0.4, 0.7), "MW + 0.1 CL": (0, 0)}
    content = {
        "data_sets": {"One": "q/One", "Other": "q/Other"},
        "variants": {"untrained": "minilm"} | {row: {"loss": {"loss": "mw"}} for row in areas},
        "baseline": ["CL", "untrained"],
        "claims": [{"above": [["MW", "CL"], ["MW", "MW + 0.1 CL"]], "text": "MW wins", "metrics": "auc"}],
    }
    for name in content["data_sets"].values():
        Path(name).mkdir(parents=True)
    Path("study.yaml").write_text(json.dumps(content))
    for variant in load_study(Path("study.yaml")).variants:
        if variant.curriculum is not None:
            folder = variant_folder(tmp_path, variant, 0)
            folder.mkdir(parents=True)
            area = areas[variant.row]["Other" in variant.datasets]
            lines = [(1, {"loss": 1.0}), (1, {"dev_batch_auc": 1.0}), (2, {"loss": 1.0, "dev_batch_auc": area})]
            entries = [{"step": step, "milliseconds": 0, "metrics": metrics} for step, metrics in lines]
            (folder / "steps.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    chosen = yaml.safe_load(choose(Path("study.yaml"), tmp_path))
    assert list(chosen["variants"]) == ["untrained", "CL", "MW, 0.05", "MW + 0.1 CL"]
    assert chosen["baseline"] == ["CL", "untrained"]
    assert chosen["claims"] == [
        {"above": [["MW, 0.05", "CL"], ["MW, 0.05", "MW + 0.1 CL"]], "text": "MW wins", "metrics": "auc"}
    ]


@pytest.mark.slow
def test_a_finished_study_is_analyzed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(analysis_module, "SAMPLES", 30)
    write(tmp_path / "q")
    (tmp_path / "study.yaml").write_text(STUDY)
    output = tmp_path / "out"
    for variant in load_study(tmp_path / "study.yaml").variants:
        for seed in range(1 if variant.curriculum is None else 2):
            folder = variant_folder(output, variant, seed)
            for dataset in variant.datasets.values():
                write_evaluation(folder / "evaluation", dataset, seed, len(variant.name) / 20)
            (folder / "metrics.json").write_text("{}")
            (folder / "evaluation" / "results.json").write_text("{}")
    text = choose(tmp_path / "study.yaml", output)
    assert (text.count("  CL, temperature"), text.count("  MW, temperature")) == (1, 1)
    assert "  MiniLM, untrained: minilm\n" in text
    analysis = analyze(tmp_path / "study.yaml", output)
    assert analysis.results.rows == [UNTRAINED, "CL", "MW", "MW+CL"]
    assert [len(analysis.results.cells[row, POOLED]) for row in analysis.results.rows] == [1, 2, 2, 2]
    page = (output / "abstain.md").read_text()
    assert analysis.content["passages kept by rule"]["CL"]["Adaptive-k, B = 0"]["none, without an answer"] == 0
    assert analysis.content["passages kept by rule"]["CL"]["Adaptive-k, B = 5"]["passages"] >= 6
    assert "![Fraction of wrong documents" in page
    assert (output / "risk-coverage.png").exists()
    claims = json.loads((output / "abstain.json").read_text())["claims"]
    assert {claim["source"] for claim in claims} == {"stated before the run", "promise of MW, section 3"}
    assert {claim["verdict"] for claim in claims if "CoSENT" in claim["text"]} == {NOT_EVALUATED}
    assert NOT_EVALUATED not in {
        claim["verdict"] for claim in claims if claim["text"].startswith("MW+CL has a lower AURC")
    }
