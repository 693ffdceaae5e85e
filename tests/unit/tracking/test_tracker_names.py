"""W&B, TensorBoard and Trackio on this machine: what they have is what was logged, once, also after a kill."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from faulty_server import DATA, points
from processes import wait_for
from wandb_file import read_records

from raytriever.core.errors import ConfigError, UserError
from raytriever.tracking import outbox as outbox_module
from raytriever.tracking import tracker_names as trackers_module
from raytriever.tracking.run_state import state_file, view_of
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.step_log import STEPS
from raytriever.tracking.tracker import Point
from raytriever.tracking.tracker_names import check_trackers, open_trackers, read_trackers
from raytriever.tracking.wandb_tracker import WandbClient

Values = dict[tuple[str, int], list[float]]
LOCAL = ["wandb", "tensorboard", "trackio"]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr(outbox_module, "GATHER_SECONDS", 0.0)


def of_wandb(folder: Path) -> tuple[Values, dict[str, Any]]:
    """Read W&B's files of runs."""
    from wandb.proto.wandb_internal_pb2 import Record

    values: Values = {}
    settings: dict[str, Any] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in map(Record.FromString, read_records(file)):
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name in row.keys() - {"step", "_step", "_timestamp", "_runtime"}:
                values.setdefault((name, row["step"]), []).append(row[name])
            for item in record.config.update:
                settings[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    return values, settings


def of_tensorboard(folder: Path) -> tuple[Values, dict[str, Any]]:
    """Read event files with TensorBoard's reader."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.plugins.hparams import metadata

    values: Values = {}
    settings: dict[str, Any] = {}
    files = [file for file in (folder / "events").rglob("events.out.tfevents.*") if file.stat().st_size]
    assert len(files) <= 1
    for event in (event for file in files for event in LegacyEventFileLoader(str(file)).Load()):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                values.setdefault((value.tag, event.step), []).append(value.simple_value)
            else:
                start = metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
                settings |= {name: hparam.string_value or hparam.number_value for name, hparam in start.hparams.items()}
    return values, settings


def of_trackio(folder: Path, project: str = "raytriever") -> tuple[Values, dict[str, Any]]:
    """Read Trackio's database."""
    values: Values = {}
    with sqlite3.connect(folder / "trackio" / f"{project}.db") as database:
        for step, row in database.execute("select step, metrics from metrics order by id"):
            for name, value in json.loads(row).items():
                values.setdefault((name, step), []).append(value)
        configs = [json.loads(config) for (config,) in database.execute("select config from configs")]
    database.close()
    return values, configs[-1] if configs else {}


READERS: dict[str, Callable[[Path], tuple[Values, dict[str, Any]]]] = {
    "wandb": of_wandb,
    "tensorboard": of_tensorboard,
    "trackio": of_trackio,
}
VIEWS = {"wandb": ["wandb", "sync"], "tensorboard": ["tensorboard", "--logdir"], "trackio": ["trackio", "show"]}
NEW_TRACKIO = tuple(map(int, version("trackio").split(".")[:2])) >= (0, 43)
needs_trackio = pytest.mark.skipif(not NEW_TRACKIO, reason="constraints.txt has a newer trackio")
EACH = ["tensorboard", pytest.param("wandb", marks=pytest.mark.slow), pytest.param("trackio", marks=needs_trackio)]


def wanted(last: int) -> Values:
    return {(name, step): [pytest.approx(step / 7)] for step in range(1, last + 1) for name in ("loss", "auc")}


@pytest.mark.parametrize("tracker", EACH)
def test_a_tracker_has_every_point_once_and_all_settings(tracker: str, tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()
    run.mkdir()
    [client] = open_trackers([tracker])
    first = Spool.open([client], run, "run", said.append)
    first.describe({"loss": {"loss": "mw", "temperature": 0.01}}, DATA, {"raytriever.command": "train"})
    first.log(points(1, 3))
    assert first.drain(20.0)
    if isinstance(client, WandbClient):
        import wandb

        wandb.teardown()  # its own process ends with this one
    resumed = Spool.open(open_trackers([tracker]), run, "run", said.append)
    assert resumed.run_id == first.run_id
    # A point of an earlier step comes later, and the last step is repeated.
    resumed.log([Point("dev/auc", 0.5, 2, 1500), *points(3, 5)])
    (run / "report.html").write_text("report")
    resumed.log_file(run / "report.html", "pages")
    resumed.finish("FINISHED")
    values, settings = READERS[tracker](tmp_path)
    assert values == wanted(5) | {("dev/auc", 2): [0.5]}
    assert settings["loss.loss"] == "mw"
    assert settings["loss.temperature"] == 0.01
    assert settings["raytriever.command"] == "train"
    assert settings["dataset.letters.documents"] == 160
    assert said == []
    if tracker == "wandb":
        assert len(list(tmp_path.glob(f"wandb/offline-run-*-{first.run_id}*/files/pages/report.html"))) == 1
    # A tracker that has lost the last message after it confirmed it gets it again, or says that it has it.
    file = run / state_file(tracker)
    state = json.loads(file.read_text())
    assert (state["descriptions"], state["files"]) == ([], [])
    file.write_text(json.dumps(state | {"sent": 0, "status": "FINISHED"}))
    assert send_pending(run, [tracker], said.append)
    assert READERS[tracker](tmp_path) == (values, settings)
    if tracker == "wandb":  # files too
        assert len(list(tmp_path.glob(f"wandb/offline-run-*-{first.run_id}*/files/pages/report.html"))) == 1
    assert shlex.split(view_of(run, tracker))[:2] == VIEWS[tracker]


DRIVER = """
import itertools, sys
from pathlib import Path
from raytriever.tracking.spool import Spool
from raytriever.tracking.step_log import read_curve
from raytriever.tracking.tracker import Point
from raytriever.tracking.tracker_names import open_trackers
folder = Path(sys.argv[1])
spool = Spool.open(open_trackers(sys.argv[2].split(",")), folder, "killed")
done = max((step for step, _ in read_curve(folder, "loss")), default=0)
for step in itertools.count(max(1, done - 20)):  # as from a checkpoint before the last step
    spool.log([Point(name, step / 7, step, 1000 + step) for name in ("loss", "auc")])
    print(step, flush=True)
    if step == int(sys.argv[3]):
        break
spool.finish("FINISHED")
"""


@pytest.mark.slow
def test_killed_drivers_lose_and_repeat_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(
        "WANDB_SERVICE", raising=False
    )  # W&B's process of an earlier test, which would serve the drivers
    used = [name for name in LOCAL if name != "trackio" or NEW_TRACKIO]
    run, last = tmp_path / "killed", 0
    run.mkdir()
    words = [sys.executable, "-c", DRIVER, str(run), ",".join(used)]
    for kill in range(4):
        process = subprocess.Popen([*words, str(10**9)], stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        for _ in range(2500 + 700 * kill):
            last = max(last, int(process.stdout.readline()))
        # W&B's own process dies too in two of four: then its file lacks what it had only in memory.
        (os.killpg if kill % 2 else os.kill)(process.pid, signal.SIGKILL)
        last = max([last, *map(int, process.communicate()[0].split("\n")[:-1])])
    subprocess.run([*words, str(last + 10)], check=True, stdout=subprocess.DEVNULL)
    for name in used:
        assert READERS[name](tmp_path)[0] == wanted(last + 10), name
    folders = {folder.name.split("-")[3] for folder in tmp_path.glob("wandb/offline-run-*")}
    assert folders == {json.loads((run / state_file("wandb")).read_text())["tracking_id"]}


def test_a_tracker_that_fails_stops_neither_the_run_nor_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raytriever.tracking.spool.END_SECONDS", 0.1)
    monkeypatch.setattr(outbox_module, "FIRST_PAUSE", 0.01)
    run, said = tmp_path / "run", list[str]()
    run.mkdir()
    clients = open_trackers(["tensorboard"])
    (tmp_path / "events").write_text("in the way")
    spool = Spool.open(clients, run, "run", said.append)
    spool.log(points(1, 2))
    wait_for(lambda: said)
    spool.finish("FINISHED")
    assert "events" in said[0]
    assert said[0].endswith("; the run continues, and its data is stored and sent later")
    assert said[-1] == f"4 points and 0 files for TensorBoard are stored in {run}; repeat the same command to send them"
    assert len((run / STEPS).read_text().splitlines()) == 2
    (tmp_path / "events").unlink()
    assert send_pending(run, ["tensorboard"], said.append)
    assert of_tensorboard(tmp_path)[0] == wanted(2)


def test_a_tensorboard_that_has_read_the_events_has_each_point_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    run.mkdir()
    reader = None
    for last in (2, 4, 6):
        spool = Spool.open(open_trackers(["tensorboard"]), run, "run")
        spool.describe({"loss": {"loss": "mw"}}, DATA, {})
        spool.log(points(1, last))
        assert spool.drain(5.0)
        reader = reader or EventAccumulator(str(tmp_path / "events" / str(spool.run_id)))
        reader.Reload()
        assert [(scalar.step, scalar.value) for scalar in reader.Scalars("loss")] == [
            (step, pytest.approx(step / 7)) for step in range(1, last + 1)
        ]
        file = max((tmp_path / "events").rglob("events.out.tfevents.*"))
        os.truncate(file, file.stat().st_size - 7)  # as a kill leaves it


def test_no_tracker_keeps_the_curves(tmp_path: Path) -> None:
    spool = Spool.open(open_trackers(()), tmp_path, "run")
    spool.describe({"a": 1}, DATA, {})
    spool.log(points(1, 2))
    spool.finish("FINISHED")
    assert [path.name for path in tmp_path.iterdir()] == [STEPS]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("wandbb", "tracker: unknown tracker 'wandbb'; did you mean 'wandb'?"),
        ("none,mlflow", "tracker: 'none,mlflow' has both 'none' and names of trackers; give none alone"),
    ],
)
def test_an_unknown_tracker_is_refused(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_trackers(text)
    assert str(caught.value).startswith(line)
    assert read_trackers("wandb, mlflow,wandb") == ("wandb", "mlflow")
    assert read_trackers("none") == ()


def test_a_missing_key_or_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    wandb.teardown()  # it keeps the mode of the first run of a process
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(UserError, match=r"^tracker wandb: W&B has no API key for https://.*WANDB_MODE=offline$"):
        check_trackers(["wandb"])
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    wandb.teardown()
    check_trackers(["wandb"])
    wandb.teardown()
    monkeypatch.setitem(trackers_module._OLDEST, "tensorboard", "99.1")
    with pytest.raises(ConfigError, match=r"is older than 99\.1; run `pip install 'raytriever\[tensorboard\]'`"):
        check_trackers(["tensorboard"])
    monkeypatch.setattr(trackers_module, "version", lambda name: version("none-of-this-name"))
    with pytest.raises(ConfigError, match="TensorBoard needs the package tensorboard"):
        check_trackers(["tensorboard"])
