"""Inventory of run directories: kinds, states, and the files that cleaning removes and keeps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.core.errors import ConfigError
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.core.store.lock import acquire
from raytriever.experiments.operation.run_inventory import DAMAGED, FINISHED, INTERRUPTED, RUNNING, find_runs, read_run
from raytriever.experiments.tuning.trial_log import Trial, write_trials
from raytriever.training.run_config import Config, dump_config, load_config
from raytriever.training.training_settings import TrainingConfig


def make_run(folder: Path, finished: bool, steps: int = 8, of: int = 10) -> Path:
    """Write a run directory as `train` does: settings, steps, two checkpoints, and metrics if it is finished."""
    folder.mkdir(parents=True)
    config = Config(training=TrainingConfig(max_steps=of, batch_size=16))
    (folder / "config.yaml").write_text(dump_config(config))
    lines = [
        json.dumps({"step": step, "milliseconds": 1_795_000_000_000 + step, "metrics": {"loss": 1 / step}})
        for step in range(1, steps + 1)
    ]
    (folder / "steps.jsonl").write_text("\n".join(lines) + '\n{"step": 9, "measu')
    for step in (4, steps):
        with committed_directory(folder / "checkpoints" / f"step-{step}") as aside:
            (aside / "weights-0-of-1.safetensors").write_bytes(bytes(1000))
            (aside / "state.json").write_text(json.dumps({"origin": {"total_steps": of}}))
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    if finished:
        (folder / "metrics.json").write_text(json.dumps({"steps": steps, "best": None}))
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with a finished, an interrupted and a damaged run, an index, and a folder of photos."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    monkeypatch.setenv("RAYTRIEVER_RUNS", str(runs))
    make_run(runs / "finished", finished=True, steps=10)
    make_run(runs / "interrupted", finished=False)
    make_run(runs / "damaged", finished=True)
    (runs / "damaged" / "metrics.json").write_text('{"steps": ')
    with committed_directory(runs / "index", {"kind": "index"}) as aside:
        (aside / "x").write_bytes(b"x")
    (runs / "photos").mkdir()
    (runs / "photos" / "config.yaml").write_text("camera: {zoom: 3}\n")
    (runs / "photos" / "checkpoints").mkdir()
    (runs / "photos" / "checkpoints" / "cat.jpg").touch()
    return runs


def test_the_state_of_each_run(folder: Path) -> None:
    entries = {entry.path.name: entry for entry in find_runs([folder])}
    assert {name: entry.state for name, entry in entries.items()} == {
        "damaged": DAMAGED,
        "finished": FINISHED,
        "index": FINISHED,
        "interrupted": INTERRUPTED,
    }
    one = entries["interrupted"]
    assert (one.kind, one.detail, one.ended) == ("training", "at step 8 of 10", None)
    assert [(point.step, point.path.name) for point in one.checkpoints] == [(4, "step-4"), (8, "step-8")]
    assert one.size == sum(file.stat().st_size for file in one.path.rglob("*") if file.is_file())
    assert entries["finished"].command is None
    assert "metrics.json: is damaged or changed" in entries["damaged"].detail
    assert entries["index"].kind == "index"
    with pytest.raises(ConfigError, match="no such folder"):
        find_runs([folder / "none"])


def test_a_run_that_a_process_writes_is_running(folder: Path) -> None:
    lock = acquire(folder / "interrupted")
    try:
        one = read_run(folder / "interrupted")
        assert one is not None
        assert one.state == RUNNING
        assert f"pid {os.getpid()}, since " in one.detail
        assert one.detail.endswith(", step 8 of 10")
    finally:
        lock.release()


def test_the_command_that_continues_a_run_names_its_own_settings(folder: Path) -> None:
    strange = folder / "a run; of mine"
    (folder / "interrupted").rename(strange)
    one = read_run(strange)
    assert one is not None
    assert one.command == f"raytriever train --config '{strange}/config.yaml' --output '{strange}'"
    assert load_config(strange / "config.yaml").training.max_steps == 10


def test_steps_of_epochs_come_from_the_checkpoint_and_of_stages_from_the_last(folder: Path) -> None:
    one = folder / "interrupted"
    (one / "config.yaml").write_text(dump_config(Config(training=TrainingConfig(epochs=2))))
    assert (entry := read_run(one)) is not None
    assert entry.detail == "at step 8 of 10"
    stage = make_run(folder / "other", finished=False, steps=5)
    (one / "stages").mkdir()
    stage.rename(one / "stages" / "2-human")
    assert (entry := read_run(one)) is not None
    assert entry.detail == "at stages/2-human, step 5 of 10"
    assert len(entry.checkpoints) == 4


SETTINGS = "data: {}\nmodel: {}\ntraining: {}\nsweep: {}\n"


def make_sweep(folder: Path, statuses: list[str], planned: int, metrics: bool, ended: bool) -> Path:
    """Write the directory of a sweep as `tune` does; the first trial is the best and has the only checkpoint."""
    make_run(folder / "trials" / "000", finished=statuses[0] == "finished", steps=10)
    (folder / "config.yaml").write_text(SETTINGS)
    trials = [
        Trial(number, {"loss.temperature": number}, status, {"ndcg_at_10": 0.3} if status == "finished" else {})  # type: ignore[arg-type]
        for number, status in enumerate(statuses)
    ]
    write_trials(folder, trials, "ndcg_at_10", planned)
    if metrics:
        (folder / "best").mkdir()
        (folder / "best" / "metrics.json").write_text(json.dumps({"steps": 4, "best": None}))
    if ended:
        (folder / "table.md").write_text("| trial |\n")
    return folder


@pytest.mark.parametrize(
    ("statuses", "planned", "metrics", "ended", "state", "detail"),
    [
        (["finished", "stopped"], 2, True, True, FINISHED, "2 of 2 trials"),
        (["finished", "failed"], 2, True, True, FINISHED, "2 of 2 trials, 1 failed"),
        (["finished", "finished"], 2, False, False, INTERRUPTED, "2 of 2 trials; the best is not evaluated"),
        (["finished", "finished"], 4, False, False, INTERRUPTED, "2 of 4 trials"),
        # More trials were asked for after it had ended: `best/` is that of the first two.
        (["finished", "finished"], 4, True, False, INTERRUPTED, "2 of 4 trials"),
        (["running"], 4, False, False, INTERRUPTED, "0 of 4 trials"),
    ],
)
def test_a_sweep_is_finished_when_its_best_trial_is_evaluated(
    tmp_path: Path,
    statuses: list[str],
    planned: int,
    metrics: bool,
    ended: bool,
    state: str,
    detail: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep = make_sweep(tmp_path / "runs" / "sweep", statuses, planned, metrics, ended)
    [one] = find_runs([tmp_path / "runs"])
    assert (one.kind, one.state, one.detail) == ("sweep", state, detail)
    assert (one.ended is not None) == ended

    # `runs clean` sees the checkpoints of the trials.
    assert run("runs", ["clean", str(tmp_path / "runs"), "--finished", "--yes"]) == 0
    assert (sweep / "trials" / "000" / "checkpoints").exists() == (state != FINISHED)
    assert (sweep / "trials" / "000" / "model").is_dir()
    assert ("2 checkpoints of the trials of a finished sweep" in capsys.readouterr().out) == (state == FINISHED)


def test_a_sweep_that_was_killed_before_its_first_trial_is_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "config.yaml").write_text(SETTINGS)
    [one] = find_runs([tmp_path])
    assert (one.kind, one.state, one.detail) == ("sweep", INTERRUPTED, "no trial has begun")


def test_list_prints_the_step_and_the_command_that_continues(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("runs", ["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["state", "kind", "ended", "size", "run"]
    assert len(lines) == 6
    assert lines[2].startswith("   finished  training")
    assert lines[2].endswith(f"  {folder}/finished (step 10 of 10)")
    assert lines[4].endswith(f"{folder}/interrupted (at step 8 of 10)")
    command = f"raytriever train --config {folder}/interrupted/config.yaml --output {folder}/interrupted"
    assert lines[5] == f"continue with: {command}"


def test_a_flag_may_be_before_between_and_after_the_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(folder / "other", finished=True)
    names = [str(folder / name) for name in ("finished", "other")]
    for words in (["--finished", *names], [names[0], "--finished", names[1]], [*names, "--finished"]):
        assert run("runs", ["clean", *words]) == 0
        assert capsys.readouterr().out.count(": 2 checkpoints of a finished run") == 2, words
    assert run("runs", ["--finished", "clean", names[0], "--surplus"]) == 2
    assert "--surplus: unknown flag" in capsys.readouterr().err


def test_cleaning_shows_the_loss_and_removes_nothing_without_yes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert run("runs", ["clean"]) == 2
    error = capsys.readouterr().err
    assert "`runs clean` needs the state of the runs to clean; give --finished, --interrupted or both" in error
    assert run("runs", ["clean", "--finished", "--interrupted"]) == 0
    out = capsys.readouterr().out
    assert (
        f"{folder}/finished: 2 checkpoints of a finished run; the model, the metrics and the report are kept, " in out
    )
    assert f"{folder}/interrupted: 2 checkpoints of an interrupted run: 8 steps are lost; the same command" in out
    assert "nothing was removed; --yes removes " in out
    assert sorted(folder.rglob("*")) == before


def test_cleaning_removes_only_checkpoints_of_the_chosen_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(folder / "running", finished=True)
    (folder / "elsewhere").mkdir()
    link = make_run(folder / "linked", finished=True)
    (link / "checkpoints").rename(folder / "elsewhere" / "kept")
    (link / "checkpoints").symlink_to(folder / "elsewhere" / "kept")
    lock = acquire(folder / "running")
    try:
        assert run("runs", ["clean", "--finished", "--yes"]) == 0
    finally:
        lock.release()
    assert "removed " in capsys.readouterr().out
    assert not (folder / "finished" / "checkpoints").exists()
    assert (folder / "finished" / "model").is_dir()
    for remaining in ("running/checkpoints/step-4", "interrupted/checkpoints/step-8", "elsewhere/kept/step-4"):
        read_manifest(folder / remaining)
    assert (link / "checkpoints").is_symlink()
    assert (folder / "photos" / "checkpoints" / "cat.jpg").exists()
    assert (folder / "damaged" / "checkpoints" / "step-4").is_dir()


def test_a_run_that_was_resumed_since_it_was_listed_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = find_runs([folder])
    monkeypatch.setattr("raytriever.cli.operator_commands.find_runs", lambda folders: listed)
    lock = acquire(folder / "interrupted")
    try:
        assert run("runs", ["clean", "--interrupted", "--finished", "--yes"]) == 0
    finally:
        lock.release()
    assert f"kept: {folder}/interrupted: in use by " in capsys.readouterr().err
    read_manifest(folder / "interrupted" / "checkpoints" / "step-8")
    assert not (folder / "finished" / "checkpoints").exists()
