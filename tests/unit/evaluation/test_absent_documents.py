"""Judgements of absent documents count as in trec_eval; a part of a corpus; questions of another data set."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from beir import write_beir

from raytriever.core.errors import DataError
from raytriever.data.combine_datasets import combine
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.annotation.annotated_dataset import write_annotated
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.evaluated_datasets import describe_datasets, sample_corpus
from raytriever.evaluation.evaluation_files import write_run
from raytriever.evaluation.protocol import FOREIGN, Protocol, select_judged_queries
from raytriever.evaluation.report_document import document, format_results
from raytriever.evaluation.requested_models import EvaluationJob, OpenPart, add_foreign_questions, read_models
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.evaluation.systems import Bm25System, evaluate_embeddings
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.tracking.tracker import Tracker

TREC = {
    "ndcg_at_10": "ndcg_cut_10",
    "recall_at_100": "recall_100",
    "map_at_100": "map_cut_100",
    "r_precision": "Rprec",
    "success_at_5": "success_5",
    "mrr_at_100": "recip_rank",
}
# A query with a higher grade on an absent document, one with that document alone, a row that is there twice, and two
# that change nothing: a grade of 0, and a second opinion of a pair.
ABSENT = [
    "q128\tgone-1\t3",
    "q128\tgone-2\t1",
    "q129\tgone-1\t1",
    "q129\tgone-1\t1",
    "q130\tgone 3\t0",
    "q128\tgone-1\t2",
]
FRACTION = 0.5


@pytest.fixture
def folder(tiny_dataset: Path, tmp_path: Path, own_cache: Path) -> Path:
    """A data set whose test split judges absent documents; the only relevant document of q129 is one of them."""
    path = Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))
    test = path / "qrels" / "test.tsv"
    lines = [row for row in test.read_text().splitlines() if not row.startswith("q129\t")]
    test.write_text("\n".join([*lines, *ABSENT]) + "\n")
    return path


def by_trec_eval(folder: Path, run_file: Path, level: int = 1) -> dict[str, float]:
    """Means over the queries with a relevant document, of the judgements as the file has them."""
    qrels: dict[str, dict[str, int]] = {}
    for row in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, grade = row.split("\t")
        qrels.setdefault(query, {}).setdefault(document, int(grade))
    qrels = {query: grades for query, grades in qrels.items() if max(grades.values()) >= level}
    with run_file.open() as stream:
        run = pytrec_eval.parse_run(stream)
    result = pytrec_eval.RelevanceEvaluator(qrels, set(TREC.values()), relevance_level=level).evaluate(run)
    assert result.keys() == qrels.keys()
    return {ours: float(np.mean([value[trec] for value in result.values()])) for ours, trec in TREC.items()}


def opened(folder: Path) -> RetrievalDataset:
    return open_dataset(folder, ["test"], max_bad_rows=FRACTION)


@pytest.mark.parametrize("level", [1, 2])
def test_figures_are_trec_evals_with_absent_documents(folder: Path, tmp_path: Path, level: int) -> None:
    dataset, protocol = graded(folder), Protocol((*TREC, "auc"), level=level)
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(len(dataset.relevant_queries("test")), 8)).astype(np.float32)
    documents = rng.normal(size=(len(dataset.documents), 8)).astype(np.float32)
    systems = [
        evaluate_embeddings(dataset, "test", queries, documents, protocol),
        evaluate(dataset, "test", Bm25System(dataset, Bm25Index(dataset.passages())), protocol),
    ]
    for result in systems:
        write_run(tmp_path / "run.trec", result, dataset, "tag")
        theirs = by_trec_eval(folder, tmp_path / "run.trec", level)
        for name, mean in theirs.items():
            assert result.metrics[name] == pytest.approx(mean, abs=1e-6), name
    assert systems[-1].metrics["recall_at_100"] < 1


def graded(folder: Path) -> RetrievalDataset:
    """The data set with one present document of grade 2, so that scores have a positive at that level."""
    test = folder / "qrels" / "test.tsv"
    test.write_text(test.read_text().replace("q131\td131\t1", "q131\td131\t2"))
    return opened(folder)


def test_their_number_is_next_to_the_figures(folder: Path, tmp_path: Path, tiny_encoder: Path) -> None:
    job = EvaluationJob(
        models=read_models(["bm25", f"tiny={tiny_encoder}"], ModelConfig()),
        datasets=describe_datasets([str(folder)], "test", Protocol((*TREC, "auc")), FRACTION),
        baselines=["bm25"],
        precision="fp32",
    )
    output = tmp_path / "out"
    results = run_evaluation(job, output, False, Tracker, lambda _: None)
    line = (
        "3 of 34 relevant documents are not in the corpus. They count as not found, as in trec_eval; 1 queries have no "
        "other and score 0."
    )
    assert line in format_results(results)
    assert document(results)[0].about[0].endswith(line)
    assert f"letters: {line}" in (output / "table.md").read_text()
    content = json.loads((output / "results.json").read_bytes())
    about = content["about"]["letters"]
    assert (about["absent_relevant"], about["relevant"], about["unanswerable_queries"]) == (3, 34, 1)
    queries = json.loads((output / "per_query" / "letters.json").read_bytes())
    for model in ("bm25", "tiny"):
        theirs = by_trec_eval(folder, output / "runs" / model / "letters.trec")
        for name in ("ndcg_at_10", "recall_at_100", "map_at_100"):
            assert content["models"][model]["letters"][name] == pytest.approx(theirs[name], abs=1e-6)
        by_query = queries["models"][model]["metrics"]["map_at_100"]
        assert np.mean(by_query) == pytest.approx(theirs["map_at_100"], abs=1e-6)
    assert queries["relevant"][queries["queries"].index("q129")] == []


def test_the_digest_is_of_the_judgements_too(folder: Path, tiny_dataset: Path) -> None:
    whole = opened(folder)
    assert whole.absent["test"].documents == ["gone-1", "gone-2", "gone-1"]
    assert whole.absent["test"].scores.tolist() == [3, 1, 1]
    assert whole.counts()["test_absent_positives"] == 3
    assert whole.digest != replace(whole, absent={}).digest
    assert whole.quarantine.total == len(ABSENT)
    clean = open_dataset(tiny_dataset, ["test"])
    assert clean.absent == {}
    assert "test_absent_positives" not in clean.counts()


def test_parts_of_the_corpus_lent_splits_and_copies_keep_them(folder: Path, tmp_path: Path) -> None:
    train = folder / "qrels" / "train.tsv"
    first = train.read_text().splitlines()
    train.write_text("\n".join([*first, *(f"{row.split(chr(9))[0]}\tgone-4\t1" for row in first[1:])]) + "\n")
    (folder / "qrels" / "dev.tsv").unlink(missing_ok=True)
    dataset = open_dataset(folder, ["train", "dev", "test"], max_bad_rows=FRACTION)
    for split in ("train", "dev"):
        assert np.array_equal(dataset.absent[split].queries, np.unique(dataset.judgements[split].queries))
    small = sample_corpus(dataset, "test", 3, 0, lambda every: Bm25Index(every.passages()))
    assert len(small.documents) == 31 + 3
    result = evaluate(small, "test", Bm25System(small, Bm25Index(small.passages())), Protocol(tuple(TREC)))
    write_run(tmp_path / "run.trec", result, small, "tag")
    for name, mean in by_trec_eval(folder, tmp_path / "run.trec").items():
        assert result.metrics[name] == pytest.approx(mean, abs=1e-6), name
    both = combine([dataset, replace(dataset, name="second")])
    assert len(both.absent["test"]) == 6
    assert both.absent["test"].queries[3:].tolist() == (dataset.absent["test"].queries + len(dataset.queries)).tolist()
    write_annotated(tmp_path / "copy", dataset, "train", {}, {}, "human", {})
    again = open_dataset(tmp_path / "copy", ["train", "dev", "test"], max_bad_rows=FRACTION)
    assert again.absent.keys() == dataset.absent.keys()
    assert again.absent["test"].documents == dataset.absent["test"].documents


@pytest.fixture(scope="module")
def dataset(tiny_dataset: Path) -> RetrievalDataset:
    return open_dataset(tiny_dataset, ["dev"])


def index_of(dataset: RetrievalDataset) -> Bm25Index:
    return Bm25Index(dataset.passages())


def ids(dataset: RetrievalDataset) -> list[str]:
    return list(dataset.documents.ids)


def test_judged_documents_stay_and_others_come_by_rank_and_by_seed(dataset: RetrievalDataset) -> None:
    judged = {dataset.documents.ids[int(position)] for position in dataset.judgements["dev"].documents}
    part = sample_corpus(dataset, "dev", 20, 3, index_of)
    assert len(ids(part)) == len(set(ids(part))) == len(judged) + 20
    assert judged <= set(ids(part))
    # In the order of the whole, each with its own texts and judgements.
    assert ids(part) == [name for name in ids(dataset) if name in set(ids(part))]
    position = {name: number for number, name in enumerate(ids(dataset))}
    assert [part.passage_text(n) for n in range(len(part.documents))] == [
        dataset.passage_text(position[name]) for name in ids(part)
    ]
    pairs = [
        {(int(q), item.documents.ids[int(d)]) for q, d in zip(rows.queries, rows.documents, strict=True)}
        for item, rows in ((dataset, dataset.judgements["dev"]), (part, part.judgements["dev"]))
    ]
    assert pairs[0] == pairs[1]
    assert np.array_equal(part.positives("dev").queries, dataset.positives("dev").queries)
    # Half of them are what BM25 ranks first; the other half is drawn.
    again, other = (sample_corpus(dataset, "dev", 20, seed, index_of) for seed in (3, 4))
    assert ids(again) == ids(part)
    same = set(ids(other)) & set(ids(part)) - judged
    assert 10 <= len(same) < 20


def test_where_the_corpus_has_no_more_it_is_the_whole(dataset: RetrievalDataset) -> None:
    def nobody(dataset: RetrievalDataset) -> Bm25Index:
        raise AssertionError("no index is needed")

    assert sample_corpus(dataset, "dev", 128, 0, nobody) is dataset
    alone = sample_corpus(dataset, "dev", 0, 0, nobody)
    assert len(alone.documents) == 32


def test_questions_that_this_data_set_answers_are_left_out(tmp_path: Path) -> None:
    own = write_beir(tmp_path / "own", ["It is blue.", "It is red."], ["What is it?"], test=[(0, 0)])
    passages, questions = ["Bell.", "it is  RED.", "Nobody."], ["what is IT?", "Which color?", "Who called?"]
    other = write_beir(tmp_path / "other", passages, questions, test=[(n, n) for n in range(3)])
    dataset = open_dataset(own, ["test"])
    part = OpenPart("own", dataset, {"test": select_judged_queries(dataset, "test", Protocol())})
    lines: list[str] = []
    made = add_foreign_questions(part, [str(other)], 0.0, lines.append)
    added = made.judged["test"].unanswerable[FOREIGN].tolist()
    assert [made.dataset.queries.texts[query] for query in added] == ["Who called?"]
    assert lines == ["other: 2 of 3 questions are left out: own has the question, or a passage relevant to it"]
    with pytest.raises(DataError, match=r"own, split 'test': has only questions that own has or answers too; leave"):
        add_foreign_questions(part, [str(own)], 0.0, lines.append)
