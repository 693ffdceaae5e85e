"""A command that is killed and given again ends as an undisturbed one does, and what was finished is not done again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from processes import losses, of_session, steps, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LONG = "--max-steps 150 --eval-steps 10 --patience 99"


@dataclass(frozen=True)
class Blow:
    """A signal to a command.

    Args:
        when: patterns below its output; it comes as soon as each of them matches a file.
        victim: the command, all of its processes (`*`), or the title of one of them.
    """

    when: str
    victim: str = ""
    by: signal.Signals = signal.SIGKILL


@dataclass(frozen=True)
class Kill:
    """A command that is disturbed.

    Args:
        words: its words, without those of `CommandLine.settings` and `--output`.
        kept: files that it never writes again once they exist.
        same: files that are those of an undisturbed command.
    """

    words: str
    blows: tuple[Blow, ...]
    kept: str = ""
    same: tuple[str, ...] = ()


KILLS = {
    "train": Kill(
        "train --max-steps 160 --eval-steps 20 --patience 99 --num-workers 2",
        (
            Blow("checkpoints/step-40", "RayTrainWorker"),
            Blow("checkpoints/step-60", "*", signal.SIGTERM),  # as `timeout`, systemd and Slurm send it
            Blow("checkpoints/step-100", by=signal.SIGINT),
        ),
        same=("metrics.json", "model/*", "checkpoints/*/weights-*"),
    ),
    "validation": Kill(
        "train --best-metric nDCG@10 --max-steps 12 --eval-steps 3 --num-workers 2 --patience 9 --dataset long",
        (Blow("evaluations/step-3.json checkpoints/step-6", "*"), Blow("", "ray::CheckpointJob")),
        same=("metrics.json", "model/*", "checkpoints/*/weights-*"),
    ),
    "tune": Kill(
        f"tune {LONG} --search-space space.yaml --trials-at-once 2",
        (Blow("trials/*/metrics.json trials/002/checkpoints/step-*"),),
        kept="trials/*/metrics.json",
        same=("trials/*/config.yaml", "trials/*/metrics.json", "best.yaml", "best/metrics.json", "figures/*"),
    ),
    "study": Kill(
        "study mine.yaml",
        (Blow("arms/*-Letters/seed-0/metrics.json", "*"),),
        kept="arms/*/*/metrics.json",
        same=("table.md", "figures/*.png", "arms/*/*/model/*"),
    ),
}


def strike(process: Any, blow: Blow, output: Path) -> bool:
    """Wait for the moment of a blow; return whether it ends the command."""
    wait_for(lambda: all(next(output.glob(one), None) for one in blow.when.split()), 600, process)
    if blow.victim in ("", "*"):
        for pid in of_session(process.pid) if blow.victim else [process.pid]:
            os.kill(pid, blow.by)
        return True
    [victim, *_] = wait_for(lambda: of_session(process.pid, blow.victim), 200, process)
    os.kill(victim, blow.by)
    return False


def assert_tracked_once(uri: str, output: Path) -> None:
    """Each run below a folder is finished in MLflow, has every step once, and is a child of that of the folder."""
    client, parent = MlflowClient(uri), json.loads((output / "run.json").read_text())["tracking_id"]
    for file in output.rglob("run.json"):
        run = client.get_run(json.loads(file.read_text())["tracking_id"])
        assert run.info.status == "FINISHED"
        assert run.data.tags.get("mlflow.parentRunId", parent) == parent
        if (file.parent / "steps.jsonl").exists():
            points = client.get_metric_history(run.info.run_id, "loss")
            assert sorted(point.step for point in points) == sorted(losses(file.parent)), file


def logged(output: Path) -> dict[str, dict[int, dict[str, float]]]:
    """Losses and values on dev data of every step, by run; nothing is logged twice."""
    files = output.rglob("steps.jsonl")
    return {
        str(file.relative_to(output)): {
            step: {name: value for name, value in values.items() if name == "loss" or name.startswith("dev")}
            for step, values in steps(file.parent).items()
        }
        for file in files
    }


@pytest.mark.parametrize("name", KILLS)
def test_a_killed_command_continues(
    name: str, command_line: Callable[[], Any], started: list[Any], tiny_dataset: Path, study_text: str
) -> None:
    cli, kill = command_line(), KILLS[name]
    (cli.folder / "space.yaml").write_text("{loss: {loss: [infonce, mw], temperature: [0.02, 0.05]}}")
    (cli.folder / "mine.yaml").write_text(study_text)
    write_long_corpus(tiny_dataset, cli.folder / "long")
    stage, *words = kill.words.split()
    words = [*(cli.settings if stage != "study" else ()), *words, "--output"]
    output, whole = cli.folder / "disturbed", cli.folder / "whole"

    def start(to: str) -> Any:
        started.append(cli.start(stage, *words, to))
        return started[-1]

    process = start("disturbed")
    for blow in kill.blows:
        if not strike(process, blow, output):
            continue
        if blow.by == signal.SIGKILL:
            process.wait(120)  # processes of its session may hold the other end of its streams
        else:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 130, err
            assert "Traceback" not in err
            assert err.strip().splitlines()[-1] == "interrupted; run the same command again to continue"
        wait_for(lambda: not of_session(process.pid), 200)  # noqa: B023
        written = {file: file.stat().st_mtime_ns for file in output.glob(kill.kept or "metrics.json")}
        assert bool(written) == bool(kill.kept)
        process = start("disturbed")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert written == {file: file.stat().st_mtime_ns for file in written}
    assert "Resumed from checkpoint" in err or stage == "study"
    _, err = start("whole").communicate(timeout=600)
    assert started[-1].returncode == 0, err
    files = [file.relative_to(whole) for pattern in kill.same for file in whole.glob(pattern) if file.is_file()]
    assert files
    assert [file for file in files if (output / file).read_bytes() != (whole / file).read_bytes()] == []
    assert logged(output) == logged(whole)
    for folder in (output, whole):
        assert_tracked_once(cli.environment["MLFLOW_TRACKING_URI"], folder)


def write_long_corpus(tiny: Path, folder: Path) -> None:
    """The tiny data set with so many further documents that an evaluation takes longer than a step."""
    folder.mkdir()
    for file in ("queries.jsonl", "qrels"):
        (folder / file).symlink_to(tiny / file)
    rng = np.random.default_rng(3)
    rows = [{"_id": f"f{n}", "title": "", "text": "".join(rng.choice(list("abcdefghij"), 40))} for n in range(3_000)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "corpus.jsonl").write_text((tiny / "corpus.jsonl").read_text() + lines)
