"""A tracker whose server fails at any point: nothing lost, nothing doubled, order kept, and nobody waits.

The server is a real MLflow database behind a door that may be shut, or that loses the answer to what it let in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raytriever.errors import StorageError, UserError
from raytriever.tracking import outbox as outbox_module
from raytriever.tracking import sender as sender_module
from raytriever.tracking.beside import open_beside
from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.outbox import IDENTITY, Outbox, Server
from raytriever.tracking.sender import Sender
from raytriever.tracking.spool import Spool, send_what_waits
from raytriever.tracking.steps import STEPS, Steps, curve
from raytriever.tracking.tracker import DatasetRecord, Point

DATA = DatasetRecord("letters", "data/letters", "ab" * 32, {"documents": 160})


class Door:
    """The way to a real server."""

    def __init__(self, server: MlflowServer) -> None:
        self._server = server
        self.shut = False
        self.lose_answers = 0
        self.asked = 0

    def connect(self, run_name: str, run_id: str | None, parent: str | None, key: str) -> Server:
        return Passage(self, self.through(self._server.connect, run_name, run_id, parent, key))

    def through(self, call: Callable[..., Any], *words: Any) -> Any:
        self.asked += 1
        if self.shut:
            raise ConnectionError("http://ada:secret@door is shut")
        answer = call(*words)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ConnectionError("the answer was lost")
        return answer


class Passage:
    """A run behind the door."""

    def __init__(self, door: Door, run: Server) -> None:
        self._door, self._run, self.run_id = door, run, run.run_id

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        self._door.through(self._run.describe, config, dataset, tags)

    def log(self, points: Sequence[Point]) -> None:
        self._door.through(self._run.log, points)

    def log_file(self, path: Path, folder: str = "") -> None:
        self._door.through(self._run.log_file, path, folder)

    def finish(self, status: str) -> None:
        self._door.through(self._run.finish, status)


@pytest.fixture
def uri(database: Path) -> str:
    return f"sqlite:///{database}"


@pytest.fixture
def server(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowServer:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sender_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sender_module, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(outbox_module, "GATHER_SECONDS", 0.0)
    return MlflowServer(uri)


@pytest.fixture
def door(server: MlflowServer) -> Door:
    return Door(server)


def begin(door: Door, folder: Path, said: list[str] | None = None) -> Spool:
    """As `Spool.open` does, through the door."""
    folder.mkdir(exist_ok=True)
    outbox = Outbox(folder)
    outbox.begin("run")
    outbox.connect(door.connect)
    say = (said if said is not None else []).append
    return Spool(outbox, Sender(door.connect, say, "http://***@door"), say)


def points(first: int, last: int) -> list[Point]:
    return [Point(name, step / 7, step, 1000 + step) for step in range(first, last + 1) for name in ("loss", "auc")]


def kept(server: MlflowServer, run_id: str | None, name: str = "loss") -> list[tuple[int, float, int]]:
    history = server.client.get_metric_history(run_id, name)
    return [(metric.step, metric.value, metric.timestamp) for metric in history]


def expected(last: int) -> list[tuple[int, float, int]]:
    return [(step, step / 7, 1000 + step) for step in range(1, last + 1)]


def wait_for(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_a_few_points_wait_for_more_unless_something_else_is_told(
    server: MlflowServer, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "GATHER_SECONDS", 1000.0)
    monkeypatch.setattr(outbox_module, "POINTS_A_MESSAGE", 8)
    spool = begin(door, tmp_path / "run")

    def there(last: int) -> Callable[[], bool]:
        return lambda: kept(server, spool.run_id) == expected(last)

    spool.log(points(1, 1))
    wait_for(there(1))
    asked = door.asked
    for step in (2, 3):
        spool.log(points(step, step))
    time.sleep(0.05)
    assert door.asked == asked, "two messages within the time for which points wait"
    for step in (4, 5):
        spool.log(points(step, step))  # the message is full
    wait_for(there(5))
    assert door.asked == asked + 1
    spool.log(points(6, 6))
    (tmp_path / "run" / "config.yaml").write_text("loss: {}")
    spool.log_file(tmp_path / "run" / "config.yaml")  # something else
    wait_for(there(6))
    spool.log(points(7, 7))
    spool.finish("FINISHED")  # the end
    assert there(7)()


def test_a_few_points_do_not_wait_for_ever(
    server: MlflowServer, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "GATHER_SECONDS", 0.05)
    spool = begin(door, tmp_path / "run")
    for step in (1, 2):
        spool.log(points(step, step))
        wait_for(lambda last=step: kept(server, spool.run_id) == expected(last))
    spool.finish("FINISHED")


def test_what_is_told_reaches_the_server(server: MlflowServer, door: Door, tmp_path: Path) -> None:
    run = tmp_path / "run"
    spool = begin(door, run)
    spool.describe({"loss": {"loss": "mw", "parts": [1, 2]}, "long": "x" * 9000}, DATA, {"config_hash": "cafe"})
    spool.log(points(1, 3))
    (run / "figures" / "deep").mkdir(parents=True)
    (run / "figures" / "deep" / "roc.png").write_bytes(b"png")
    (run / "config.yaml").write_text("loss: {}")
    for name in ("config.yaml", "figures"):
        spool.log_file(run / name)
    with pytest.raises(StorageError, match=r"gone\.yaml: is not there"):
        spool.log_file(run / "gone.yaml")
    spool.finish("FINISHED")
    found = server.client.get_run(spool.run_id)
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["loss.loss"] == "mw"
    assert found.data.params["loss.parts.2"] == "2"
    assert len(found.data.params["long"]) == 6000
    assert found.data.tags["config_hash"] == "cafe"
    assert found.inputs.dataset_inputs[0].dataset.name == "letters"
    assert kept(server, spool.run_id) == expected(3) == kept(server, spool.run_id)
    [file] = server.client.list_artifacts(spool.run_id, "figures/deep")
    assert file.path == "figures/deep/roc.png"
    assert spool.backlog().points == spool.backlog().files == 0


def test_a_server_that_is_away_costs_two_lines(server: MlflowServer, door: Door, tmp_path: Path) -> None:
    said: list[str] = []
    spool = begin(door, tmp_path / "run", said)
    spool.log(points(1, 2))
    wait_for(lambda: not spool.backlog().points)
    door.shut = True
    for step in range(3, 30):
        spool.log(points(step, step))
        (tmp_path / "run" / "late").write_text("late")
    spool.log_file(tmp_path / "run" / "late")
    wait_for(lambda: spool.backlog().failures > 5)
    assert len(said) == 1
    assert "the answer" not in said[0]
    assert "http://***@door is shut; the run goes on" in said[0]
    backlog = spool.backlog()
    assert (backlog.points, backlog.files) == (27 * 2, 1)
    assert backlog.seconds > 1e6  # these were told in 1970
    assert kept(server, spool.run_id) == expected(2)
    door.shut = False
    spool.finish("FINISHED")
    assert kept(server, spool.run_id) == expected(29)
    assert kept(server, spool.run_id, "auc") == expected(29)
    assert len(said) == 3
    assert said[1].startswith("waiting up to 60 s for MLflow, for which ") or "answers again" in said[1]
    assert any("MLflow answers again after" in line for line in said)
    assert server.client.get_run(spool.run_id).info.status == "FINISHED"
    assert [file.path for file in server.client.list_artifacts(spool.run_id)] == ["late"]


def test_answers_that_are_lost_double_nothing(server: MlflowServer, door: Door, tmp_path: Path) -> None:
    door.lose_answers = 1  # the run is made, and nobody hears of it
    with pytest.raises(ConnectionError):
        begin(door, tmp_path / "run")
    spool = begin(door, tmp_path / "run")
    key = json.loads((tmp_path / "run" / IDENTITY).read_text())["key"]
    experiment = server.experiment()
    assert len(server.client.search_runs([experiment], f"tags.`raytriever.key` = '{key}'")) == 1
    for step in range(1, 12):
        door.lose_answers = 1
        spool.log(points(step, step))
        wait_for(lambda: not spool.backlog().points)
    spool.describe({"a": 1}, DATA, {})
    door.lose_answers = 3
    spool.finish("FINISHED")
    assert kept(server, spool.run_id) == expected(11)
    assert len(server.client.get_run(spool.run_id).inputs.dataset_inputs) == 1


def test_what_waits_at_the_end_is_told_and_sent_by_the_same_command(
    server: MlflowServer, door: Door, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raytriever.tracking.spool.END_SECONDS", 0.1)
    said: list[str] = []
    run = tmp_path / "run"
    spool = begin(door, run, said)
    child = spool.child("run/1-first", run / "stages" / "1")
    door.shut = True
    late = run / "stages" / "2"
    (late).mkdir(parents=True)
    unmade = spool.child("run/2-second", late)  # begun while the server is away
    for each in (spool, child, unmade):
        each.log(points(1, 4))
        each.finish("FINISHED") if each is not spool else None
    (run / "report.html").write_text("report")
    spool.log_file(run / "report.html")
    spool.finish("FINISHED")
    assert said[-1] == f"24 points and 1 files wait for MLflow in {run}; the same command sends them"
    assert unmade.run_id is None

    # A server that is still away is no mistake of a finished run, and then it is back.
    send_what_waits(run, "sqlite:////proc/none.db", said.append)
    assert said[-1].endswith(f"what waits in {run} is sent by this command when it answers")
    said.clear()
    send_what_waits(run, uri, said.append)
    assert said == []
    made = server.client.search_runs([server.experiment()], f"tags.mlflow.parentRunId = '{spool.run_id}'")
    assert {found.info.run_name for found in made} == {"run/1-first", "run/2-second"}
    for run_id in (spool.run_id, *(found.info.run_id for found in made)):
        assert kept(server, run_id) == expected(4)
        assert server.client.get_run(run_id).info.status == "FINISHED"
    before = (run / IDENTITY).read_bytes()
    send_what_waits(run, uri, said.append)
    assert (run / IDENTITY).read_bytes() == before
    assert said == []


def test_a_run_that_the_server_lost_is_told_anew(server: MlflowServer, door: Door, tmp_path: Path) -> None:
    spool = begin(door, tmp_path / "run")
    spool.log(points(1, 3))
    wait_for(lambda: not spool.backlog().points)
    first = spool.run_id
    server.client.delete_run(first)
    spool.log(points(4, 5))
    spool.finish("FINISHED")
    assert spool.run_id != first
    assert kept(server, spool.run_id) == expected(5)


def test_a_continued_run_tells_what_was_not_told(server: MlflowServer, door: Door, tmp_path: Path) -> None:
    spool = begin(door, tmp_path / "run")
    spool.log(points(1, 3))
    wait_for(lambda: not spool.backlog().points)
    door.shut = True
    spool.log(points(4, 5))
    spool.settle(0.0)  # this driver sends no more, as if it were dead
    door.shut = False
    again = begin(door, tmp_path / "run")
    assert again.run_id == spool.run_id
    again.log([Point("loss", 99.0, 5, 99), *points(5, 6)])  # step 5 is done again
    again.finish("FINISHED")
    assert kept(server, again.run_id) == expected(6)
    assert [value for _, value in curve(tmp_path / "run", "loss")] == [step / 7 for step in range(1, 7)]


DRIVER = """
import sys, itertools
from pathlib import Path
from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.spool import Spool
from raytriever.tracking.steps import curve
from raytriever.tracking.tracker import Point
folder = Path(sys.argv[1])
spool = Spool.open(MlflowServer(sys.argv[2]), folder, "killed")
done = max((step for step, _ in curve(folder, "loss")), default=0)
print("begun", flush=True)
for step in itertools.count(max(1, done - 20)):  # as from a checkpoint before the last step
    spool.log([Point("loss", step / 7, step, 1000 + step)])
    print(step, flush=True)
    if step == int(sys.argv[3]):
        break
spool.finish("FINISHED")
"""


@pytest.mark.slow
def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(
    server: MlflowServer, uri: str, tmp_path: Path
) -> None:
    run, last = tmp_path / "killed", 0
    run.mkdir()
    words = [sys.executable, "-c", DRIVER, str(run), uri]
    for kill in range(3):
        process = subprocess.Popen([*words, str(10**9)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1 + 0.12 * kill)
        os.kill(process.pid, signal.SIGKILL)
        told = process.communicate()[0].split("\n")[:-1]
        last = max([last, *map(int, told)])
    subprocess.run([*words, str(last + 10)], check=True, stdout=subprocess.DEVNULL)
    run_id = json.loads((run / IDENTITY).read_text())["tracking_id"]
    assert kept(server, run_id) == expected(last + 10)
    assert last > 20
    key = json.loads((run / IDENTITY).read_text())["key"]
    assert len(server.client.search_runs([server.experiment()], f"tags.`raytriever.key` = '{key}'")) == 1


def test_memory_does_not_grow_with_what_waits(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "POINTS_A_MESSAGE", 100)
    asked: list[int] = []

    class Counting(Steps):
        def after(self, offset: int, most: int) -> Any:
            stretch = super().after(offset, most)
            asked.append(len(stretch.points))
            return stretch

    monkeypatch.setattr(outbox_module, "Steps", Counting)
    spool = begin(door, tmp_path / "run")
    door.shut = True
    for first in range(1, 1000, 50):
        spool.log(points(first, first + 49))
    door.shut = False
    spool.finish("FINISHED")
    assert max(asked) < 200
    assert sum(asked) >= 2000


def test_a_torn_line_is_cut_off_and_only_that(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    assert steps.add(points(1, 3)) == 6
    whole = (tmp_path / STEPS).read_bytes()
    for torn in (whole[:-1], whole[:-20]):
        (tmp_path / STEPS).write_bytes(torn)
        again = Steps(tmp_path)
        assert again.points == 4
        assert again.add(points(2, 3)) == 2
        assert (tmp_path / STEPS).read_bytes() == whole
        assert Steps(tmp_path).after(0, 99).points == points(1, 3)
    (tmp_path / STEPS).write_bytes(whole + b'{"step": 9, "measured": {"' + b"x" * 500)  # longer than what comes next
    Steps(tmp_path).add(points(4, 4))
    assert (tmp_path / STEPS).read_bytes().startswith(whole)
    assert (tmp_path / STEPS).read_bytes().count(b"x") == 0
    assert Steps(tmp_path).after(0, 2) == (points(1, 1), whole.index(b"\n") + 1)


def test_a_full_disk_is_one_line(full_disk: Path) -> None:
    with pytest.raises(StorageError, match="no space left on the disk"):
        Steps(full_disk).add(points(1, 3))


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"sent": "many"}'])
def test_a_torn_identity_is_told_by_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / IDENTITY).write_text(content)
    with pytest.raises(StorageError, match=r"run\.json: is torn or changed; give --fresh"):
        Outbox(tmp_path)


def test_a_job_whose_directory_appears_at_its_end(
    server: MlflowServer, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raytriever.tracking.spool.END_SECONDS", 0.1)
    output, place, said = tmp_path / "results", tmp_path / ".results.tracking", list[str]()
    with pytest.raises(UserError):
        open_beside("sqlite:////proc/none.db", output, said.append)
    assert not place.exists()
    first = open_beside(uri, output, said.append)
    for name in ("letters", "numbers"):  # several data sets of one run
        first.describe({"split": "test"}, replace(DATA, name=name), {})
    first.log(points(1, 2))
    first.finish("FINISHED")
    assert not place.exists()
    assert kept(server, first.run_id) == expected(2)
    inputs = server.client.get_run(first.run_id).inputs.dataset_inputs
    assert {given.dataset.name for given in inputs} == {"letters", "numbers"}

    # What an earlier call could not send stands there, and goes first.
    place.mkdir()
    door = Door(server)
    left = begin(door, place / "left", said)
    door.shut = True
    left.log(points(1, 3))
    left.finish("FINISHED")
    assert said[-1].endswith("the same command sends them")
    again = open_beside(uri, output, said.append)
    assert kept(server, left.run_id) == expected(3)
    assert [folder.name for folder in place.iterdir()] == [again.folder.name]
    again.finish("FAILED")
    assert not place.exists()
