"""Conclusion of a run: the calibration that it writes into its model directory, and its curves over all stages."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raytriever.cluster.evaluate_on_cluster import evaluate_once
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.experiments.run.open_run import OpenRun
from raytriever.experiments.run.open_training import lacking_negatives, training_facts
from raytriever.experiments.run.run_directory import RunDirectory
from raytriever.experiments.run.whole_run import closing_evaluation, finished_results, masking_lines
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.search.calibration_file import FILE, current_calibration, read_calibration
from raytriever.tracking.step_log import STEPS, end_to_end, read_curve
from raytriever.training.dev_validation import Record, write_record
from raytriever.training.run_config import Config


def stage(folder: Path, losses: dict[int, float], looks: dict[int, float]) -> Path:
    folder.mkdir()
    lines = [{"step": step, "milliseconds": 0, "metrics": {"loss": loss}} for step, loss in losses.items()]
    lines += [{"step": step, "milliseconds": 0, "metrics": {"dev_loss": loss}} for step, loss in looks.items()]
    (folder / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_stage_starts_at_the_last_step_of_the_one_before(tmp_path: Path) -> None:
    first = stage(tmp_path / "1", {1: 0.5, 2: 0.25, 3: 0.125}, {2: 5.0})
    nothing = stage(tmp_path / "2", {}, {})
    last = stage(tmp_path / "3", {1: 1.5, 2: 1.25}, {2: 6.0})
    assert end_to_end([first, nothing, last], "loss") == [(1, 0.5), (2, 0.25), (3, 0.125), (4, 1.5), (5, 1.25)]
    assert end_to_end([first, nothing, last], "dev_loss") == [(2, 5.0), (5, 6.0)]
    assert end_to_end([last], "loss") == read_curve(last, "loss")


def test_the_report_says_how_many_negatives_a_guide_masked(tmp_path: Path) -> None:
    plain, guided = (tmp_path / name for name in ("plain", "guided"))
    stage(plain, {1: 0.5}, {})
    guided.mkdir()
    lines = [
        {"step": step, "milliseconds": 0, "metrics": {"guide_masked": local}} for step, local in ((1, 0.01), (2, 0.03))
    ]
    (guided / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert masking_lines([plain]) == []
    assert masking_lines([plain, guided]) == ["The guide masked 2.00% of a batch's negatives on average, at most 3.00%"]


QRELS = {"train": range(40), "dev": range(40, 100), "test": range(100, 160)}


@pytest.fixture
def opened(tiny_dataset: Path, tiny_encoder: Path, tmp_path: Path, own_cache: Path) -> OpenRun:
    """A run of a copy of the tiny encoder, on 60 dev and 60 test queries."""
    letters = Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))
    for split, members in QRELS.items():
        lines = [f"q{i}\td{i}\t1\n" for i in members]
        (letters / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    prompts = {"trained-query": "of the data set that is trained on: "}
    encoder = ModelConfig(str(shutil.copytree(tiny_encoder, tmp_path / "encoder")), dataset_prompts=prompts)
    training = replace(Config().training, precision="fp32")
    config = Config(data=replace(Config().data, dataset=str(letters)), model=encoder, training=training)
    return OpenRun(config, open_dataset(str(letters), list(QRELS)), (), "", 0)


def test_a_run_ends_in_an_evaluation_and_calibrates_its_own_model_alone(opened: OpenRun, tmp_path: Path) -> None:
    before, lines, stale = tmp_path / "encoder", list[str](), list[str]()
    model = Path(shutil.copytree(before, tmp_path / "run" / "model"))
    untouched = sorted(file.name for file in before.iterdir())
    job, folder = closing_evaluation(opened, model, lines.append), tmp_path / "run" / "evaluation"
    results = evaluate_once(job, folder, lines.append)
    assert list(results.models) == ["bm25", "before", "after"]
    assert results.models["after"] == results.models["before"]
    assert {(row.model, row.target, row.wanted) for row in results.thresholds} == {("after", "f1", None)}
    assert sorted(file.name for file in before.iterdir()) == untouched
    assert lines[-1].startswith(f"{model / FILE}: threshold ")
    made, trained = read_calibration(model / FILE), ModelConfig(str(model))
    assert made is not None
    assert (made.chosen_queries, made.checked_queries, made.dataset) == (60, 60, "letters")
    current_calibration(trained, "letters", opened.dataset.documents, stale.append, int8=False)
    assert stale == []
    # A second call reads what the first one wrote, and a run whose evaluation was removed measures again.
    shutil.rmtree(model)
    assert evaluate_once(job, folder, lines.append) == results
    run = RunDirectory(tmp_path / "run", "finished")
    assert finished_results(run) == results
    shutil.rmtree(folder)
    assert finished_results(run) is None


def test_a_run_with_few_queries_or_equal_splits_gets_no_calibration(opened: OpenRun, tmp_path: Path) -> None:
    qrels, lines = tmp_path / "letters" / "qrels", list[str]()
    for test, reason in (
        (QRELS["dev"], "60 of 60 queries of split 'test' are queries of 'dev' too"),
        (range(100, 101), "3 questions are too few"),
    ):
        for split, members in ("dev", QRELS["dev"] if len(test) > 1 else range(40, 42)), ("test", test):
            text = "".join(f"q{i}\td{i}\t1\n" for i in members)
            (qrels / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{text}")
        run = replace(opened, dataset=open_dataset(str(tmp_path / "letters"), list(QRELS)))
        job = closing_evaluation(run, tmp_path / "model", lines.append)
        assert (job.targets, len(job.models)) == ((), 3)
        assert f"the model gets no {FILE}: " in lines[-1]
        assert reason in lines[-1]


def test_the_facts_of_a_training_name_the_checkpoint_that_became_the_model(tmp_path: Path) -> None:
    folders = [stage(tmp_path / "1", {1: 0.5, 2: 0.25}, {2: 0.1}), stage(tmp_path / "2", {1: 1, 4: 1}, {2: 5, 4: 6})]
    facts = training_facts(folders, Config())
    assert facts == {"steps": 6, "best": {"metric": "dev_loss", "step": 2, "value": 5.0}}
    by_metric = replace(Config(), training=replace(Config().training, best_metric="ndcg_at_10"))
    assert training_facts(folders, by_metric)["best"] is None
    for step, value in (2, 0.5), (4, 0.75):
        write_record(folders[-1] / "evaluations", Record(step, value, {"dev/ndcg_at_10": value}))
    assert training_facts(folders, by_metric)["best"] == {"metric": "ndcg_at_10", "step": 4, "value": 0.75}


def test_queries_with_fewer_hard_negatives_are_counted(tiny_dataset: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(tiny_dataset), ["train"])
    data = replace(Config().data, negatives_per_query=2)
    queries = dataset.positives("train").queries  # 96, of the 160 of the data set
    counts = np.full(len(queries), 2)
    counts[:5], counts[5:7] = 1, 0

    def line(counts: np.ndarray) -> str:
        documents = np.concatenate([np.arange(100, 100 + count) for count in counts])
        table = NegativesTable.of(dataset, np.repeat(queries, counts), documents, "bm25")
        return lacking_negatives(dataset, data, table)

    assert line(counts) == (
        "letters: 7 of 96 training queries have fewer than 2 hard negatives and repeat them; "
        "2 of these have none and get random passages"
    )
    assert line(np.full(len(queries), 2)) == ""
