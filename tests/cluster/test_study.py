"""A killed study continues: it writes the same table as an uninterrupted one and trains no arm twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from raytriever.cluster.session import ray_session
from raytriever.studies.run import NICENESS, _equal_priority

pytestmark = pytest.mark.slow
CommandLine = Any
FILE = """
seeds: {seeds}
metrics: ndcg@10,auc
data_sets: {{Letters: {dataset}}}
settings:
  model: {{model: {encoder}}}
  training: {{batch_size: 16, max_steps: 6, learning_rate: 1e-3, precision: fp32, eval_steps: 3}}
arms:
  untrained: {encoder}
  InfoNCE: {{loss: {{loss: infonce, temperature: 0.05}}}}
  MW: {{loss: {{loss: mw, temperature: 0.05}}}}
claims:
- {{above: [MW, untrained], metrics: auc}}
"""


def wait_for_first_arm(study: Path, process: subprocess.Popen[str]) -> None:
    """Wait until one training is finished and another one has started."""
    for _ in range(3000):
        began = len(list(study.glob("arms/*/seed-0/config.yaml")))
        if list(study.glob("arms/*/seed-0/metrics.json")) and began > len(
            list(study.glob("arms/*/seed-0/metrics.json"))
        ):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("no arm was finished")


def finish(command_line: CommandLine, started: list[subprocess.Popen[str]], study: str) -> tuple[str, str]:
    process = command_line.start("study", "mine.yaml", "--output", study)
    started.append(process)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    return out, err


def test_rays_processes_have_the_priority_of_the_study() -> None:
    """Else a refresh of hard negatives waits for the training in the process of the study."""
    before = dict(os.environ)
    with _equal_priority(), ray_session(1):
        there = ray.get(ray.remote(lambda: os.nice(0)).remote())
    assert there == os.nice(0)
    assert dict(os.environ).get(NICENESS) == before.get(NICENESS)


@pytest.mark.timeout(900)
def test_a_killed_study_continues(
    command_line: Callable[[], CommandLine],
    started: list[subprocess.Popen[str]],
    tiny_dataset: Path,
    tiny_encoder: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text(FILE.format(seeds=1, dataset=tiny_dataset, encoder=tiny_encoder))
    line = command_line()
    process = line.start("study", "mine.yaml", "--output", "killed")
    started.append(process)
    killed = tmp_path / "killed"
    wait_for_first_arm(killed, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    finished = [file.parent for file in killed.glob("arms/*/*/metrics.json")]
    assert not (killed / "table.md").exists()
    # The files of the trainings. `run.json` also changes when the tracker sends pending data.
    written = {
        file: file.stat().st_mtime_ns
        for folder in finished
        for file in folder.rglob("*")
        if file.is_file() and file.name != "run.json"
    }

    out, err = finish(line, started, "killed")
    assert written == {file: file.stat().st_mtime_ns for file in written}
    names = {folder.relative_to(killed / "arms").parts[0] for folder in finished}
    again = {text.split(": ")[1].split(",")[0] for text in err.splitlines() if " of " in text and ": " in text}
    assert not names & again
    assert out.splitlines()[-1] == "killed/study.md"

    finish(line, started, "whole")
    one, other = (json.loads((tmp_path / study / "results.json").read_text()) for study in ("killed", "whole"))
    assert one["rows"] == other["rows"]
    assert one["claims"] == other["claims"]
    assert (killed / "table.md").read_text() == (tmp_path / "whole" / "table.md").read_text()
    for figure in (tmp_path / "whole" / "figures").glob("*.png"):
        assert (killed / "figures" / figure.name).read_bytes() == figure.read_bytes()

    arms = {str(folder.parent.relative_to(killed / "arms")) for folder in killed.glob("arms/*/*/metrics.json")}
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        runs = database.execute("SELECT run_uuid, name, status FROM runs").fetchall()
        parents = dict(database.execute("SELECT run_uuid, value FROM tags WHERE key = 'mlflow.parentRunId'").fetchall())
    assert {status for _, _, status in runs} == {"FINISHED"}
    for study in ("killed", "whole"):
        [own] = [
            uuid
            for uuid, _, _ in runs
            if uuid == json.loads((tmp_path / study / "run.json").read_text())["tracking_id"]
        ]
        children = [name for uuid, name, _ in runs if parents.get(uuid) == own]
        assert len(children) == len(set(children)) == len(arms)
    assert len(runs) == 2 + 2 * len(arms)

    before = {file: file.stat().st_mtime_ns for file in (killed / "arms").rglob("*") if file.is_file()}
    _, err = finish(line, started, "killed")
    assert "killed is finished; a larger --seeds continues it" in err
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_a_study_of_a_file_compares_its_arms(
    command_line: Callable[[], CommandLine],
    started: list[subprocess.Popen[str]],
    tiny_dataset: Path,
    tiny_encoder: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text(FILE.format(seeds=2, dataset=tiny_dataset, encoder=tiny_encoder))
    line = command_line()
    out, err = "", ""
    for _ in range(2):
        process = line.start("study", "mine.yaml", "--output", "mine")
        started.append(process)
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
    assert "mine is finished; a larger --seeds continues it" in err
    results = json.loads((tmp_path / "mine" / "results.json").read_text())
    assert (results["study"], results["seeds"]) == ("mine", 2)
    auc = {row: cell["Letters"]["auc"] for row, cell in results["rows"].items()}
    assert {row: len(one["values"]) for row, one in auc.items()} == {"untrained": 1, "InfoNCE": 2, "MW": 2}
    assert auc["MW"]["mean"] > auc["untrained"]["mean"]
    assert results["claims"][0]["text"] == "MW is above untrained in AUC"
    assert r"\toprule" in (tmp_path / "mine" / "table.tex").read_text()
    assert "InfoNCE" in out
    assert "All pairs: t-test over queries and seeds" in (tmp_path / "mine" / "study.md").read_text()
    assert {(row["model"], row["metric"]) for row in results["pairs"]} >= {("MW", "auc")}
    arms = [f"mine/arms/{name}/seed-0" for name in ("MW-Letters", "InfoNCE-Letters")]
    process = line.start("compare", *arms, "--output", "page.html")
    started.append(process)
    assert process.wait(120) == 0
    page = (tmp_path / "page.html").read_text()
    assert "MW-Letters seed-0" in page
    assert page.count("AUC") > 3
