"""Sweeps and studies with a real Ray, from the command line to their files and their runs in MLflow."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from mlflow import MlflowClient
from processes import losses

from raytriever.cluster.ray_session import ray_session
from raytriever.evaluation.results import Results
from raytriever.experiments.operation.run_inventory import read_run
from raytriever.experiments.study.run_study import NICENESS, _equal_priority

pytestmark = pytest.mark.slow
SPACE = {"loss": {"loss": ["infonce", "mw"], "temperature": [0.02, 0.05]}}


@pytest.fixture
def space(tmp_path: Path) -> str:
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump(SPACE))
    return str(file)


def trial_log(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "trials.json").read_text())["trials"]


def tracked(uri: str) -> tuple[list[Any], list[Any]]:
    """Return the parent runs and the child runs."""
    client = MlflowClient(uri)
    [experiment] = [e for e in client.search_experiments() if e.name == "raytriever"]
    runs = client.search_runs([experiment.experiment_id])
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    return [run for run in runs if run not in children], children


def test_a_sweep_from_its_trials_to_the_settings_of_the_best(command_line: Callable, space: str) -> None:
    cli = command_line()
    folder = cli.folder / "sweep"
    settings = [*cli.settings, "--max-steps", "60", "--eval-steps", "10", "--patience", "99"]
    words = [*settings, "--search-space", space, "--trials-at-once", "2", "--output", "sweep", "--run-name", "sweep"]
    out, err = cli.run("tune", *words)
    after = trial_log(folder)
    assert [trial["status"] for trial in after] == ["finished"] * 4
    assert [trial["settings"] for trial in after] == [
        {"loss.loss": loss, "loss.temperature": tau} for loss in ("infonce", "mw") for tau in (0.02, 0.05)
    ]
    # MLflow: one parent, a child a trial.
    parents, children = tracked(cli.environment["MLFLOW_TRACKING_URI"])
    assert len(parents) == 1
    assert {run.info.run_name for run in children} == {
        f"loss {loss}, temperature {tau} ({n:03d} of sweep)"
        for n, (loss, tau) in enumerate(itertools.product(("infonce", "mw"), (0.02, 0.05)))
    }
    # The sweep itself has no value of what it searched.
    assert not {"loss.loss", "loss.temperature"} & parents[0].data.params.keys()
    assert "loss.margin" in parents[0].data.params
    for run in children:
        assert run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id

    # The best by the dev split was measured on the test split, and its settings stand there to be given again.
    best = max(after, key=lambda trial: (trial["metrics"]["ndcg_at_10"], -trial["number"]))
    assert json.loads((folder / "trials.json").read_text())["best"] == best["number"]
    assert (
        yaml.safe_load((folder / "best.yaml").read_text())["loss"]["temperature"]
        == best["settings"]["loss.temperature"]
    )
    results = Results.read(folder / "best" / "evaluation")
    assert results.about["letters"].split == "test"
    figures = results.models["after"]["letters"]
    assert f"{figures['ndcg_at_10']:.4f}" in out
    [metrics] = [run for run in children if "after/letters/ndcg_at_10" in run.data.metrics]
    assert parents[0].data.tags["raytriever.best_trial"] == metrics.info.run_name
    assert "#/compare-runs?runs=%5B%22" in out
    for trial in after:
        has_checkpoints = (folder / "trials" / f"{trial['number']:03d}" / "checkpoints").exists()
        assert has_checkpoints == (trial["number"] == best["number"])
    for kind in ("png", "svg"):
        assert (folder / "figures" / f"response-temperature.{kind}").stat().st_size > 500
    assert (folder / "table.md").read_text().count("\n") == 6

    listed = read_run(folder)
    assert listed is not None
    assert (listed.state, listed.detail) == ("finished", "4 of 4 trials")

    # Trained once more by its settings, it comes out the same.
    cli.run("train", "--config", "sweep/best.yaml", "--output", "remade")
    remade = Results.read(cli.folder / "remade" / "evaluation").models["after"]["letters"]
    assert remade == pytest.approx(figures, abs=0.02)

    # Given once more it has nothing to do, and says the same.
    out_again, err = cli.run("tune", *words)
    assert "is finished" in err
    assert out_again == out


def test_failed_and_stopped_trials_of_two_workers_do_not_end_the_others(command_line: Callable, tmp_path: Path) -> None:
    cli = command_line()
    folder = cli.folder / "sweep"
    file = tmp_path / "rates.yaml"
    # The first learns; the second's weights become infinite; the last two learn nothing, and are behind.
    file.write_text(yaml.safe_dump({"training": {"learning_rate": [1e-3, 1e30, 1e-12, 1e-13]}}))
    words = [*cli.settings, "--max-steps", "60", "--eval-steps", "10", "--patience", "99", "--warmup-steps", "0"]
    words += ["--search-space", str(file), "--trials-at-once", "1", "--num-workers", "2", "--output", "sweep"]
    out, err = cli.run("tune", *words, "--asha", "--asha-grace", "10", "--asha-factor", "2", code=2)
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert "1 of 4 trials failed; the first was 001: " in last
    trials = trial_log(folder)
    assert [trial["status"] for trial in trials] == ["finished", "failed", "stopped", "stopped"]
    assert trials[2]["reason"] == "behind at step 10"
    assert sorted(losses(folder / "trials" / "002"))[:10] == list(range(1, 11))
    assert "before and after training in trial 000" in out
    _, children = tracked(cli.environment["MLFLOW_TRACKING_URI"])
    assert sorted(run.info.status for run in children) == ["FAILED", "FINISHED", "KILLED", "KILLED"]


CommandLine = Any


def test_rays_processes_have_the_priority_of_the_study() -> None:
    """Else a refresh of hard negatives waits for the training in the process of the study."""
    before = dict(os.environ)
    with _equal_priority(), ray_session(1):
        there = ray.get(ray.remote(lambda: os.nice(0)).remote())
    assert there == os.nice(0)
    assert dict(os.environ).get(NICENESS) == before.get(NICENESS)


def test_a_study_of_a_file_compares_its_variants(
    command_line: Callable[[], CommandLine], study_text: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(study_text.replace("seeds: 1", "seeds: 2"))
    line = command_line()
    for _ in range(2):
        out, err = line.run("study", "mine.yaml", "--output", "mine")
    assert "mine is finished; a larger --seeds continues it" in err
    results = json.loads((tmp_path / "mine" / "results.json").read_text())
    assert (results["study"], results["seeds"]) == ("mine", 2)
    auc = {row: cell["Letters"]["auc"] for row, cell in results["rows"].items()}
    assert {row: len(value["values"]) for row, value in auc.items()} == {"untrained": 1, "InfoNCE": 2, "MW": 2}
    assert auc["MW"]["mean"] > auc["untrained"]["mean"]
    assert results["claims"][0]["text"] == "MW is above untrained in AUC"
    assert r"\toprule" in (tmp_path / "mine" / "table.tex").read_text()
    assert "InfoNCE" in out
    assert "All pairs: t-test over queries and seeds" in (tmp_path / "mine" / "study.md").read_text()
    assert {(row["model"], row["metric"]) for row in results["pairs"]} >= {("MW", "auc")}
    variants = [f"mine/variants/{name}/seed-0" for name in ("MW-Letters", "InfoNCE-Letters")]
    line.run("compare", *variants, "--output", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "MW-Letters_seed-0" in page
    assert page.count("AUC") > 3
