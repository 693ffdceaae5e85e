"""Training under a real Ray, of one stage and of two, from the command line to its directory and MLflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from mlflow import MlflowClient
from processes import losses, steps, wait_for
from safetensors.torch import load_file

from raytriever.core.store.commit import read_manifest
from raytriever.core.store.lock import owner_of
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.results import Results


def test_a_run_on_two_workers_from_the_command_to_the_report(command_line: Callable) -> None:
    cli = command_line()
    prompt = {"query": "letters of: ", "passage": "spelled: "}
    (cli.folder / "run.yaml").write_text(yaml.safe_dump({"model": {"dataset_prompts": {"letters": prompt}}}))
    done = cli.train("--config", "run.yaml", "--max-steps", "6", "--num-workers", "2", "--output", "run")
    assert done.returncode == 0, done.stderr
    run = cli.folder / "run"

    # The run directory holds what it promises, and the table shows it.
    results = Results.read(run / "evaluation")
    assert results.about["letters"].split == "test"
    figures = {name: sets["letters"] for name, sets in results.models.items()}
    assert figures["after"]["ndcg_at_10"] > figures["before"]["ndcg_at_10"]
    table = [line.split() for line in done.stdout.splitlines() if re.match("(bm25|before|after) ", line)]
    assert [float(row[-1].rstrip("+-")) for row in table] == [round(figure["auc"], 4) for figure in figures.values()]
    assert all(metric_title(name) in done.stdout for name in figures["after"])
    assert re.search(r"mlflow ui --backend-store-uri \S+  \(then open http://\S+/#/experiments/1/runs\)", done.stdout)
    assert "raytriever search" in done.stdout
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["num_workers"] == 2
    for name in (
        *(f"evaluation/runs/{system}/letters.trec" for system in ("bm25", "before", "after")),
        "figures/roc.letters.png",
        "report.html",
    ):
        assert (run / name).stat().st_size > 500, name
    assert sorted(path.name for path in (run / "checkpoints").iterdir())
    read_manifest(run / "model")
    saved = json.loads((run / "model" / "config_sentence_transformers.json").read_text())["prompts"]
    assert set(prompt.values()) <= set(saved.values())
    assert sorted(step for step, metrics in steps(run).items() if "loss" in metrics) == [1, 2, 3, 4, 5, 6]

    # MLflow has the settings, the data, every step once, the end's figures and the files.
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [experiment] = [e for e in client.search_experiments() if e.name == "raytriever"]
    [tracked] = client.search_runs([experiment.experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["loss.loss"] == "mw"
    assert tracked.data.params["model.pooling"] == "mean"
    assert tracked.data.tags["raytriever.command"] == "train"
    assert tracked.data.metrics["after/letters/auc"] == pytest.approx(figures["after"]["auc"])
    history = client.get_metric_history(tracked.info.run_id, "loss")
    assert [point.step for point in history] == [1, 2, 3, 4, 5, 6]
    # MLflow draws what has step 0 alone as bars.
    for name in ("bm25/letters/ndcg_at_10", "after/letters/auc", "significance/after-before/letters/auc_p"):
        assert [point.step for point in client.get_metric_history(tracked.info.run_id, name)] == [0]
    [fed] = tracked.inputs.dataset_inputs
    assert json.loads(fed.dataset.profile)["train_queries"] == 96
    assert {file.path for file in client.list_artifacts(tracked.info.run_id)} >= {"model", "figures", "report.html"}


@pytest.mark.slow
def test_a_mistake_that_only_a_worker_meets_ends_in_one_line(command_line: Callable) -> None:
    cli = command_line()
    done = cli.train("--max-steps", "30", "--learning-rate", "1e30", "--warmup-steps", "0", "--output", "run")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "NaN" in last or "nan" in last or "inf" in last
    assert not (cli.folder / "run" / "metrics.json").exists()


LLM_STEPS, HUMAN_STEPS = 6, 12


@pytest.fixture
def two_sources(tiny_dataset: Path, tmp_path: Path) -> Path:
    """The tiny data set with every third training positive judged by people and the others by an LLM."""
    folder = Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))
    lines = (folder / "qrels" / "train.tsv").read_text().splitlines()
    rows = [f"{line}\t{'llm' if number % 3 else 'human'}" for number, line in enumerate(lines[1:])]
    (folder / "qrels" / "train.tsv").write_text("\n".join([f"{lines[0]}\tsource", *rows, ""]))
    return folder


@pytest.fixture
def configuration(two_sources: Path, tiny_encoder: Path, tmp_path: Path) -> Path:
    """Section 4.3 of the multi-positive paper, made small. The second stage moves no weight: its learning rate is
    smaller than what float32 can add, so that one sees where it began."""
    content = {
        "data": {"dataset": str(two_sources), "negatives_per_query": 1},
        "model": {"model": str(tiny_encoder)},
        "loss": {"temperature": 0.05},
        "training": {"batch_size": 16, "precision": "fp32", "learning_rate": 1e-3, "warmup_steps": 0, "patience": 99},
        "stages": [
            {
                "name": "llm",
                "data": {"positives": "llm", "positives_per_query": 2, "negatives_per_query": 2},
                "loss": {"loss": "lsepair"},
                "training": {"max_steps": LLM_STEPS, "eval_steps": 3},
            },
            {
                "name": "human",
                "data": {"positives": "human"},
                "loss": {"loss": "infonce"},
                "training": {"max_steps": HUMAN_STEPS, "eval_steps": 6, "learning_rate": 1e-15},
            },
        ],
    }
    file = tmp_path / "curriculum.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def weights(model: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_file(model / "model.safetensors").items())])


@pytest.mark.slow
def test_stages_are_one_run_with_children(command_line: Callable, configuration: Path, tiny_encoder: Path) -> None:
    cli = command_line()
    words = ["--config", str(configuration), "--output", "run", "--run-name", "whole"]
    run = cli.folder / "run"
    first, second = run / "stages" / "1-llm", run / "stages" / "2-human"
    out, err = cli.run("train", *words)
    for stage in (f"stage 1 of 2, llm: {LLM_STEPS} steps", f"stage 2 of 2, human: {HUMAN_STEPS} steps"):
        assert stage in err

    # The second stage began where the first one ended, and its model is the run's.
    began, between = weights(tiny_encoder), weights(first / "model")
    assert (between - began).abs().max() > 1e-3
    assert (weights(second / "model") - between).abs().max() < 1e-6
    read_manifest(run / "model")
    assert torch.equal(weights(run / "model"), weights(second / "model"))

    # Measured once, for the whole, and calibrated as a run without stages is.
    assert (run / "model" / "calibration.json").is_file(), err
    results = Results.read(run / "evaluation")
    assert list(results.models) == ["bm25", "before", "after"]
    assert results.about["letters"].split == "test"
    assert results.models["after"] != results.models["before"]
    assert "the loss lsepair then infonce" in out
    for name in ("evaluation/runs/after/letters.trec", "figures/loss.png", "report.html", "config.yaml"):
        assert (run / name).stat().st_size > 500, name
    closing = json.loads((first / "metrics.json").read_text())
    assert (closing["steps"], closing["best"]["metric"]) == (LLM_STEPS, "dev_loss")
    assert closing["best"]["value"] > 0
    own = yaml.safe_load((second / "config.yaml").read_text())
    assert (own["loss"]["loss"], own["data"]["positives"]) == ("infonce", "human")

    # One run with two children, which have the curves: every step once, from 1 in each.
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [experiment] = [e for e in client.search_experiments() if e.name == "raytriever"]
    tracked = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert sorted(tracked) == ["1-llm of whole", "2-human of whole", "whole"]
    assert {value.info.status for value in tracked.values()} == {"FINISHED"}
    parent = tracked.pop("whole")
    assert "mlflow.parentRunId" not in parent.data.tags
    assert {child.data.tags["mlflow.parentRunId"] for child in tracked.values()} == {parent.info.run_id}
    for name, count in (("1-llm of whole", LLM_STEPS), ("2-human of whole", HUMAN_STEPS)):
        history = client.get_metric_history(tracked[name].info.run_id, "loss")
        assert sorted(point.step for point in history) == list(range(1, count + 1)), name
    assert client.get_metric_history(parent.info.run_id, "loss") == []
    assert parent.data.metrics["after/letters/auc"] == pytest.approx(results.models["after"]["letters"]["auc"])
    assert parent.data.params["stages.1.loss.loss"] == tracked["1-llm of whole"].data.params["loss.loss"] == "lsepair"
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} >= {"config.yaml", "model", "report.html"}

    # The same again has nothing to do; another setting of a stage is another run.
    assert cli.run("train", *words)[0] == out
    configuration.write_text(configuration.read_text().replace(f"max_steps: {LLM_STEPS}", "max_steps: 7"))
    _, err = cli.run("train", *words, code=2)
    assert f"(training.max_steps of stage 'llm' is {LLM_STEPS} there and 7 here)" in err


STEPS = 200
SETTINGS = ["--eval-steps", "20", "--patience", "99", "--max-steps", str(STEPS), "--output", "run"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_equal_trainings_lose_no_step(command_line: Callable[..., Any], started: list[Any]) -> None:
    cli = command_line()
    run = cli.folder / "run"
    (cli.folder / "link").symlink_to("run")
    started.append(cli.start("train", *cli.settings, *SETTINGS))
    owner = wait_for(lambda: owner_of(run), 60, started[0])
    assert (owner.pid, owner.command) == (started[0].pid, "raytriever train")
    for words in (["--output", "link"], ["--fresh"]):
        second = cli.train(*SETTINGS, *words)
        assert second.returncode == 2
        assert f"in use by 'raytriever train' on host {owner.host}, pid {owner.pid}, since " in second.stderr
    wait_for((run / "checkpoints" / "step-40").exists, 200, started[0])
    refused = cli.train(*SETTINGS, "--fresh")
    assert (refused.returncode, "in use by 'raytriever train'" in refused.stderr) == (2, True)

    # Killed, with its workers alive, and at once given again by two commands.
    os.kill(started[0].pid, signal.SIGKILL)
    started += [cli.start("train", *cli.settings, *SETTINGS, "--wait") for _ in range(2)]
    ends = [process.communicate(timeout=500) for process in started[1:]]
    assert [process.returncode for process in started[1:]] == [0, 0], ends
    assert sum("is finished; --fresh removes it and trains again" in said for _, said in ends) == 1
    assert sum("waiting for 'raytriever train'" in said for _, said in ends) == 1
    assert sum("Resumed from checkpoint" in said for _, said in ends) == 1
    assert list(losses(run)) == list(range(1, STEPS + 1))
    assert json.loads((run / "run.json").read_bytes())
    assert Results.read(run / "evaluation").models["after"]
    assert owner_of(run) is None
    assert not (cli.folder / ".run.lock").exists()
