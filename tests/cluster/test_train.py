"""Training under a real Ray, from the command line to what lies in the run directory and in MLflow."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable

import pytest
import yaml
from mlflow import MlflowClient
from processes import of_session, steps, wait_for

from raytriever.evaluation.protocol import metric_title
from raytriever.store.commit import read_manifest


def test_a_run_on_two_workers_from_the_command_to_the_report(command_line: Callable) -> None:
    cli = command_line()
    done = cli.train("--max-steps", "6", "--num-workers", "2", "--output", "run")
    assert done.returncode == 0, done.stderr
    run = cli.folder / "run"

    # The run directory holds what it promises, and the table shows it.
    figures = json.loads((run / "metrics.json").read_text())
    assert figures["dataset"] == "letters"
    assert figures["split"] == "test"
    assert figures["after"]["ndcg_at_10"] > figures["before"]["ndcg_at_10"]
    table = [line.split() for line in done.stdout.splitlines() if line.startswith(("BM25", "encoder"))]
    assert [float(row[-1]) for row in table] == [round(figures[name]["auc"], 4) for name in ("bm25", "before", "after")]
    assert all(metric_title(name) in done.stdout for name in figures["after"])
    assert re.search(r"mlflow ui --backend-store-uri \S+  \(then open http://\S+/#/experiments/1/runs\)", done.stdout)
    assert "raytriever search" in done.stdout
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["num_workers"] == 2
    for name in ("runs/bm25.trec", "runs/before.trec", "runs/after.trec", "figures/roc.png", "report.html"):
        assert (run / name).stat().st_size > 500, name
    assert sorted(path.name for path in (run / "checkpoints").iterdir())
    read_manifest(run / "model")
    assert sorted(step for step, measured in steps(run).items() if "loss" in measured) == [1, 2, 3, 4, 5, 6]

    # MLflow has the settings, the data, every step once, the end's figures and the files.
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [experiment] = [e for e in client.search_experiments() if e.name == "raytriever"]
    [tracked] = client.search_runs([experiment.experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["loss.loss"] == "mw"
    assert tracked.data.params["model.pooling"] == "mean"
    assert tracked.data.tags["raytriever.stage"] == "train"
    assert tracked.data.metrics["after/auc"] == pytest.approx(figures["after"]["auc"])
    history = client.get_metric_history(tracked.info.run_id, "loss")
    assert [point.step for point in history] == [1, 2, 3, 4, 5, 6]
    # MLflow draws what has step 0 alone as bars.
    for name in ("bm25/ndcg_at_10", "before/auc", "after/auc", "significance/after-before/auc_p"):
        assert [point.step for point in client.get_metric_history(tracked.info.run_id, name)] == [0]
    [fed] = tracked.inputs.dataset_inputs
    assert json.loads(fed.dataset.profile)["train_queries"] == 96
    assert {file.path for file in client.list_artifacts(tracked.info.run_id)} >= {"model", "figures", "report.html"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_goes_on_after_a_worker_is_killed_and_after_an_interruption(command_line: Callable) -> None:
    cli = command_line()
    words = [*cli.settings, "--max-steps", "160", "--eval-steps", "20", "--patience", "99"]
    whole = cli.start("train", *words, "--output", "whole")
    interrupted = None
    try:
        assert whole.communicate(timeout=300) is not None
        assert whole.returncode == 0

        interrupted = cli.start("train", *words, "--output", "interrupted")
        checkpoints = cli.folder / "interrupted" / "checkpoints"
        wait_for(lambda: (checkpoints / "step-40").exists(), 300)
        [worker] = of_session(interrupted.pid, "RayTrainWorker")
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: (checkpoints / "step-80").exists(), 300)
        os.kill(interrupted.pid, signal.SIGINT)
        _, err = interrupted.communicate(timeout=60)
        assert interrupted.returncode == 130, err
        assert "interrupted; run the same command again to continue" in err
        assert "Resumed from checkpoint" in err  # the killed worker's successor

        again = cli.start("train", *words, "--output", "interrupted")
        _, err = again.communicate(timeout=300)
        assert again.returncode == 0, err
        assert "Resumed from checkpoint" in err
    finally:
        for process in (whole, interrupted):
            if process is not None and process.poll() is None:
                process.kill()
    # Whatever happened on the way, the figures and every step's loss are those of the run that was left in peace.
    one, other = cli.folder / "whole", cli.folder / "interrupted"
    assert json.loads((one / "metrics.json").read_text()) == json.loads((other / "metrics.json").read_text())
    losses = [{step: measured["loss"] for step, measured in steps(run).items()} for run in (one, other)]
    assert losses[0] == losses[1]
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [experiment] = [e for e in client.search_experiments() if e.name == "raytriever"]
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "loss")
        assert sorted(point.step for point in history) == list(range(1, 161))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_with_prompts_of_data_sets_resumes(command_line: Callable, started: list) -> None:
    """The prompts are in a file of settings, and end in the model; the resumed steps are those of the whole run."""
    cli = command_line()
    prompt = {"query": "letters of: ", "passage": "spelled: "}
    (cli.folder / "run.yaml").write_text(yaml.safe_dump({"model": {"dataset_prompts": {"letters": prompt}}}))
    words = ["--max-steps", "120", "--eval-steps", "10", "--patience", "99"]
    with_prompts = ["--config", "run.yaml", *words]
    assert cli.train(*with_prompts, "--output", "whole").returncode == 0

    started.append(cli.start("train", *cli.settings, *with_prompts, "--output", "interrupted"))
    wait_for((cli.folder / "interrupted" / "checkpoints" / "step-20").exists, 120)
    os.kill(started[0].pid, signal.SIGINT)
    _, err = started[0].communicate(timeout=60)
    assert started[0].returncode == 130, err
    again = cli.train(*with_prompts, "--output", "interrupted")
    assert again.returncode == 0, again.stderr
    assert "Resumed from checkpoint" in again.stderr

    whole, interrupted = (cli.folder / name for name in ("whole", "interrupted"))
    losses = [{step: one["loss"] for step, one in steps(run).items()} for run in (whole, interrupted)]
    assert len(losses[0]) == 120
    assert losses[0] == losses[1]
    results = [json.loads((run / "metrics.json").read_text()) for run in (whole, interrupted)]
    assert results[0] == results[1]
    saved = json.loads((interrupted / "model" / "config_sentence_transformers.json").read_text())["prompts"]
    assert {"letters of: ", "spelled: "} <= set(saved.values())

    changed = cli.train("--config", "run.yaml", *words, "--query-prompt", "q: ", "--output", "interrupted")
    assert changed.returncode == 2
    assert "holds a run with other settings" in changed.stderr


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
