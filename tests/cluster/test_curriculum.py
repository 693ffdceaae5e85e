"""Two stages under a real Ray: one command, one run with children."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from mlflow import MlflowClient
from safetensors.torch import load_file

from raytriever.core.store.commit import read_manifest
from raytriever.evaluation.results import Results

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
