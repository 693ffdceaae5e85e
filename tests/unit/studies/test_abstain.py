"""Questions of the study `abstain`, and the analysis of evaluations: what dev chooses, and what test measures."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import analysis as analysis_module
from abstain import UNTRAINED, analyze, claims_of
from analysis import Analysis, analyse
from measures import POOLED, QuestionReader, SystemMeasures
from questions import MIXTURE, StudySize, StudySource, write_questions
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.errors import DataError, StorageError
from raytriever.evaluation.differences.seeds import SeededResults
from raytriever.metrics.confidence import COMBINED, fit_confidence, held_out_confidence
from raytriever.metrics.selective import area_under_risk_coverage
from raytriever.mining.bm25 import Bm25Index
from raytriever.studies.arm import arm_folder, evaluation_of
from raytriever.studies.claims import DID_NOT, HELD
from raytriever.studies.definition import Evaluated, MeasuredDataset
from raytriever.studies.file import load_study

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
            own = {f"{name}:{query.partition(':')[2]}" for query in asked if not query.startswith("foreign:")}
            assert own
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


PLACES = ("Paris", "Oslo", "Lima", "Cairo", "Quito", "Accra")


def name_of(letter: str, number: int) -> str:
    return letter.upper() + "".join("aeiou"[number // 5**digit % 5] + "lmnrs"[digit] for digit in range(4))


def make_answered(letter: str) -> RetrievalDataset:
    """Return passages of people in six towns, and a question about each of them."""
    texts = [
        f"The painter {name_of(letter, row)} lived in {PLACES[row % 6]} and sold {row + 100} drawings to a museum."
        for row in range(QUERIES)
    ]
    asked = [f"How many drawings did {name_of(letter, row)} sell in {PLACES[row % 6]}?" for row in range(QUERIES)]
    rows = np.arange(QUERIES)
    judgements = {"test": Judgements(rows, rows, np.ones(QUERIES, np.int64))}
    ids = [[f"{kind}{letter}{row}" for row in rows] for kind in ("d", "q")]
    return RetrievalDataset(letter, Documents(ids[0], [""] * QUERIES, texts), Queries(ids[1], asked), judgements)


def test_hard_questions_are_those_with_an_answer_and_another_entity(tmp_path: Path) -> None:
    sources = {replace(OTHER, name=letter, domain=letter): partial(make_answered, letter) for letter in "xy"}
    counts = write_questions(tmp_path / "q", sources, SIZE)
    folder = tmp_path / "q" / "x"
    texts, corpus = read_lines(folder / "queries.jsonl"), read_lines(folder / "corpus.jsonl")
    originals: dict[str, set[str]] = {}
    for split in ("dev", "test"):
        judged = read_qrels(folder, split)
        hard = {query for query in judged if query.startswith("hard:")}
        assert len(hard) == counts["x"][f"{split}: entity replaced"] > 1
        originals[split] = {query.replace("hard:", "answerable:") for query in hard}
        assert originals[split] <= judged.keys()
        for query in hard:
            assert judged[query] not in corpus
            before, after = (texts[name].rstrip("?").split() for name in (query.replace("hard:", "answerable:"), query))
            [(old, new)] = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
            assert old in PLACES
            assert new in PLACES
            assert not any(before[4] in text and new in text for text in corpus.values())
    assert len(set(texts.values())) == len(texts)


def write_evaluation(
    folder: Path, model: str, questions: MeasuredDataset, seed: int, quality: float, margin: float = 0.0
) -> Evaluated:
    """Write the files of an evaluation that the analysis reads.

    `quality` and `margin` are by how much the score and the margin are higher for right answers.
    """
    dataset = open_dataset(questions.dataset, [questions.split], max_bad_rows=1.0)
    names = sorted(read_qrels(Path(questions.dataset), questions.split))
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
        "models": {model: {"metrics": metrics, "top": [[[one, "", "", 1.0, None]] for one in best]}},
        "relevant": [[["d", "", "", 1]] if one else [] for one in answerable],
    }
    (folder / "per_query").mkdir(parents=True)
    (folder / "runs").mkdir()
    (folder / "per_query" / f"{questions.name}.json").write_text(json.dumps(content))
    lines = [
        f"{name} Q0 d{rank} {rank} {score:.9g} {model}\n"
        for name, first, other in zip(names, top, second, strict=True)
        for rank, score in enumerate([first, *(other - 0.1 * rank for rank in range(9))])
    ]
    (folder / "runs" / f"{model}.{questions.name}.trec").write_text("".join(lines))
    return Evaluated(seed, folder, model, questions.name)


def datasets_of(folder: Path) -> list[tuple[MeasuredDataset, MeasuredDataset]]:
    write(folder)
    return [
        (MeasuredDataset(name, str(folder / name)), MeasuredDataset(f"{name} dev", str(folder / name), "dev"))
        for name in ("One", "Other")
    ]


def test_answers_are_read_with_their_kinds_and_with_scores_of_bm25(tmp_path: Path) -> None:
    (questions, _), _ = datasets_of(tmp_path / "q")
    evaluated = write_evaluation(tmp_path / "e", "CL", questions, 0, 1.0)
    dataset = open_dataset(questions.dataset, ["test"], max_bad_rows=1.0)
    file = tmp_path / "e" / "per_query" / "One.json"
    content = json.loads(file.read_text())
    index, reader = Bm25Index.of(dataset.documents), QuestionReader(dataset)
    scores, found = index.search(content["texts"], 2)
    tops = content["models"]["CL"]["top"]
    tops[0][0][0] = dataset.documents.ids[found[0, 0]]
    tops[1] = []
    file.write_text(json.dumps(content))
    answers = reader.read(evaluated)
    kinds = [name.partition(":")[0] for name in content["queries"]]
    assert [kind or "answerable" for kind in answers.kinds] == kinds
    assert {*kinds} == {"answerable", "removed", "foreign"}
    assert answers.bm25 is not None
    assert answers.agrees is not None
    assert answers.bm25[:, :2] == pytest.approx(scores)
    assert answers.bm25[0, 2] == scores[0, 0] > 0
    assert answers.agrees[0]
    assert answers.bm25[1, 2] == 0
    assert not answers.agrees[1]
    position = list(dataset.documents.ids).index(tops[2][0][0])
    assert answers.bm25[2, 2] == index.scores(content["texts"][2])[position]
    with pytest.raises(StorageError, match="has no results of MW; remove"):
        reader.read(replace(evaluated, model="MW"))


# Rows by their quality and margin.
ROWS = {
    UNTRAINED: (0.3, 0.0),
    "CL at 1": (0.2, 0.0),
    "CL at 2": (0.0, 2.0),
    "MW at 1": (2.0, 0.0),
    "sum at 1": (3.0, 0.0),
}
CANDIDATES = {"CL": ["CL at 1", "CL at 2"], "MW": ["MW at 1"], "MW+CL": ["sum at 1"]}


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, list[SystemMeasures]]:
    """Return the analysis of the rows, and the measures of `CL at 2` by seed."""
    folder = tmp_path_factory.mktemp("analysis")
    datasets = datasets_of(folder / "q")
    evaluations: dict[tuple[str, str], list[Evaluated]] = {}
    for row, (quality, margin) in ROWS.items():
        for one in (one for pair in datasets for one in pair):
            folders = [folder / row / str(seed) / one.name for seed in range(SEEDS)]
            evaluations[row, one.name] = [
                write_evaluation(each, row.replace(" ", "-"), one, seed, quality, margin)
                for seed, each in enumerate(folders)
            ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis_module, "SAMPLES", 30)
        analysis = analyse(datasets, [UNTRAINED], CANDIDATES, UNTRAINED, evaluations)
    readers = {
        pair[0].name: QuestionReader(open_dataset(pair[0].dataset, ["test"], max_bad_rows=1.0)) for pair in datasets
    }
    measures = [
        SystemMeasures(
            *(
                {
                    pair[0].name: readers[pair[0].name].read(evaluations["CL at 2", pair[side].name][seed])
                    for pair in datasets
                }
                for side in (1, 0)
            )
        )
        for seed in range(SEEDS)
    ]
    return analysis, measures


@pytest.mark.slow
def test_dev_chooses_the_arm_and_the_confidence(analysed: tuple[Analysis, list[SystemMeasures]]) -> None:
    analysis, measures = analysed
    results, content = analysis.results, analysis.content
    assert results.rows == [UNTRAINED, "CL", "MW", "MW+CL"]
    assert content["chosen arms"] == {loss: [arms[-1]] * SEEDS for loss, arms in CANDIDATES.items()}
    assert set(content["best confidence"]["CL"]) <= {"entropy", COMBINED}
    for seed in range(SEEDS):
        one = measures[seed]
        dev, test = one.all_dev[POOLED], one.all_test[POOLED]
        areas = {
            name: area_under_risk_coverage(held_out_confidence(name, dev), dev.right)[0]
            for name in content["aurc by confidence"]["CL"]
        }
        best = min(areas, key=areas.__getitem__)
        assert content["best confidence"]["CL"][seed] == best
        assert content["arms"]["CL at 2"]["dev"][seed] == pytest.approx(areas[best])
        assert content["arms"]["CL at 1"]["dev"][seed] > areas[best]
        chosen = fit_confidence(best, dev).of(test)
        area = area_under_risk_coverage(chosen, test.right)[0]
        assert results.values("CL", POOLED, "aurc_best")[seed] == pytest.approx(area)
        by_score = area_under_risk_coverage(test.scores[:, 0].astype(float), test.right)[0]
        assert results.values("CL", POOLED, "aurc")[seed] == pytest.approx(by_score)
        assert by_score > area + 0.05
        by_combined = area_under_risk_coverage(fit_confidence(COMBINED, dev).of(test), test.right)[0]
        assert results.values("CL", POOLED, "combined_gain")[seed] == pytest.approx(by_score - by_combined)
    assert len(results.cells["MW", POOLED][0].per_query["aurc"]) == 96
    [table] = [rows for title, rows in analysis.tables.items() if title.startswith("Arms")]
    assert [row[:3] for row in table if row[0].startswith("CL")] == [
        *(["CL at 1", str(seed), ""] for seed in range(SEEDS)),
        *(["CL at 2", str(seed), "yes"] for seed in range(SEEDS)),
    ]


@pytest.mark.slow
def test_figures_at_the_threshold_of_the_best_confidence(
    analysed: tuple[Analysis, list[SystemMeasures]], tmp_path: Path
) -> None:
    analysis, (one, *_) = analysed
    results = analysis.results
    dev = one.all_dev[POOLED]
    values = held_out_confidence(one.best, dev)
    f1 = {
        threshold: 2 * (dev.right & (values >= threshold)).sum() / ((values >= threshold).sum() + dev.answerable.sum())
        for threshold in values
    }
    assert f1[one.threshold] == max(f1.values())
    for dataset, test in one.all_test.items():
        shown = fit_confidence(one.best, dev).of(test) >= one.threshold
        expected = {
            "f1": 2 * (test.right & shown).sum() / (shown.sum() + test.answerable.sum()),
            "answered": (test.right & shown).sum() / test.answerable.sum(),
            "shown_removed": shown[test.kinds == "removed"].mean(),
            "shown_foreign": shown[test.kinds == "foreign"].mean(),
        }
        assert "shown_hard" not in results.cells["CL", dataset][0].metrics  # these data sets have no such questions
        for metric, value in expected.items():
            assert results.values("CL", dataset, metric)[0] == pytest.approx(value)
    transfer = analysis.content["f1 by source and target"]["CL"]
    lost = transfer["One"]["One"] - transfer["Other"]["One"]
    assert results.mean("CL", "One", "transfer_loss") == pytest.approx(lost)
    value, low, high = analysis.content["intervals"]["MW"]["One"]["aurc"]
    assert low <= value <= high
    value, low, high = analysis.content[f"minus {UNTRAINED}"]["MW"][POOLED]["f1"]
    assert 0 < low < value < high
    claims = {claim.text: claim.verdict(results).word for claim in claims_of(["One", "Other"])}
    assert claims["By its score alone MW has a lower AURC than CL, in one pool"] == HELD
    assert list(claims.values())[:2] == [HELD, HELD]
    exchanged = {"MW": "CL", "CL": "MW"}
    turned = SeededResults({(exchanged.get(row, row), name): one for (row, name), one in results.cells.items()})
    claims = {claim.text: claim.verdict(turned).word for claim in claims_of(["One", "Other"])}
    assert claims["By its score alone MW has a lower AURC than CL, in one pool"] == DID_NOT
    drawn = tmp_path / "figures"
    drawn.mkdir()
    assert set(analysis.draw(drawn)) == {"risk-coverage.png"} <= {file.name for file in drawn.iterdir()}
    assert json.dumps(analysis.content, allow_nan=False)


STUDY = """
metrics: success@1
measured:
  One: {dataset: q/One, drop_own: false, max_bad_rows: 1.0}
  One dev: {dataset: q/One, test_split: dev, dev_split: test, drop_own: false, max_bad_rows: 1.0}
  Other: {dataset: q/Other, drop_own: false, max_bad_rows: 1.0}
  Other dev: {dataset: q/Other, test_split: dev, dev_split: test, drop_own: false, max_bad_rows: 1.0}
settings: {data: {dataset: q/mixture}}
arms:
  MiniLM, untrained: minilm
  CL, temperature 1: {loss: {loss: infonce, temperature: 1.0}}
  MW, temperature 1: {loss: {loss: mw, temperature: 1.0}}
  "MW + 1 CL, temperature 1": {loss: {loss: mw+infonce, temperature: 1.0}}
"""


@pytest.mark.slow
def test_a_finished_study_is_analyzed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(analysis_module, "SAMPLES", 30)
    write(tmp_path / "q")
    (tmp_path / "study.yaml").write_text(STUDY)
    output = tmp_path / "out"
    for arm in load_study(tmp_path / "study.yaml").arms:
        for seed in range(1 if arm.curriculum is None else 2):
            folder = arm_folder(output, arm, seed)
            for dataset in arm.datasets:
                one = evaluation_of(folder, arm, dataset, seed)
                write_evaluation(one.folder, one.model, replace(dataset, name=one.dataset), seed, len(arm.name) / 20)
            (folder / "metrics.json").write_text("{}")
    analysis = analyze(tmp_path / "study.yaml", output)
    assert analysis.results.rows == [UNTRAINED, "CL", "MW", "MW+CL"]
    assert [len(analysis.results.cells[row, POOLED]) for row in analysis.results.rows] == [1, 2, 2, 2]
    page = (output / "abstain.md").read_text()
    assert page.count("stated before the run") == 6
    assert "![Share of wrong documents" in page
    assert (output / "risk-coverage.png").exists()
    assert len(json.loads((output / "abstain.json").read_text())["claims"]) == 8
