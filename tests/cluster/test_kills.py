"""A command that is killed and given again ends as an undisturbed one does, and what was finished is not done again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from processes import losses, of_session, steps, wait_for
from timeless import without_seconds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LONG = "--max-steps 150 --eval-steps 10 --patience 99"


@dataclass(frozen=True)
class Blow:
    """A signal to a command.

    Args:
        when: patterns below its folder; it comes as soon as each of them matches a file.
        victim: the command, all of its processes (`*`), or the title of one of them.
    """

    when: str
    victim: str = ""
    by: signal.Signals = signal.SIGKILL


@dataclass(frozen=True)
class Kill:
    """A command that is disturbed.

    Args:
        words: its words, without those of `CommandLine.settings`, which a training has too, and `--output out`.
        kept: files below its output that it never writes again once they exist.
        same: files below its output that are those of an undisturbed command; none where they depend on times.
        pool: flags of the disturbed command alone; the other does the work in its own process.
    """

    words: str
    blows: tuple[Blow, ...]
    kept: str = ""
    same: tuple[str, ...] = ()
    pool: str = ""


RUN = ("metrics.json", "evaluation/per_query/*", "model/*", "checkpoints/*/weights-*")
REFRESH = "train --dataset long --refresh-negatives 5 --refresh-pool 2 --max-steps 9 --eval-steps 9 --refresh-every 3"
ENCODER = "--model MODEL --precision fp32"
MINED = "out/negatives/embeddings/*/0-passage/*/work/0*.json"  # seven shards, each of 1,024 documents
CACHED = "cache/embeddings/*/*/work/0*.json"
KILLS = {
    "train": Kill(
        "train --max-steps 160 --eval-steps 20 --patience 99 --num-workers 2",
        (
            Blow("out/checkpoints/step-40", "RayTrainWorker"),
            Blow("out/checkpoints/step-60", "*", signal.SIGTERM),  # as `timeout`, systemd and Slurm send it
            Blow("out/checkpoints/step-100", by=signal.SIGINT),
        ),
        same=RUN,
    ),
    "validation": Kill(
        "train --best-metric nDCG@10 --max-steps 12 --eval-steps 3 --num-workers 2 --patience 9 --dataset long",
        (Blow("out/evaluations/step-3.json out/checkpoints/step-6", "*"), Blow("out", "ray::CheckpointJob")),
        same=RUN,
    ),
    "refresh": Kill(
        f"{REFRESH} --refresh-mode sync",
        (
            Blow(MINED, "ray::CheckpointJob"),  # without GPUs the one process of its node encodes and searches itself
            Blow(f"out/checkpoints/step-6 {MINED}", "*"),
        ),
        same=(*RUN, "negatives/round-*/*.parquet"),
    ),
    "refresh next to training": Kill(
        f"{REFRESH} --refresh-mode async --max-steps 2000 --eval-steps 500",  # so many that mining ends before training
        (Blow(f"out/checkpoints/step-3 {MINED}", "*"),),
    ),
    "curriculum": Kill(
        "train --config stages.yaml --eval-steps 20",
        (Blow("out/stages/2-other/checkpoints/step-40", "*"), Blow("out/stages/2-other/checkpoints/step-80")),
        kept="stages/1-one/**/*",
        same=("evaluation/per_query/*", "model/*", "stages/*/model/*"),
    ),
    "tune": Kill(
        f"tune {LONG} --search-space space.yaml --trials-at-once 2",
        (
            Blow("out/trials/000/checkpoints/step-*", "ray::ImplicitFunc"),
            Blow("out/trials/*/metrics.json out/trials/002/checkpoints/step-*"),
        ),
        kept="trials/*/metrics.json",
        same=("trials/*/config.yaml", "trials/*/metrics.json", "best.yaml", "best/evaluation/per_query/*", "figures/*"),
    ),
    "study": Kill(
        "study mine.yaml",
        (Blow("out/variants/*-Letters/seed-0/metrics.json", "*"),),
        kept="variants/*/*/metrics.json",
        same=("table.md", "figures/*.png", "variants/*/*/model/*"),
    ),
    "evaluate": Kill(
        f"evaluate {ENCODER} --datasets long",
        (Blow(CACHED, "ray::MapWorker"), Blow("cache/embeddings/*/*/work/000003.json", "*")),
        same=("per_query/*", "runs/*", "scores/*", "table.md"),
        pool="--actors 2",
    ),
    "prepare": Kill(
        "prepare --model MODEL --dataset wide",
        (Blow(".out.aside-*/work/*-*.npz", "*"),),
        same=("[!m]*", "*/*"),  # its manifest has the path of the data set
    ),
    "encode": Kill(
        f"encode {ENCODER} --dataset long --batch-tokens 512",
        (Blow("out/*/work/0*.json", "ray::MapWorker"), Blow("out/*/work/000003.json", "*")),
        kept="*/0*.npy",
        same=("**/*",),
        pool="--actors 2",
    ),
    "mine": Kill(
        f"mine {ENCODER} --dataset long --method dense --num-negatives 3", (Blow(CACHED, "*"),), same=("**/*",)
    ),
}


def strike(process: Any, blow: Blow, folder: Path) -> bool:
    """Wait for the moment of a blow; return whether it ends the command."""
    wait_for(lambda: all(next(folder.glob(item), None) for item in blow.when.split()), 600, process)
    if blow.victim in ("", "*"):
        for pid in of_session(process.pid) if blow.victim else [process.pid]:
            with suppress(ProcessLookupError):  # some end by themselves, or when their parent ends
                os.kill(pid, blow.by)
        return True
    [victim, *_] = wait_for(lambda: of_session(process.pid, blow.victim), 200, process)
    os.kill(victim, blow.by)
    return False


def assert_tracked_once(uri: str, output: Path) -> None:
    """Each run below a folder is finished in MLflow, has every step once, and is a child of that of the folder."""
    client = MlflowClient(uri)
    for file in output.rglob("run.json"):
        run, parent = (
            client.get_run(json.loads(item.read_text())["tracking_id"]) for item in (file, output / "run.json")
        )
        assert run.info.status == "FINISHED"
        assert run.data.tags.get("mlflow.parentRunId", parent.info.run_id) == parent.info.run_id
        if (file.parent / "steps.jsonl").exists():
            points = client.get_metric_history(run.info.run_id, "loss")
            assert sorted(point.step for point in points) == sorted(losses(file.parent)), file


def logged(output: Path) -> dict[str, dict[int, dict[str, float]]]:
    """Losses, rounds of negatives and values on dev data of every step, by run; nothing is logged twice."""
    names = ("dev", "negatives_round")
    return {
        str(file.relative_to(output)): {
            step: {name: value for name, value in values.items() if name == "loss" or name.startswith(names)}
            for step, values in steps(file.parent).items()
        }
        for file in output.rglob("steps.jsonl")
    }


def files(output: Path, *patterns: str) -> list[Path]:
    return [file for pattern in patterns for file in output.glob(pattern) if file.is_file()]


@pytest.mark.parametrize("name", KILLS)
def test_a_killed_command_continues(
    name: str,
    command_line_in: Callable[[Path], Any],
    started: list[Any],
    tiny_dataset: Path,
    large_encoder: Path,
    study_text: str,
    tmp_path: Path,
) -> None:
    kill = KILLS[name]
    stage, *words = kill.words.replace("MODEL", str(large_encoder)).split()

    def start(name: str, more: str = "") -> tuple[Any, Path]:
        cli = command_line_in(tmp_path / name)  # each has a cache and a tracking database of its own
        if not cli.folder.exists():
            write_inputs(cli.folder, tiny_dataset, study_text)
        settings = [*cli.settings, "--model", str(large_encoder)] if stage in ("train", "tune") else []
        started.append(cli.start(stage, *settings, *words, *more.split(), "--output", "out"))
        return started[-1], cli.folder / "out"

    process, output = start("disturbed", kill.pool)
    written: dict[Path, int] = {}
    for blow in kill.blows:
        if not strike(process, blow, output.parent):
            continue
        if blow.by == signal.SIGKILL:
            process.wait(120)  # processes of its session may hold the other end of its streams
        else:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 130, err
            assert "Traceback" not in err
            assert err.strip().splitlines()[-1] == "interrupted; run the same command again to continue"
        wait_for(lambda: not of_session(process.pid), 200)  # noqa: B023
        assert not (output / "metrics.json").exists()
        kept = [file for file in files(output, kill.kept) if is_finished(file)] if kill.kept else []
        written = {file: file.stat().st_mtime_ns for file in kept}
        assert bool(written) == bool(kill.kept)
        process, _ = start("disturbed", kill.pool)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert written == {file: file.stat().st_mtime_ns for file in written}
    assert "Resumed from checkpoint" in err or stage not in ("train", "tune")
    assert_tracked_once(f"sqlite:///{output.parent}/mlflow.db", output)
    for run, values in logged(output).items():
        if not (output / run).with_name("checkpoints").exists():
            continue  # a sweep or a study, which trains nothing itself
        assert sorted(step for step, value in values.items() if "loss" in value) == [*range(1, max(values) + 1)], run
    if not kill.same:
        return
    process, whole = start("whole")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    compared = [file.relative_to(whole) for file in files(whole, *kill.same)]
    assert compared
    assert [file for file in compared if without_seconds(output / file) != without_seconds(whole / file)] == []
    assert logged(output) == logged(whole)


def is_finished(file: Path) -> bool:
    """Return False for a file of a shard of embeddings without a report: its process died before the other files."""
    work = file.with_name("work")
    return not work.is_dir() or (work / f"{file.name[:6]}.json").exists()


def write_inputs(folder: Path, tiny: Path, study: str) -> None:
    """Write what the commands read, for those who wait for the middle of a long work too: data sets with so many
    further documents that their evaluation takes longer than a step, and with several chunks of a preparation."""
    folder.mkdir()
    (folder / "space.yaml").write_text("{loss: {loss: [infonce, mw], temperature: [0.02, 0.05]}}")
    (folder / "mine.yaml").write_text(study)
    stages = ("name: one, loss: {loss: infonce}, training: {max_steps: 6}", "name: other, training: {max_steps: 120}")
    (folder / "stages.yaml").write_text(f"stages: [{', '.join(f'{{{stage}}}' for stage in stages)}]")
    letters = np.random.default_rng(3).choice(list("abcdefghij"), (6_144, 40))
    texts = {"long": ["".join(row) for row in letters], "wide": [f"{n} {'abcdefghi ' * 200}" for n in range(6_000)]}
    for name, further in texts.items():
        (folder / name).mkdir()
        for file in ("queries.jsonl", "qrels"):
            (folder / name / file).symlink_to(tiny / file)
        rows = [{"_id": f"f{n}", "title": "", "text": text} for n, text in enumerate(further)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name / "corpus.jsonl").write_text((tiny / "corpus.jsonl").read_text() + lines)
