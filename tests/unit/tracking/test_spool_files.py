"""Files of a tracker in the run directory: whole after kills, damaged lines and full disks, and small in memory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty_server import DATA, FaultyServer, begin, expected, points, stored_points

from raytriever.core.errors import StorageError, UserError
from raytriever.tracking import outbox as outbox_module
from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.run_state import IDENTITY, has_unsent_data
from raytriever.tracking.spool import open_adjacent
from raytriever.tracking.step_log import STEPS, StepLog
from raytriever.tracking.tracker_names import DEFAULT_TRACKERS


@pytest.mark.slow
def test_memory_does_not_grow_with_unsent_data(
    faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "POINTS_PER_MESSAGE", 100)
    sizes: list[int] = []

    class Counting(StepLog):
        def read_from(self, offset: int, limit: int) -> Any:
            batch = super().read_from(offset, limit)
            sizes.append(len(batch.points))
            return batch

    monkeypatch.setattr("raytriever.tracking.spool.StepLog", Counting)
    spool = begin(faulty, tmp_path / "run")
    faulty.is_down = True
    for first in range(1, 1000, 50):
        spool.log(points(first, first + 49))
    faulty.is_down = False
    spool.finish("FINISHED")
    assert max(sizes) < 200
    assert sum(sizes) >= 2000


def test_only_a_damaged_line_is_cut_off(tmp_path: Path) -> None:
    steps = StepLog(tmp_path)
    assert steps.add(points(1, 3)) == 6
    whole = (tmp_path / STEPS).read_bytes()
    for damaged in (whole[:-1], whole[:-20]):
        (tmp_path / STEPS).write_bytes(damaged)
        again = StepLog(tmp_path)
        assert again.points == 4
        assert again.add(points(2, 3)) == 2
        assert (tmp_path / STEPS).read_bytes() == whole
        assert StepLog(tmp_path).read_from(0, 99).points == points(1, 3)
    (tmp_path / STEPS).write_bytes(whole + b'{"step": 9, "metrics": {"' + b"x" * 500)  # longer than what comes next
    StepLog(tmp_path).add(points(4, 4))
    assert (tmp_path / STEPS).read_bytes().startswith(whole)
    assert (tmp_path / STEPS).read_bytes().count(b"x") == 0
    assert StepLog(tmp_path).read_from(0, 2) == (points(1, 1), whole.index(b"\n") + 1)


def test_a_full_disk_is_a_user_error(full_disk: Path) -> None:
    with pytest.raises(StorageError, match="no space left on the disk"):
        StepLog(full_disk).add(points(1, 3))


@pytest.mark.parametrize("content", ["{", "[]", '{"sent": "many"}'])
def test_an_error_names_the_damaged_file(tmp_path: Path, content: str) -> None:
    (tmp_path / IDENTITY).write_text(content)
    with pytest.raises(StorageError, match=r"run\.json: is damaged or changed: .*; give another output"):
        has_unsent_data(tmp_path, "mlflow")


def test_the_tracker_of_a_job_that_writes_its_directory_at_the_end(
    server: MlflowServer, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raytriever.tracking.spool.END_SECONDS", 0.1)
    output, parent, said = tmp_path / "results", tmp_path / ".results.tracking", list[str]()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none.db")
    with pytest.raises(UserError):
        open_adjacent(DEFAULT_TRACKERS, output, said.append)
    assert not parent.exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    first = open_adjacent(DEFAULT_TRACKERS, output, said.append)
    for name in ("letters", "numbers"):  # several data sets of one run
        first.describe({"split": "test"}, replace(DATA, name=name), {})
    first.log(points(1, 2))
    (output / "figures").mkdir(parents=True)
    (output / "figures" / "roc.svg").write_text("<svg/>")
    first.log_file(output / "figures")
    (tmp_path / "secret").write_text("of another run")
    first.log_file(tmp_path / "secret")
    first.finish("FINISHED")
    assert not parent.exists()
    assert [file.path for file in server.client.list_artifacts(first.run_id)] == ["figures"]
    assert stored_points(server, first.run_id) == expected(2)
    inputs = server.client.get_run(first.run_id).inputs.dataset_inputs
    assert {given.dataset.name for given in inputs} == {"letters", "numbers"}

    # Unsent data of an earlier call is sent first.
    parent.mkdir()
    faulty = FaultyServer(server)
    earlier = begin(faulty, parent / "earlier", said)
    faulty.is_down = True
    earlier.log(points(1, 3))
    earlier.finish("FINISHED")
    assert said[-1].endswith("repeat the same command to send them")
    again = open_adjacent(DEFAULT_TRACKERS, output, said.append)
    assert stored_points(server, earlier.run_id) == expected(3)
    assert [folder.name for folder in parent.iterdir()] == [again.folder.name]
    again.finish("FAILED")
    assert not parent.exists()


def test_a_file_that_cannot_be_written_holds_nothing_else_up(
    faulty: FaultyServer, server: MlflowServer, tmp_path: Path
) -> None:
    said: list[str] = []
    spool = begin(faulty, tmp_path / "run", said)
    faulty.refused = "b"
    for name in ("a.txt", "b1.txt", "b2.txt", "c.txt"):
        (tmp_path / "run" / name).write_text(name)
        spool.log_file(tmp_path / "run" / name)
    spool.log(points(1, 2))
    begun = time.monotonic()
    spool.finish("FINISHED")
    assert time.monotonic() - begun < 5  # no server is waited for
    run = server.client.get_run(spool.run_id)
    assert (run.info.status, run.data.metrics["loss"]) == ("FINISHED", 2 / 7)
    assert {file.path for file in server.client.list_artifacts(spool.run_id)} == {"a.txt", "c.txt"}
    assert said == [
        "MLflow has the metrics and the status, but refused 2 files: b1.txt is refused; repeat the same command "
        f"to send what is stored in {tmp_path / 'run'}"
    ]
    assert has_unsent_data(tmp_path / "run", "mlflow")
    faulty.refused = ""
    begin(faulty, tmp_path / "run", said).finish("FINISHED")
    assert {file.path for file in server.client.list_artifacts(spool.run_id)} == {"a.txt", "b1.txt", "b2.txt", "c.txt"}
    assert len(said) == 1
