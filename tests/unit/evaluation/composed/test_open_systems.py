"""All systems side by side in an evaluation, and in a search."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from composed_systems import embedded, write

from raytriever.core.errors import ConfigError
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.composed.open_systems import search_system
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.evaluation_files import write_run
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.report_document import format_results
from raytriever.evaluation.requested_models import build_evaluation_job, read_models
from raytriever.evaluation.results import Results
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.evaluation.system_names import parse_system
from raytriever.models.model_settings import ModelConfig
from raytriever.tracking.tracker import Tracker

Evaluated = Callable[..., Results]


@pytest.fixture
def evaluation_of(tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))

    def run(
        *models: str, targets: list[str] | None = None, unanswerable: list[str] | None = None, confidence: str = "score"
    ) -> Results:
        job = build_evaluation_job(
            read_models(models, ModelConfig()),
            [str(tiny_dataset)],
            EvaluationConfig(metrics="ndcg@10,recall@100,auc", confidence=confidence),
            [],
            targets or [],
            unanswerable or [],
            "fp32",
            0.01,
            print,
        )
        return run_evaluation(job, tmp_path / "out", True, Tracker, lambda _: None)

    return run


def test_all_systems_are_evaluated_side_by_side(
    evaluation_of: Evaluated,
    dataset: RetrievalDataset,
    vectors: dict[str, np.ndarray],
    tiny_encoder: Path,
    cross_encoder: Path,
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "vectors", vectors, dataset, "npy", np.float32)
    both = [evaluate(dataset, split, embedded(dataset, vectors), Protocol(depth=160)) for split in ("dev", "test")]
    for item in both:
        write_run(tmp_path / f"{item.queries[0]}.trec", item, dataset, "tag")
    (tmp_path / "mine.trec").write_text("".join((tmp_path / f"{n}.trec").read_text() for n in (96, 128)))
    fusion, judged = f"tiny=bm25+{tiny_encoder}:weighted", f"judged=bm25+vectors:{folder}>{cross_encoder}@10"
    names = ["bm25", f"vectors:{folder}", f"run:{tmp_path / 'mine.trec'}", fusion, judged]
    results = evaluation_of(*names, targets=["f1", "recall=0.8"])
    assert list(results.models) == ["bm25", "vectors", "mine.trec", "tiny", "judged"]
    figures = {model: row["letters"] for model, row in results.models.items()}
    assert figures["mine.trec"] == pytest.approx(figures["vectors"], abs=1e-9)
    assert figures["vectors"] == pytest.approx({name: both[1].metrics[name] for name in figures["vectors"]})
    assert all(0 < value <= 1 for row in figures.values() for value in row.values() if value is not None)
    assert {(row.model, row.target) for row in results.thresholds} == {
        (m, a) for m in figures for a in ("f1", "recall")
    }
    chosen = {row.model: row for row in results.thresholds if row.target == "f1"}
    assert chosen["mine.trec"].threshold == pytest.approx(chosen["vectors"].threshold, abs=1e-6)
    costs = {row.model: (row.texts, row.pairs) for row in results.costs}
    assert costs == {"bm25": (0, 0), "vectors": (0, 0), "mine.trec": (0, 0), "tiny": (192, 0), "judged": (0, 320)}
    text = format_results(results)
    assert "tiny: the weight of the first system is " in text
    assert "judged: the cross-encoder orders the best 10 documents of a query; all others count as not found." in text
    assert re.search(r"letters +judged +0 +320 +\d+\.\d\d", text)
    assert {row.model for row in results.pairs} | {row.against for row in results.pairs} == set(figures)


def test_systems_of_files_refuse_questions_of_others_and_weights_their_own_split(
    evaluation_of: Evaluated, tiny_dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.trec").write_text("q128 Q0 d1 1 0.5 tag\n")
    with pytest.raises(ConfigError, match=r"a.trec has no results for the questions of .*letters; leave them out"):
        evaluation_of(f"run:{tmp_path / 'a.trec'}", targets=["f1"], unanswerable=[str(tiny_dataset)])
    job = build_evaluation_job(
        read_models(["bm25+minilm:weighted"], ModelConfig()),
        [str(tiny_dataset)],
        replace(EvaluationConfig(), calibration_split="test"),
        [],
        [],
        [],
        None,
        0.01,
        print,
    )
    with pytest.raises(ConfigError, match="is already evaluated on 'test'; choose weights of a fusion on another"):
        job.splits(job.datasets[0])


def test_a_fusion_and_a_reranking_decide_by_their_own_calibration(
    evaluation_of: Evaluated, tiny_dataset: Path, tiny_encoder: Path, cross_encoder: Path, tmp_path: Path
) -> None:
    names = ["bm25", f"bm25+{tiny_encoder}", f"bm25+{tiny_encoder}:weighted", f"bm25>{cross_encoder}@9"]
    results = evaluation_of(*names, targets=["f1", "kept=0.5"])
    files = [tmp_path / "out" / "calibration" / model / "letters.json" for model in results.models]
    dataset = open_dataset(tiny_dataset, [])
    texts = [str(text) for text in dataset.queries.texts[128:134]]
    thresholds = {(row.model, row.target): row.threshold for row in results.thresholds}
    for name, model, file in zip(names, results.models, files, strict=True):
        found = [search_system(parse_system(name), str(tiny_dataset), text, 2, None, "fp32", file) for text in texts]
        assert all(item.threshold == pytest.approx(thresholds[model, "f1"]) for item in found)
        assert all(item.answerable is (item[0].score >= item.threshold) for item in found if item.threshold is not None)
        assert all(hit.probability is not None for item in found for hit in item)
        if (lowest := thresholds[model, "kept"]) is not None:
            kept = search_system(parse_system(name), str(tiny_dataset), texts[0], 100, "kept", "fp32", file)
            assert kept.lowest_score == pytest.approx(lowest)
            assert all(hit.score >= lowest for hit in kept)
        other = files[files.index(file) - 1]
        with pytest.raises(ConfigError, match=r"calibration .*letters.json: belongs to another system, "):
            search_system(parse_system(name), str(tiny_dataset), texts[0], 2, None, "fp32", other)
    notes = results.about["letters"].notes
    [weighted] = [model for model in results.models if model.endswith("weighted")]
    said = "weight and thresholds are chosen on the same queries, so a promised fraction is not exact"
    assert [said in lines for lines in notes.values()] == [model == weighted for model in notes]
    assert said in format_results(results)
    assert said not in format_results(evaluation_of(f"bm25+{tiny_encoder}:weighted"))
    # A confidence that reads 20 passages, of a system that lists 9.
    [row] = evaluation_of(names[-1], targets=["f1"], confidence="entropy").thresholds
    hits = search_system(parse_system(names[-1]), str(tiny_dataset), texts[0], 2, None, "fp32", files[-1])
    assert (hits.confidence_name, hits.threshold) == ("entropy", pytest.approx(row.threshold))
