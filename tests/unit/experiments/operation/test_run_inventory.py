"""Inventory of run directories and of the cache: kinds, states, and what cleaning removes and keeps."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.cli.operator_commands import read_size
from raytriever.core.errors import ConfigError
from raytriever.core.store.cache import hold, remove_entry
from raytriever.core.store.capacity import format_size
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.core.store.lock import acquire
from raytriever.experiments.operation.cache_inventory import cache_entries, entries_to_prune
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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four entries of about 10 kB whose last uses are one hour apart, and older answers of language models."""
    root = tmp_path / "cache"
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(root))
    entries = [root / "answers", root / "datasets" / "squad-1", root / "embeddings" / "e1", root / "pydocs-1"]
    metas: list[dict[str, str]] = [{}, {"name": "squad", "source": "/data/squad"}, {"dataset": "squad"}, {}]
    for hours, (path, meta) in enumerate(zip([*entries, root / "embeddings" / "e2"], [*metas, {}], strict=True)):
        with committed_directory(path, meta) as aside:
            (aside / "values").write_bytes(bytes(10_000))
        for file in (*path.iterdir(), path):
            os.utime(file, (1_700_000_000 + 3600 * hours,) * 2)
    (root / "locks").mkdir()
    return root


def test_entries_are_listed_from_the_least_recently_used(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = cache_entries()
    assert [entry.path.name for entry in entries] == ["answers", "squad-1", "e1", "pydocs-1", "e2"]
    assert entries[1].used_at == 1_700_003_600
    assert entries[1].size == sum(file.stat().st_size for file in entries[1].path.iterdir())
    assert run("cache", ["list"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines()[1:4]] == ["answers", "datasets/squad-1", "embeddings/e1"]
    assert out.splitlines()[-1].startswith(f"{cache}: 5 entries, 5")


def test_pruning_removes_the_least_recently_used_to_the_size(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", ["prune", "--max-size", "32kb"]) == 0
    assert sorted(entry.path.name for entry in cache_entries()) == ["answers", "e2", "pydocs-1"]
    out = capsys.readouterr().out
    assert "removed datasets/squad-1, 10." in out
    assert "removed embeddings/e1, 10." in out


def test_an_entry_in_use_and_answers_are_never_pruned(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = acquire(cache / "datasets" / "squad-1")
    try:
        assert [entry.path.name for entry in entries_to_prune(cache_entries(), 0)] == ["e1", "pydocs-1", "e2"]
        [entry] = [entry for entry in cache_entries() if entry.path.name == "squad-1"]
        assert not remove_entry(entry.path)
        assert run("cache", ["prune", "--max-size", "0"]) == 0
    finally:
        lock.release()
    assert sorted(entry.path.name for entry in cache_entries()) == ["answers", "squad-1"]
    assert "the other entries are in use or cannot be created again" in capsys.readouterr().err


def test_an_entry_that_is_open_is_listed_so_and_never_pruned(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holder: set[str] = set()
    hold(cache / "embeddings" / "e1", holder)
    assert run("cache", ["list"]) == 0
    out = capsys.readouterr().out
    assert "embeddings/e1 (in use)\n" in out
    assert run("cache", ["prune", "--max-size", "0"]) == 0
    assert sorted(entry.path.name for entry in cache_entries()) == ["answers", "e1"]
    del holder
    assert run("cache", ["prune", "--max-size", "0"]) == 0
    assert [entry.path.name for entry in cache_entries()] == ["answers"]


def test_pruning_by_age_removes_what_was_not_used_since(cache: Path) -> None:
    now = time.time()
    for path, hours in ((cache / "pydocs-1", 2), (cache / "embeddings" / "e2", 30)):
        for file in (*path.iterdir(), path):
            os.utime(file, (now - 3_600 * hours,) * 2)
    assert run("cache", ["prune", "--max-age", "1d"]) == 0
    assert sorted(entry.path.name for entry in cache_entries()) == ["answers", "pydocs-1"]
    assert run("cache", ["prune", "--max-age", "1h"]) == 0
    assert [entry.path.name for entry in cache_entries()] == ["answers"]


def test_sizes_are_read_and_shown_with_a_unit() -> None:
    assert [read_size(text) for text in ("500MB", "1.5 kb", "7", "3b", "2TB")] == [500_000_000, 1500, 7, 3, 2e12]
    assert [format_size(size) for size in (0, 999, 1500, 10**10)] == ["0 B", "999 B", "1.5 KB", "10.0 GB"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("prune --max-size lots", "--max-size: 'lots' is not a size; give a size such as 500MB or 10GB"),
        ("prune --max-age soon", "--max-age: 'soon' is not an age; give an age such as 12h or 30d"),
        ("prune", "`cache prune` needs --max-size or --max-age; give a size, such as --max-size 10GB, or an age"),
        ("list --max-age 1d", "`cache list` has no --max-age; leave it out, or use `cache prune`"),
        ("lsit", "unknown action 'lsit'; did you mean 'list'?"),
    ],
)
def test_user_errors(cache: Path, capsys: pytest.CaptureFixture[str], words: str, line: str) -> None:
    assert run("cache", words.split()) == 2
    assert line in capsys.readouterr().err
