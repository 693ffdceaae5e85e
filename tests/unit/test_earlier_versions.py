"""Files that earlier versions wrote: this version reads, compares, searches, evaluates and continues them.

`tests/fixtures/commands.py` says how they were made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file

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
from raytriever.mining.config import ScoreConfig
from raytriever.mining.teacher import ScoringJob, run_scoring
from raytriever.models.config import ModelConfig
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import load_retriever
from raytriever.report.finished_runs import read_directory
from raytriever.search.exact import search_store
from raytriever.tracking.steps import read_curve
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.refresh import read_ledger
from raytriever.training.training_data import TrainingData
from raytriever.training.validation import read_records
from raytriever.tuning.trial_log import read_trials

sys.path.append(str(Path(__file__).parents[1] / "fixtures"))
import commands

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "fixtures"
STEP, STEPS = commands.FIRST_STEP, commands.FIRST_STEPS
# The commands of a finished training and of a finished sweep.
TRAIN = {"0_1": [*commands.FIRST_TRAINING, "--max-steps", "10"], "0_2": commands.REFRESHED}
TUNE = {"0_1": [*commands.FIRST_TRAINING, "--search-space", "space.yaml", "--max-steps", "4"], "0_2": commands.SWEEP}
MODEL = commands.MODEL  # both versions have the same data set and settings
in_each_version = pytest.mark.parametrize("version", ["0_1", "0_2"])


@pytest.fixture
def files(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a version's files, which is the current directory, with the encoder and the data set of both."""
    folder = Path(shutil.copytree(FIXTURES / f"version_{version}", tmp_path / "files"))
    for name in ("encoder", "letters"):
        shutil.copytree(FIXTURES / "version_0_1" / name, folder / name, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAYTRIEVER_CACHE", "cache")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return folder


@pytest.fixture
def version() -> str:
    """The version whose files are copied, where a test names none."""
    return "0_2"


def settings(*words: str) -> Curriculum:
    return resolve_settings(_parser().parse([*words]))


def bm25_of(dataset: RetrievalDataset) -> Bm25Index:
    return Bm25Index(dataset.passages())


def read(file: str) -> Any:
    return json.loads(Path(file).read_bytes())


def after(folder: str) -> dict[str, float]:
    metrics: dict[str, float] = read(f"{folder}/metrics.json")["after"]
    return metrics


def state_of(folders: Iterator[Path]) -> dict[int, int]:
    """The files of folders by their inodes, which a rename keeps, with the time of their last change."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and file.name != "run.json"]
    assert files
    return {file.stat().st_ino: file.stat().st_mtime_ns for file in files}


def seal(folder: Path) -> None:
    """Make the manifest of a committed directory agree with files that a test has altered."""
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_bytes())
    for name, entry in content["files"].items():
        payload = (folder / name).read_bytes()
        entry |= {"size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    manifest.write_text(json.dumps(content))


@in_each_version
def test_a_finished_run_is_finished_and_its_figures_are_printed(
    files: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (files / "finished" / "metrics.json").read_bytes()
    assert run("train", [*TRAIN[version], "--output", "finished"]) == 0
    out, err = capsys.readouterr()
    assert "finished is finished" in err
    assert f"{after('finished')['ndcg_at_10']:.4f}" in out
    assert (files / "finished" / "metrics.json").read_bytes() == before


@pytest.mark.fast_every(9)
@in_each_version
def test_runs_and_evaluations_are_compared(files: Path, version: str) -> None:
    more = ["calibrated"] if version == "0_1" else []
    assert run("compare", ["finished", "evaluation", *more, "--output", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert f"{after('finished')['ndcg_at_10']:.4f}" in page
    run_of = read_directory(files / "finished", "finished")
    steps = int(run_of.settings["training.max_steps"])
    assert steps == (10 if version == "0_1" else commands.STEPS)
    assert [step for step, _ in run_of.curves["loss"]] == list(range(1, steps + 1))


@in_each_version
def test_a_model_has_the_same_figures_on_a_prepared_data_set(files: Path) -> None:
    config = ModelConfig("finished/model")
    retriever = load_for_encoding(config, "fp32", torch.device("cpu"))
    dataset = open_dataset("prepared", ["test"], tokenisation=tokenisation_of(retriever))
    result = evaluate_retriever(dataset, "test", config, retriever).metrics
    for name, value in after("finished").items():
        assert result[name] == pytest.approx(value, abs=1e-6), name


@pytest.mark.slow
@in_each_version
def test_an_evaluation_is_made_again_by_its_command(files: Path, version: str) -> None:
    words = commands.FIRST_EVALUATION if version == "0_1" else commands.EVALUATION
    before = read("evaluation/results.json")["models"]
    assert run("evaluate", [*words, "--output", "evaluation"]) == 0
    models = read("evaluation/results.json")["models"]
    assert models.keys() == before.keys()
    for model, figures in before.items():
        assert models[model]["letters"] == pytest.approx(figures["letters"], abs=1e-6)
    assert models["after"]["letters"]["ndcg_at_10"] == pytest.approx(after("finished")["ndcg_at_10"], abs=1e-6)


@pytest.mark.parametrize(("version", "model"), [("0_1", "finished"), ("0_2", "finished"), ("0_2", "exported")])
def test_a_run_or_an_exported_model_is_searched_with(
    files: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    query = json.loads(Path("letters/queries.jsonl").read_text().splitlines()[0])["text"]
    printed = []
    for name in {model, "finished"}:
        assert run("search", ["--model", name, "--dataset", "letters", query, "--top", "3"]) == 0
        lines = capsys.readouterr().out.splitlines()
        printed.append([line for line in lines if line[:1] != " " * 10 and "  d" in line])
        assert len(printed[-1]) == 3
    assert printed[0] == printed[-1]


@pytest.mark.parametrize(
    ("version", "name"),
    [("0_1", "passages"), *(("0_2", name) for name in ("passages", "passages-fp16", "passages-int8"))],
)
def test_embeddings_are_read(files: Path, version: str, name: str) -> None:
    store = EmbeddingStore.open(files / name)
    assert store.array().shape == (60, 8)
    assert np.allclose(np.linalg.norm(store.array(), axis=1), 1, atol=2e-2 if "-" in name else 1e-6)
    assert np.allclose(store.array(), EmbeddingStore.open(files / "passages").array(), atol=1e-2)
    if name == "passages":
        words = ["--method", "dense", "--num-negatives", "2", "--embeddings", name, "--output", "mined"]
        assert run("mine", [*MODEL, *words]) == 0


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("version", "name", "words"),
    [
        ("0_1", "index", ["--index", "hnsw", "--degree", "4"]),
        *(("0_2", f"index-{kind}", ["--index", kind, *words]) for kind, words in commands.INDEXES.items()),
    ],
)
def test_an_index_is_opened_and_searched(
    files: Path, version: str, name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--embeddings", "passages"] if version == "0_2" else []
    assert run("index", [*MODEL, *words, *more, *commands.QUERY, "--output", name]) == 0
    printed = capsys.readouterr().out
    assert "opened" in printed
    if version == "0_2":
        assert commands.answers(printed) == read("expected.json")[name.removeprefix("index-")]


@in_each_version
def test_a_sweep_is_finished(files: Path, version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tune", [*TUNE[version], "--output", "sweep"]) == 0
    assert f"{after('sweep/best')['ndcg_at_10']:.4f}" in capsys.readouterr().out


@in_each_version
def test_a_negatives_table_is_read(files: Path) -> None:
    opened, _ = open_run(settings(*commands.FIRST_TRAINING, "--negatives-table", "table"), ignore_line)
    table = find_negatives(opened.stages[0], bm25_of, ignore_line)
    assert table is not None
    assert len(table) == 80


@pytest.mark.parametrize("version", ["0_1"])
def test_training_continues_from_a_checkpoint(files: Path) -> None:
    curriculum = settings(*commands.FIRST_TRAINING, "--max-steps", str(STEPS))
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
@pytest.mark.parametrize(
    ("version", "words", "steps"),
    [
        ("0_1", [*commands.FIRST_TRAINING, "--max-steps", str(STEPS)], STEPS),
        ("0_2", commands.REFRESHED, commands.STEPS),
    ],
)
def test_an_interrupted_run_goes_on_to_its_end(
    files: Path, version: str, words: list[str], steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = dict(read_curve(files / "interrupted", "loss"))
    newest = max(int(path.name.split("-")[1]) for path in Path("interrupted/checkpoints").iterdir())
    assert run("train", [*words, "--output", "interrupted"]) == 0
    assert f"Resumed from checkpoint step-{newest}" in capsys.readouterr().err
    losses = dict(read_curve(files / "interrupted", "loss"))
    assert list(losses) == list(range(1, steps + 1))
    assert {step: losses[step] for step in before} == before
    assert after("interrupted").keys() == after("finished").keys()
    if version == "0_2":  # the finished run is the same run, never interrupted
        weights, expected = (load_file(f"{name}/model/model.safetensors") for name in ("interrupted", "finished"))
        assert weights.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(weights[name], values, atol=1e-5, err_msg=name)
        assert [one.used_from for one in read_ledger(Path("interrupted/negatives")).rounds] == [
            one.used_from for one in read_ledger(Path("finished/negatives")).rounds
        ]


def test_the_rounds_and_validations_of_an_interrupted_run_are_those_of_the_whole_run(files: Path) -> None:
    def rounds(name: str) -> list[tuple[object, ...]]:
        ledger = read_ledger(Path(name, "negatives"))
        return [(one.number, one.due, one.used_from, one.digest) for one in ledger.adopted_rounds]

    assert len(rounds("interrupted")) >= 2
    assert rounds("interrupted") == rounds("finished")[: len(rounds("interrupted"))]
    records, whole = (
        [(one.step, one.value) for one in read_records(Path(name, "evaluations"))]
        for name in ("interrupted", "finished")
    )
    assert records
    assert records == whole[: len(records)]


def test_a_killed_preparation_begins_again(files: Path) -> None:
    assert len(list(files.glob(".preparing.*"))) == 1
    assert run("prepare", [*commands.PREPARATION, "--output", "preparing"]) == 0
    manifest, whole = read("preparing/manifest.json"), read("prepared/manifest.json")
    assert manifest["files"] == whole["files"]
    assert manifest["meta"]["chunks"] == whole["meta"]["chunks"]


@pytest.mark.slow
def test_shards_of_unfinished_embeddings_are_not_encoded_again(files: Path) -> None:
    shards = state_of(iter([files / "encoding" / "shards"]))
    assert len(shards) == 6  # the embeddings, keys and manifests of two shards
    assert run("encode", [*MODEL, "--output", "encoding"]) == 0
    assert shards.items() <= state_of(iter([files / "encoding"])).items()
    store, whole = EmbeddingStore.open(files / "encoding"), EmbeddingStore.open(files / "passages")
    assert store.meta == whole.meta
    assert np.allclose(store.array(), whole.array(), atol=1e-6)


@pytest.mark.parametrize("is_altered", [False, True])
def test_an_unfinished_search_continues(files: Path, is_altered: bool) -> None:
    [kept] = Path("searching").iterdir()
    if is_altered:
        ranking = np.load(kept / "ranking.npy")
        np.save(kept / "ranking.npy", np.full_like(ranking, ranking.min()))
        seal(kept)
    store = EmbeddingStore.open("passages")
    scores, rows = search_store(store, np.load("queries.npy"), 10, np.arange(60), unfinished=Path("searching"))
    whole = np.load("searched.npz")
    assert np.array_equal(rows, whole["rows"]) != is_altered
    assert np.allclose(scores, whole["scores"], atol=1e-6) != is_altered
    assert not kept.exists()


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("is_altered", [False, True])
@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_unfinished_index_continues(
    files: Path, kind: str, is_altered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    faiss = pytest.importorskip("faiss")
    if is_altered:  # the kept passages become zeros, which answer nothing
        for file in Path("cache/indexes").glob("*/index.faiss"):
            index = faiss.read_index(str(file))
            index.reset()
            index.add(np.zeros((32, 8), np.float32))
            faiss.write_index(index, str(file))
            seal(file.parent)
    kept = len(list(Path("cache/indexes").iterdir()))
    words = ["--embeddings", "passages", "--index", kind, *commands.INDEXES[kind], *commands.QUERY]
    assert run("index", [*MODEL, *words, "--output", "grown"]) == 0
    assert (commands.answers(capsys.readouterr().out) == read("expected.json")[kind]) != is_altered
    assert len(list(Path("cache/indexes").iterdir())) == kept - 1


def test_an_unfinished_mining_begins_again(files: Path) -> None:
    [file] = Path("cache/negatives").glob("*-blocks/*.npz")
    block = dict(np.load(file))
    np.savez(file, **{**block, "documents": block["documents"][::-1]})
    assert run("mine", [*commands.MINING, "--output", "mined"]) == 0
    mined, whole = (
        (content["files"], content["meta"]["counts"])
        for content in (read("mined/manifest.json"), read("table/manifest.json"))
    )
    assert mined == whole


def test_scored_pairs_are_not_scored_again(files: Path) -> None:
    config = ScoreConfig(model="cross", negatives="table")
    job = ScoringJob(dataset="letters", split="train", config=config, precision="fp32", max_bad_rows=0.01, part=50)
    assert run_scoring(job, Path("scoring"), ignore_line).scored == 20
    scores, whole = (pq.read_table(f"{name}/part-00000.parquet").to_pydict() for name in ("scoring", "scores"))
    assert scores.keys() == whole.keys()
    for name, values in whole.items():
        assert scores[name] == (pytest.approx(values, abs=1e-6) if name == "score" else values), name


@pytest.mark.slow
def test_an_interrupted_evaluation_measures_what_this_version_needs(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = read("evaluation/results.json")
    assert run("evaluate", [*commands.EVALUATION, "--output", "evaluating"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "measured before" in line]
    assert not lines  # those of an earlier version have no questions without their answers
    results = read("evaluating/results.json")
    assert results["models"]["bm25"] == expected["models"]["bm25"]
    for model, figures in expected["models"].items():
        assert results["models"][model]["letters"] == pytest.approx(figures["letters"], abs=1e-6)
    assert not Path("evaluating.unfinished").exists()


@pytest.mark.parametrize("is_cut", [False, True])
def test_paid_answers_are_not_paid_again(files: Path, is_cut: bool, capsys: pytest.CaptureFixture[str]) -> None:
    log = Path("answers/answers.log")
    lines = log.read_bytes().splitlines(keepends=True)
    kept = len(lines)
    if is_cut:  # as a kill leaves it
        kept //= 2
        log.write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    server = [sys.executable, str(TESTS / "support" / "llm_server.py"), "--log", str(files / "requests.jsonl")]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
            if not is_cut:
                process.kill()
            words = [*commands.ANNOTATION, "--endpoint", endpoint, "--answers", "answers", "--output", "again"]
            assert run("annotate", words) == 0
        finally:
            process.kill()
    assert f"{len(lines) - kept} answers paid in this run, {kept} answers from the log" in capsys.readouterr().out
    assert Path("again/annotations.jsonl").read_bytes() == Path("annotated/annotations.jsonl").read_bytes()


def test_an_interrupted_sweep_has_its_finished_trial(files: Path) -> None:
    trial, running = read_trials(files / "sweeping")
    whole = read_trials(files / "sweep")
    assert (trial.status, running.status) == ("finished", "running")
    assert trial.settings == whole[0].settings
    assert trial.metrics == pytest.approx(whole[0].metrics, abs=1e-6)


@pytest.mark.slow
def test_finished_trials_of_an_interrupted_sweep_are_not_run_again(files: Path) -> None:
    folder = files / "sweeping" / "trials" / "000"
    trial, steps = state_of(iter([folder])), (folder / "steps.jsonl").read_bytes()
    assert run("tune", [*commands.SWEEP, "--output", "sweeping"]) == 0
    assert (folder / "steps.jsonl").read_bytes().startswith(steps)  # the figures of the best trial follow
    os.utime(folder / "steps.jsonl", ns=(0, trial[(folder / "steps.jsonl").stat().st_ino]))
    assert state_of(iter([folder])) == trial
    for one, other in zip(read_trials(files / "sweeping"), read_trials(files / "sweep"), strict=True):
        assert one.metrics == pytest.approx(other.metrics, abs=1e-5)


@pytest.mark.slow
def test_finished_arms_of_an_interrupted_study_are_not_run_again(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = [file.parent for file in Path("studying/arms").glob("*/*/metrics.json")]
    assert len(finished) == 2
    before = state_of(iter(finished))
    assert run("study", ["study.yaml", "--output", "studying", "--tracker", "none"]) == 0
    assert state_of(iter(finished)) == before
    assert len(list(Path("studying/arms").glob("*/*/metrics.json"))) == 3
    expected = read("expected.json")["study"]
    rows = read("studying/results.json")["rows"]
    assert rows.keys() == expected.keys()
    for row, cells in expected.items():
        for metric, cell in cells["Letters"].items():
            assert rows[row]["Letters"][metric]["mean"] == pytest.approx(cell["mean"], abs=1e-5), (row, metric)
