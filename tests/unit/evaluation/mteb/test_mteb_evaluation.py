"""Tasks of MTEB by our encoders and exact search: MTEB's own figures and files, with ours next to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from beir import write_beir

import raytriever as rt
from raytriever.core.errors import ConfigError
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.requested_models import EvaluatedModel
from raytriever.evaluation.results import Results
from raytriever.evaluation.system_names import Bm25
from raytriever.models.model_settings import ModelConfig
from raytriever.tracking.tracker import Tracker

SUPPORT = Path(__file__).parents[3] / "support"
sys.path.append(str(SUPPORT))

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MTEB alone takes five seconds to import
SPLITS = ("dev", "test")
NAMES = "TinyRetrieval,TinyReranking,TinySimilarity"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from library_losses import write_model

    path = tmp_path_factory.mktemp("library") / "tiny"
    write_model(path)
    return path


@pytest.fixture
def tasks() -> list[Any]:
    from mteb_tasks import TinyReranking, TinyRetrieval, TinySimilarity

    return [TinyRetrieval(), TinyReranking(), TinySimilarity()]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def scores_of(result: Any) -> dict[str, float]:
    return {name: value for name, value in result.scores["test"][0].items() if isinstance(value, float)}


def main_scores(results: Any) -> list[float]:
    return [metrics["main_score"] for metrics in results.models["tiny"].values()]


def evaluate(encoder: Path, tasks: list[Any], output: Path, **settings: Any) -> tuple[Any, list[str]]:
    from raytriever.evaluation.mteb.mteb_evaluation import run_mteb
    from raytriever.evaluation.mteb.search_protocol import MtebJob

    lines: list[str] = []
    models = [EvaluatedModel("tiny", ModelConfig(model=str(encoder), **settings.pop("config", {})))]
    fresh = settings.pop("fresh", False)
    return run_mteb(MtebJob(models=models, tasks=tasks, **settings), output, fresh, Tracker, lines.append), lines


def test_scores_are_those_of_mteb_with_sentence_transformers(encoder: Path, tasks: list[Any], tmp_path: Path) -> None:
    import mteb
    from sentence_transformers import SentenceTransformer

    results, _ = evaluate(encoder, tasks, tmp_path / "out")
    library = SentenceTransformer(str(encoder), device="cpu", local_files_only=True)
    cached = mteb.ResultCache(cache_path=tmp_path / "out").load_results(models=["tiny"])
    stored = {task_result.task_name: task_result for task_result in cached.model_results[0].task_results}
    for task, (of, metrics) in zip(tasks, results.models["tiny"].items(), strict=True):
        for model in (library, rt.load_model(encoder, precision="fp32")):
            own = mteb.evaluate(model, type(task)(), cache=None, show_progress_bar=False, co2_tracker=False)
            expected = scores_of(own.task_results[0])
            found = scores_of(stored[of])
            for name in expected:
                if "nauc" not in name:  # areas of differences of hardly anything
                    assert found[name] == pytest.approx(expected[name], abs=1e-4, nan_ok=True), (of, name)
        assert 0.05 < metrics["main_score"] < 0.95
    first = results.models["tiny"]["TinyRetrieval"]
    assert first["ndcg_at_10"] == pytest.approx(first["main_score"], abs=1e-4)


def test_a_task_of_several_is_their_mean(encoder: Path, tmp_path: Path) -> None:
    from mteb_tasks import TinyTogether

    results, lines = evaluate(encoder, [TinyTogether()], tmp_path / "out")
    [folder] = (tmp_path / "out" / "results" / "tiny").iterdir()
    parts = [
        Results.read(folder / "retrieval" / name).models["tiny"][name] for name in ("TinyRetrieval", "TinyReranking")
    ]
    expected = [
        parts[0]["ndcg_at_10"],
        json.loads((folder / "TinyReranking.json").read_text())["scores"]["test"][0]["main_score"],
    ]
    assert main_scores(results) == [pytest.approx(sum(expected) / 2, abs=1e-4)]
    again, lines = evaluate(encoder, [TinyTogether()], tmp_path / "out")
    assert main_scores(again) == pytest.approx(main_scores(results), rel=1e-12)
    assert any("TinyTogether: tiny was evaluated before" in line for line in lines)


def test_figures_of_ours_lie_next_to_those_of_mteb(encoder: Path, tasks: list[Any], tmp_path: Path) -> None:
    protocol = Protocol(("ndcg_at_10", "auc"))
    evaluate(encoder, tasks[:2], tmp_path / "out", protocol=protocol, targets=[("precision", 0.1)])
    [meta] = (tmp_path / "out" / "results" / "tiny").glob("*/model_meta.json")
    content = json.loads(meta.read_text())
    assert content["revision"] == meta.parent.name
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(encoder), device="cpu", local_files_only=True)
    assert content["n_parameters"] == sum(parameter.numel() for parameter in library.parameters())
    [names] = [sorted(path.name for path in (meta.parent / "retrieval").iterdir() if path.is_dir())]
    assert names == ["TinyReranking", "TinyRetrieval"]
    folder = meta.parent / "retrieval" / "TinyRetrieval"
    content = Results.read(folder)
    assert content.auc[0].auc == pytest.approx(content.models["tiny"]["TinyRetrieval"]["auc"])
    assert content.thresholds[0].chosen_on == "dev"
    assert content.about["TinyRetrieval"].documents == 60
    per_query = json.loads((folder / "per_query" / "TinyRetrieval.json").read_text())
    assert len(per_query["queries"]) == 21
    lines = (folder / "runs" / "tiny" / "TinyRetrieval.trec").read_text().splitlines()
    assert not [line for line in lines if line.split()[0] == line.split()[2]]  # `ignore_identical_ids`


def test_queries_without_an_answer_are_made(encoder: Path, tasks: list[Any], tmp_path: Path) -> None:
    questions = [f"{split} {row}" for split in SPLITS for row in range(9)]
    judged = {split: [(9 * n + row, 0) for row in range(9)] for n, split in enumerate(SPLITS)}
    other = write_beir(tmp_path / "other", ["far away"], questions, **judged)
    made: dict[str, Any] = {"protocol": Protocol(("ndcg_at_10",)), "targets": [("answered", 0.5)]}
    made |= {"removed": 0.5, "foreign": [str(other)]}
    results, lines = evaluate(encoder, tasks[:1], tmp_path / "out", **made)
    assert main_scores(results) == main_scores(evaluate(encoder, tasks[:1], tmp_path / "plain")[0])
    [folder] = (tmp_path / "out" / "results" / "tiny").glob("*/retrieval/TinyRetrieval")
    [row] = Results.read(folder).thresholds
    assert row.unanswerable["foreign"].total == 2 * 9  # with few queries, those of both splits choose
    assert 0 < row.unanswerable["removed"].total < 21 + 16

    _, lines = evaluate(encoder, tasks[:2], tmp_path / "same", calibration_split="test", **made)
    [folder] = (tmp_path / "same" / "results" / "tiny").glob("*/retrieval/TinyRetrieval")
    [row] = Results.read(folder).thresholds
    assert row.checked_on == row.chosen_on
    assert row.unanswerable["foreign"].total == 9
    assert "TinyReranking: queries of other data sets have no candidates, so they are left out" in lines


def test_prompts_are_those_that_mteb_chooses(encoder: Path, tasks: list[Any], tmp_path: Path) -> None:
    import mteb
    from mteb_tasks import register
    from sentence_transformers import SentenceTransformer

    register()  # MTEB ignores prompts of tasks that it does not know
    prompts = {
        "TinyRetrieval-query": "ka lo ",
        "Reranking-document": "mi ru ",
        "STS": "ten sha ",
        "query": "vor el ",
        "document": "",
    }
    library = SentenceTransformer(str(encoder), device="cpu", local_files_only=True, prompts=prompts)
    library.save(str(tmp_path / "prompted"))
    results, _ = evaluate(tmp_path / "prompted", tasks, tmp_path / "out")
    plain, _ = evaluate(encoder, tasks, tmp_path / "plain")
    for task, score, other in zip(tasks, main_scores(results), main_scores(plain), strict=True):
        wrapped = mteb.SentenceTransformerEncoderWrapper(library, model_prompts=prompts)
        own = mteb.evaluate(wrapped, type(task)(), cache=None, show_progress_bar=False, co2_tracker=False)
        assert score == pytest.approx(own.task_results[0].get_score(), abs=1e-4)
        assert score != pytest.approx(other, abs=1e-4)


def test_finished_tasks_are_not_repeated_after_a_kill(encoder: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(SUPPORT / "mteb_tasks.py"), "--suite", "mteb", "--tasks", NAMES]
    command += ["--model", str(encoder), "--output", str(tmp_path / "out"), "--tracker", "none"]
    killed = subprocess.run(command, env={**os.environ, "KILL_IN_RERANKING": "1"}, capture_output=True, text=True)
    assert killed.returncode == -9
    [first] = (tmp_path / "out" / "results" / "tiny").glob("*/TinyRetrieval.json")
    before = first.stat().st_mtime_ns, first.read_bytes()
    (first.parent / "TinyReranking.json").write_text('{"task_name": "Tiny')  # MTEB's writer was killed half-way
    resumed = subprocess.run(command, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert (first.stat().st_mtime_ns, first.read_bytes()) == before
    assert "TinyRetrieval: tiny was evaluated before" in resumed.stderr
    assert "is damaged; the task is evaluated again" in resumed.stderr
    assert sorted(path.stem for path in first.parent.glob("Tiny*.json")) == sorted(NAMES.split(","))
    assert "Average" in (tmp_path / "out" / "table.md").read_text()


def test_tasks_that_fail_leave_the_others(encoder: Path, tmp_path: Path) -> None:
    names = "FarAway,Broken,TinySimilarity"
    command = [sys.executable, str(SUPPORT / "mteb_tasks.py"), "--suite", "mteb", "--tasks", names]
    command += ["--model", str(encoder), "--output", str(tmp_path / "out"), "--tracker", "none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "MISSING: FarAway: the data set nobody/no-such-data-set cannot be loaded" in done.stderr
    [report] = (tmp_path / "out" / "results" / "tiny").glob("*/Broken.error.txt")
    line = (
        f"MISSING: Broken: the task failed in tiny (ZeroDivisionError: no pair is left); see the traceback in {report}"
    )
    assert line in done.stderr.splitlines()
    assert "in _evaluate_subset" in report.read_text()
    assert "error: there is no result of FarAway, Broken" in done.stderr.splitlines()[-1]
    assert "TinySimilarity main_score" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_calibration_split_that_cannot_be_loaded_is_said(encoder: Path, tasks: list[Any], tmp_path: Path) -> None:
    class Strict(type(tasks[0])):  # type: ignore[misc]
        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            if "validation" in self.eval_splits:
                raise ValueError("unknown split validation\nin this data set")
            super().load_data()

    made: dict[str, Any] = {"protocol": Protocol(("ndcg_at_10",)), "targets": [("precision", 0.1)]}
    results, lines = evaluate(encoder, [Strict()], tmp_path / "out", calibration_split="validation", **made)
    reason = "(ValueError: unknown split validation)"
    assert f"TinyRetrieval: the calibration split 'validation' cannot be loaded {reason}; it is left out" in lines
    assert results.models["tiny"]["TinyRetrieval"]["ndcg_at_10"] > 0


def test_results_of_another_revision_are_refused_or_removed(encoder: Path, tasks: list[Any], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    other = tmp_path / "copy" / "tiny"
    other.parent.mkdir()
    subprocess.run(["cp", "-r", str(encoder), str(other)], check=True)
    evaluate(other, tasks[2:3], tmp_path / "out")
    [revision] = (tmp_path / "out" / "results" / "tiny").iterdir()
    weights = load_file(other / "model.safetensors")
    name = next(name for name in weights if weights[name].dtype == torch.float32)
    save_file(weights | {name: weights[name] + 1}, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"holds results of revision {revision.name} of tiny.*fresh=True"):
        evaluate(other, tasks[2:3], tmp_path / "out")
    evaluate(other, tasks[2:3], tmp_path / "out", fresh=True)
    [replaced] = (tmp_path / "out" / "results" / "tiny").iterdir()
    assert replaced.name != revision.name
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no results of MTEB"):
        evaluate(other, tasks[2:3], tmp_path / "notes")


def test_settings_of_the_user_have_a_folder_of_their_own(encoder: Path, tasks: list[Any], tmp_path: Path) -> None:
    evaluate(encoder, tasks[2:3], tmp_path / "out")
    evaluate(encoder, tasks[2:3], tmp_path / "out", config={"truncate_dim": 8})
    paths = sorted(path.relative_to(tmp_path / "out" / "results") for path in tmp_path.rglob("TinySimilarity.json"))
    assert [len(path.parts) for path in paths] == [3, 5]
    assert paths[1].parts[2:4] == ("experiments", "truncate_dim_8")


def test_unknown_names_are_suggested() -> None:
    from raytriever.evaluation.mteb.mteb_evaluation import read_tasks

    for tasks, benchmark, message in (
        ("it's", None, "tasks: unknown task"),
        ("scifacts", None, "tasks: unknown task 'scifacts'; did you mean 'SciFact'?"),
        (None, "MTEB(eng, v3)", "benchmark: unknown benchmark 'MTEB(eng, v3)'; did you mean 'MTEB(eng, v2)'?"),
        (None, "nanobeir", "benchmark: unknown benchmark 'nanobeir'; did you mean 'NanoBEIR'?"),
        ("SciFact", "BEIR", "suite mteb: both tasks and benchmark are given"),
        (None, None, "suite mteb: neither tasks nor benchmark is given"),
        ("VidoreArxivQARetrieval", None, "VidoreArxivQARetrieval needs image"),
    ):
        with pytest.raises(ConfigError) as raised:
            read_tasks(tasks, benchmark)
        assert message in str(raised.value)
    for benchmark in ("MTEB(eng, v2)", "BEIR", "NanoBEIR", "BRIGHT", "LongEmbed"):
        assert read_tasks(None, benchmark)


def test_bm25_is_no_model_of_mteb() -> None:
    from raytriever.evaluation.mteb.mteb_evaluation import build_mteb_job

    config = EvaluationConfig(suite="mteb", tasks="SciFact")
    with pytest.raises(ConfigError, match="bm25 is not an encoder"):
        build_mteb_job([EvaluatedModel("bm25", Bm25())], config, [], [], None, 0.01)
