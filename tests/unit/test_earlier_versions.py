"""Files that version 0.1 wrote: this version reads, compares, searches, evaluates and continues them.

`tests/fixtures/version_0_1/make.py` says how they were made.
"""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from raytriever.cli.main import run
from raytriever.cli.train import _parser, resolve_settings
from raytriever.config import Curriculum
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import ignore_line
from raytriever.encoding.loading import load_for_encoding
from raytriever.encoding.shards import tokenisation_of
from raytriever.encoding.store import EmbeddingStore
from raytriever.evaluation.systems import evaluate_retriever
from raytriever.experiment.opening import open_run, open_run_directory
from raytriever.experiment.stages import find_negatives
from raytriever.losses.distributed import ALONE
from raytriever.mining.bm25 import Bm25Index
from raytriever.models.config import ModelConfig
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import load_retriever
from raytriever.report.finished_runs import read_directory
from raytriever.tracking.steps import read_curve
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.training_data import TrainingData

FOLDER = Path(__file__).parents[1] / "fixtures" / "version_0_1"
SETTINGS = runpy.run_path(str(FOLDER / "make.py"))
TRAINING: list[str] = SETTINGS["TRAINING"]
STEP, STEPS = SETTINGS["INTERRUPTED_AT"], SETTINGS["MANY"]
ENCODING = ["--dataset", "letters", "--model", "finished/model", "--precision", "fp32"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, which is the current directory."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "files"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return folder


def settings(*words: str) -> Curriculum:
    return resolve_settings(_parser().parse([*TRAINING, *words]))


def bm25_of(dataset: RetrievalDataset) -> Bm25Index:
    return Bm25Index(dataset.passages())


def stored(folder: str) -> dict[str, dict[str, float]]:
    return json.loads(Path(folder, "metrics.json").read_bytes())


def test_a_finished_run_is_finished_and_its_figures_are_printed(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (files / "finished" / "metrics.json").read_bytes()
    assert run("train", [*TRAINING, "--max-steps", "10", "--output", "finished"]) == 0
    out, err = capsys.readouterr()
    assert "finished is finished" in err
    assert f"{stored('finished')['after']['ndcg_at_10']:.4f}" in out
    assert (files / "finished" / "metrics.json").read_bytes() == before


def test_runs_and_evaluations_are_compared(files: Path) -> None:
    assert run("compare", ["finished", "evaluation", "calibrated", "--output", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert f"{stored('finished')['after']['ndcg_at_10']:.4f}" in page
    run_of = read_directory(files / "finished", "finished")
    assert run_of.settings["training.max_steps"] == "10"
    assert [step for step, _ in run_of.curves["loss"]] == list(range(1, 11))


def test_a_model_has_the_same_figures_on_a_prepared_data_set(files: Path) -> None:
    config = ModelConfig("finished/model")
    retriever = load_for_encoding(config, "fp32", torch.device("cpu"))
    dataset = open_dataset("prepared", ["test"], tokenisation=tokenisation_of(retriever))
    result = evaluate_retriever(dataset, "test", config, retriever).metrics
    for name, value in stored("finished")["after"].items():
        assert result[name] == pytest.approx(value, abs=1e-6), name


@pytest.mark.slow
def test_an_evaluation_is_made_again_by_its_command(files: Path) -> None:
    words = ["--model", "bm25", "after=finished", "--datasets", "letters", "--metrics", "ndcg@10", "--precision"]
    assert run("evaluate", [*words, "fp32", "--output", "evaluation"]) == 0
    after = json.loads(Path("evaluation/results.json").read_bytes())["models"]["after"]["letters"]
    assert after["ndcg_at_10"] == pytest.approx(stored("finished")["after"]["ndcg_at_10"], abs=1e-6)


def test_a_run_is_searched_with(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = json.loads(Path("letters/queries.jsonl").read_text().splitlines()[0])["text"]
    assert run("search", ["--model", "finished", "--dataset", "letters", query, "--top", "3"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line[:1] != " " * 10 and "  d" in line]) == 3


def test_embeddings_are_read(files: Path) -> None:
    store = EmbeddingStore.open(files / "passages")
    assert store.array().shape == (60, 8)
    assert np.allclose(np.linalg.norm(store.array(), axis=1), 1, atol=1e-6)
    words = ["--method", "dense", "--num-negatives", "2", "--embeddings", "passages", "--output", "mined"]
    assert run("mine", [*ENCODING, *words]) == 0


def test_an_index_is_opened_and_searched(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--index", "hnsw", "--degree", "4", "--output", "index", "--query", "what is abc", "--top", "2"]
    assert run("index", [*ENCODING, *words]) == 0
    assert "opened" in capsys.readouterr().out


def test_a_sweep_is_finished(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--search-space", "space.yaml", "--max-steps", "4", "--output", "sweep"]
    assert run("tune", [*TRAINING, *words]) == 0
    assert f"{stored('sweep/best')['after']['ndcg_at_10']:.4f}" in capsys.readouterr().out


def test_a_negatives_table_is_read(files: Path) -> None:
    opened, _ = open_run(settings("--negatives-table", "table"), ignore_line)
    table = find_negatives(opened.stages[0], bm25_of, ignore_line)
    assert table is not None
    assert len(table) == 80


def test_training_continues_from_a_checkpoint(files: Path) -> None:
    curriculum = settings("--max-steps", str(STEPS))
    assert open_run_directory(Path("interrupted"), curriculum, fresh=False).state == "interrupted"
    opened, _ = open_run(curriculum, ignore_line)
    config = curriculum.base
    retriever = load_retriever(config.model)
    prepare_for_training(retriever, config.model, config.training.seed)
    negatives = find_negatives(opened.stages[0], bm25_of, ignore_line)
    places = [dataset.location for dataset in opened.stages[0].training_data.datasets]
    reading = tokenisation_of(retriever), config.training.batch_size, config.training.seed
    training_data = TrainingData.open(places, config.data, *reading)
    steps: list[int] = []
    notices: list[str] = []
    progression = train(
        TrainingSetup(
            retriever=retriever,
            train=training_data.train(negatives),
            dev=training_data.dev(),
            loss=config.loss,
            training=config.training,
            total_steps=STEPS,
            precision="fp32",
            device=torch.device("cpu"),
            workers=ALONE,
            folder=files / "interrupted" / "checkpoints",
            on_metrics=lambda step, measured: steps.append(step) if "loss" in measured else None,
            log=notices.append,
            data_digest=training_data.digest(negatives),
        )
    )
    assert f"Resumed from checkpoint step-{STEP}." in notices
    assert steps == list(range(STEP + 1, STEPS + 1))
    assert progression.step == STEPS


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_its_end(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(read_curve(files / "interrupted", "loss"))
    assert run("train", [*TRAINING, "--max-steps", str(STEPS), "--output", "interrupted"]) == 0
    assert f"Resumed from checkpoint step-{STEP}" in capsys.readouterr().err
    after = dict(read_curve(files / "interrupted", "loss"))
    assert list(after) == list(range(1, STEPS + 1))
    assert {step: after[step] for step in before} == before
    assert stored("interrupted")["after"].keys() == stored("finished")["after"].keys()
