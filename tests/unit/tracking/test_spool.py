"""Tracker with a server that fails at any point, and its files: no data is lost, repeated or reordered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty_server import DATA, FaultyServer, begin, expected, points, stored_points
from processes import wait_for

from raytriever.core.errors import StorageError, UserError
from raytriever.tracking import outbox as outbox_module
from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.run_state import IDENTITY, has_unsent_data
from raytriever.tracking.spool import open_adjacent, send_pending
from raytriever.tracking.step_log import STEPS, StepLog, read_curve
from raytriever.tracking.tracker import Point, RemoteRun
from raytriever.tracking.tracker_names import DEFAULT_TRACKERS


def test_a_few_points_wait_for_more_unless_other_data_is_logged(
    server: MlflowServer, faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "GATHER_SECONDS", 1000.0)
    monkeypatch.setattr(outbox_module, "POINTS_PER_MESSAGE", 8)
    spool = begin(faulty, tmp_path / "run")

    def there(last: int) -> Callable[[], bool]:
        return lambda: stored_points(server, spool.run_id) == expected(last)

    spool.log(points(1, 1))
    wait_for(there(1))
    requests = faulty.requests
    for step in (2, 3):
        spool.log(points(step, step))
    time.sleep(0.05)
    assert faulty.requests == requests, "two messages within the time for which points wait"
    for step in (4, 5):
        spool.log(points(step, step))  # the message is full
    wait_for(there(5))
    assert faulty.requests == requests + 1
    spool.log(points(6, 6))
    (tmp_path / "run" / "config.yaml").write_text("loss: {}")
    spool.log_file(tmp_path / "run" / "config.yaml")  # something else
    wait_for(there(6))
    spool.log(points(7, 7))
    spool.finish("FINISHED")  # the end
    assert there(7)()


def test_all_data_reaches_the_server(server: MlflowServer, faulty: FaultyServer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    spool = begin(faulty, run)
    spool.describe({"loss": {"loss": "mw", "parts": [1, 2]}, "long": "x" * 9000}, DATA, {"config_hash": "cafe"})
    for worker in (1, 2):  # during the run
        spool.describe({}, None, {"raytriever.lost_worker": f"worker {worker} died"})
        spool.describe({}, None, {"raytriever.missing_workers": "1"})
    spool.log(points(1, 3))
    (run / "figures" / "deep").mkdir(parents=True)
    (run / "figures" / "deep" / "roc.png").write_bytes(b"png")
    (run / "config.yaml").write_text("loss: {}")
    for name in ("config.yaml", "figures"):
        spool.log_file(run / name)
    with pytest.raises(StorageError, match=r"gone\.yaml: does not exist"):
        spool.log_file(run / "gone.yaml")
    spool.finish("FINISHED")
    actual = server.client.get_run(spool.run_id)
    assert (actual.info.run_name, actual.info.status) == ("run", "FINISHED")
    assert actual.data.params["loss.loss"] == "mw"
    assert actual.data.params["loss.parts.2"] == "2"
    assert len(actual.data.params["long"]) == 6000
    assert actual.data.tags["config_hash"] == "cafe"
    assert actual.data.tags["raytriever.lost_worker"] == "worker 2 died"
    assert actual.data.tags["raytriever.missing_workers"] == "1"
    assert [used.dataset.name for used in actual.inputs.dataset_inputs] == ["letters"]
    assert stored_points(server, spool.run_id) == expected(3) == stored_points(server, spool.run_id)
    [file] = server.client.list_artifacts(spool.run_id, "figures/deep")
    assert file.path == "figures/deep/roc.png"
    assert spool.backlog().points == spool.backlog().files == 0


def test_what_is_logged_while_a_server_is_connected_again_is_sent(
    server: MlflowServer, faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = begin(faulty, tmp_path / "run")
    connect = faulty.connect

    def connect_slowly(*arguments: Any) -> RemoteRun:
        run = connect(*arguments)
        (tmp_path / "run" / "late").write_text("late")
        spool.log_file(tmp_path / "run" / "late")
        spool.describe({}, None, {"raytriever.lost_worker": "worker 1 died"})
        return run

    monkeypatch.setattr(faulty, "connect", connect_slowly)
    faulty.lose_responses = 1  # ends the connection
    spool.log(points(1, 2))
    spool.finish("FINISHED")
    actual = server.client.get_run(spool.run_id)
    assert (actual.info.status, actual.data.tags["raytriever.lost_worker"]) == ("FINISHED", "worker 1 died")
    assert [file.path for file in server.client.list_artifacts(spool.run_id)] == ["late"]


def test_a_lost_server_costs_two_lines(server: MlflowServer, faulty: FaultyServer, tmp_path: Path) -> None:
    said: list[str] = []
    spool = begin(faulty, tmp_path / "run", said)
    spool.log(points(1, 2))
    wait_for(lambda: not spool.backlog().points)
    faulty.is_down = True
    for step in range(3, 30):
        spool.log(points(step, step))
        (tmp_path / "run" / "late").write_text("late")
    spool.log_file(tmp_path / "run" / "late")
    wait_for(lambda: spool.backlog().failures > 5)
    assert len(said) == 1
    assert "the answer" not in said[0]
    assert "http://***@host is down; the run continues" in said[0]
    backlog = spool.backlog()
    assert (backlog.points, backlog.files) == (27 * 2, 1)
    assert backlog.seconds > 1e6  # their times are of 1970
    assert stored_points(server, spool.run_id) == expected(2)
    faulty.is_down = False
    spool.finish("FINISHED")
    assert stored_points(server, spool.run_id) == expected(29)
    assert stored_points(server, spool.run_id, "auc") == expected(29)
    assert len(said) == 3
    assert said[1].startswith("waiting up to 60 s for MLflow, to send ") or "answers again" in said[1]
    assert any("MLflow answers again after" in line for line in said)
    assert server.client.get_run(spool.run_id).info.status == "FINISHED"
    assert [file.path for file in server.client.list_artifacts(spool.run_id)] == ["late"]


@pytest.mark.slow
def test_lost_responses_repeat_no_data(server: MlflowServer, faulty: FaultyServer, tmp_path: Path) -> None:
    faulty.lose_responses = 1  # the run is created, and the response is lost
    with pytest.raises(ConnectionError):
        begin(faulty, tmp_path / "run")
    spool = begin(faulty, tmp_path / "run")
    key = json.loads((tmp_path / "run" / IDENTITY).read_text())["key"]
    experiment = server.experiment()
    assert len(server.client.search_runs([experiment], f"tags.`raytriever.key` = '{key}'")) == 1
    for step in range(1, 12):
        faulty.lose_responses = 1
        spool.log(points(step, step))
        wait_for(lambda: not spool.backlog().points)
    spool.describe({"a": 1}, DATA, {})
    faulty.lose_responses = 3
    spool.finish("FINISHED")
    assert stored_points(server, spool.run_id) == expected(11)
    assert len(server.client.get_run(spool.run_id).inputs.dataset_inputs) == 1


def test_unsent_data_is_reported_at_the_end_and_sent_by_the_same_command(
    server: MlflowServer, faulty: FaultyServer, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raytriever.tracking.spool.END_SECONDS", 0.1)
    said: list[str] = []
    run = tmp_path / "run"
    spool = begin(faulty, run, said)
    child = spool.child("run/1-first", run / "stages" / "1")
    faulty.is_down = True
    late = run / "stages" / "2"
    (late).mkdir(parents=True)
    unmade = spool.child("run/2-second", late)  # started while the server does not answer
    for item in (spool, child, unmade):
        item.log(points(1, 4))
        item.finish("FINISHED") if item is not spool else None
    (run / "report.html").write_text("report")
    spool.log_file(run / "report.html")
    spool.finish("FINISHED")
    assert said[-1] == f"24 points and 1 files for MLflow are stored in {run}; repeat the same command to send them"
    assert unmade.run_id is None

    # A server that does not answer is no error of a finished run. Then it answers again.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none.db")
    send_pending(run, DEFAULT_TRACKERS, said.append)
    assert said[-1].endswith(f"repeat this command when MLflow answers, to send the data in {run}")
    said.clear()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    send_pending(run, DEFAULT_TRACKERS, said.append)
    assert said == []
    stages = server.client.search_runs([server.experiment()], f"tags.mlflow.parentRunId = '{spool.run_id}'")
    assert {stage.info.run_name for stage in stages} == {"run/1-first", "run/2-second"}
    for run_id in (spool.run_id, *(stage.info.run_id for stage in stages)):
        assert stored_points(server, run_id) == expected(4)
        assert server.client.get_run(run_id).info.status == "FINISHED"
    before = (run / IDENTITY).read_bytes()
    send_pending(run, DEFAULT_TRACKERS, said.append)
    assert (run / IDENTITY).read_bytes() == before
    assert said == []


def test_a_run_that_the_server_deleted_is_sent_again(
    server: MlflowServer, faulty: FaultyServer, tmp_path: Path
) -> None:
    spool = begin(faulty, tmp_path / "run")
    spool.describe({"loss": {"loss": "mw"}}, DATA, {"config_hash": "cafe"})
    (tmp_path / "run" / "config.yaml").write_text("loss: {}")
    spool.log_file(tmp_path / "run" / "config.yaml")
    spool.log(points(1, 3))
    wait_for(lambda: not (spool.backlog().points or spool.backlog().files))
    first = spool.run_id
    server.client.delete_run(first)
    spool.log(points(4, 5))
    spool.finish("FINISHED")
    assert spool.run_id != first
    assert stored_points(server, spool.run_id) == expected(5)
    again = server.client.get_run(spool.run_id)
    assert (again.data.params, again.data.tags["config_hash"]) == ({"loss.loss": "mw"}, "cafe")
    assert [file.path for file in server.client.list_artifacts(spool.run_id)] == ["config.yaml"]


def test_a_resumed_run_sends_the_unsent_data(server: MlflowServer, faulty: FaultyServer, tmp_path: Path) -> None:
    spool = begin(faulty, tmp_path / "run")
    spool.log(points(1, 3))
    wait_for(lambda: not spool.backlog().points)
    faulty.is_down = True
    spool.log(points(4, 5))
    spool.drain(0.0)  # this driver stops sending, as if it had died
    faulty.is_down = False
    again = begin(faulty, tmp_path / "run")
    assert again.run_id == spool.run_id
    again.log([Point("loss", 99.0, 5, 99), *points(5, 6)])  # step 5 is repeated
    again.finish("FINISHED")
    assert stored_points(server, again.run_id) == expected(6)
    assert [value for _, value in read_curve(tmp_path / "run", "loss")] == [step / 7 for step in range(1, 7)]


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
