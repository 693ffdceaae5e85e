"""The calibration that a training run writes into its model directory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raytriever.config import Config
from raytriever.data.prepare.open import open_dataset
from raytriever.evaluation.systems import evaluate_retriever
from raytriever.experiment.conclusion import calibrate_trained
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.search.calibration import FILE, current_calibration, read_calibration

QRELS = {"train": range(40), "dev": range(40, 100), "test": range(100, 160)}


def test_a_trained_model_is_calibrated_where_its_splits_are_large_enough(
    tiny_dataset: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    trained = ModelConfig(model=str(shutil.copytree(tiny_encoder, tmp_path / "run" / "model")))
    letters = Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))
    for split, members in QRELS.items():
        lines = [f"q{i}\td{i}\t1\n" for i in members]
        (letters / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    config = replace(Config(), training=replace(Config().training, precision="fp32"))
    retriever = load_retriever(trained)

    def calibrate(folder: Path) -> tuple[list[str], list[str]]:
        dataset = open_dataset(str(folder), list(QRELS))
        lines: list[str] = []
        calibrate_trained(
            dataset, config, trained, evaluate_retriever(dataset, "test", trained, retriever), lines.append
        )
        stale: list[str] = []
        current_calibration(trained, dataset.name, dataset.documents, stale.append, int8=False)
        return lines, stale

    lines, stale = calibrate(letters)
    file = tmp_path / "run" / "model" / FILE
    assert lines[0] == "calibrating the scores on dev"
    assert lines[1].startswith(f"{file}: threshold ")
    assert stale == []
    made = read_calibration(file)
    assert made is not None
    assert [(one.aim, one.wanted) for one in made.thresholds] == [("f1", None)]
    assert (made.chosen_queries, made.checked_queries, made.dataset) == (60, 60, "letters")
    file.unlink()
    for folder, why in (
        (tiny_dataset, "letters, split 'dev': has 32 judged queries"),
        (letters, "letters: 60 of 60 queries of split 'test' are queries of 'dev' too"),
    ):
        (letters / "qrels" / "dev.tsv").write_text((letters / "qrels" / "test.tsv").read_text())
        [line] = calibrate(folder)[0]
        assert line.startswith(f"the model gets no {FILE}: {why}")
        assert not file.exists()
