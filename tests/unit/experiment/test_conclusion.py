"""Conclusion of a run: the calibration that it writes into its model directory, and its curves over all stages."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raytriever.config import Config
from raytriever.data.negatives import NegativesTable
from raytriever.data.prepare.open import open_dataset
from raytriever.experiment.train import end_to_end, evaluate_trained, masking_lines
from raytriever.experiment.training import lacking_negatives
from raytriever.models.config import ModelConfig
from raytriever.search.calibration import FILE, current_calibration, read_calibration
from raytriever.tracking.steps import STEPS, read_curve


def stage(folder: Path, losses: dict[int, float], looks: dict[int, float]) -> Path:
    folder.mkdir()
    lines = [{"step": step, "milliseconds": 0, "measured": {"loss": loss}} for step, loss in losses.items()]
    lines += [{"step": step, "milliseconds": 0, "measured": {"dev_loss": loss}} for step, loss in looks.items()]
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
        {"step": step, "milliseconds": 0, "measured": {"guide_masked": share}} for step, share in ((1, 0.01), (2, 0.03))
    ]
    (guided / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert masking_lines([plain]) == []
    assert masking_lines([plain, guided]) == ["The guide masked 2.00% of the negatives of a batch, at most 3.00%"]


QRELS = {"train": range(40), "dev": range(40, 100), "test": range(100, 160)}


@pytest.mark.slow
def test_a_trained_model_is_calibrated(tiny_dataset: Path, tiny_encoder: Path, tmp_path: Path, own_cache: Path) -> None:
    trained = ModelConfig(model=str(shutil.copytree(tiny_encoder, tmp_path / "run" / "model")))
    letters = Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))
    for split, members in QRELS.items():
        lines = [f"q{i}\td{i}\t1\n" for i in members]
        (letters / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    config = replace(Config(), training=replace(Config().training, precision="fp32"))
    dataset, lines, stale = open_dataset(str(letters), list(QRELS)), list[str](), list[str]()
    assert evaluate_trained(dataset, config, trained, lines.append).metrics["ndcg_at_10"] > 0
    current_calibration(trained, dataset.name, dataset.documents, stale.append, int8=False)
    file = tmp_path / "run" / "model" / FILE
    assert lines[:2] == ["evaluating the model after training", "calibrating the scores on dev"]
    assert lines[2].startswith(f"{file}: threshold ")
    assert stale == []
    made = read_calibration(file)
    assert made is not None
    assert [(one.aim, one.wanted) for one in made.thresholds] == [("f1", None)]
    assert (made.chosen_queries, made.checked_queries, made.dataset) == (60, 60, "letters")


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
        "letters: 7 of 96 training queries have fewer than 2 and repeat theirs; "
        "2 of these have none and get random passages"
    )
    assert line(np.full(len(queries), 2)) == ""
