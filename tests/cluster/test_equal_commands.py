"""Equal trainings for one run directory: one runs, the others are refused or wait, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from processes import losses, wait_for

from raytriever.core.store.lock import owner_of
from raytriever.evaluation.results import Results

STEPS = 200
SETTINGS = ["--eval-steps", "20", "--patience", "99", "--max-steps", str(STEPS), "--output", "run"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_equal_trainings_lose_no_step(command_line: Callable[..., Any], started: list[Any]) -> None:
    cli = command_line()
    run = cli.folder / "run"
    (cli.folder / "link").symlink_to("run")
    started.append(cli.start("train", *cli.settings, *SETTINGS))
    owner = wait_for(lambda: owner_of(run), 60, started[0])
    assert (owner.pid, owner.command) == (started[0].pid, "raytriever train")
    for words in (["--output", "link"], ["--fresh"]):
        second = cli.train(*SETTINGS, *words)
        assert second.returncode == 2
        assert f"in use by 'raytriever train' on host {owner.host}, pid {owner.pid}, since " in second.stderr
    wait_for((run / "checkpoints" / "step-40").exists, 200, started[0])
    refused = cli.train(*SETTINGS, "--fresh")
    assert (refused.returncode, "in use by 'raytriever train'" in refused.stderr) == (2, True)

    # Killed, with its workers alive, and at once given again by two commands.
    os.kill(started[0].pid, signal.SIGKILL)
    started += [cli.start("train", *cli.settings, *SETTINGS, "--wait") for _ in range(2)]
    ends = [process.communicate(timeout=500) for process in started[1:]]
    assert [process.returncode for process in started[1:]] == [0, 0], ends
    assert sum("is finished; --fresh removes it and trains again" in said for _, said in ends) == 1
    assert sum("waiting for 'raytriever train'" in said for _, said in ends) == 1
    assert sum("Resumed from checkpoint" in said for _, said in ends) == 1
    assert list(losses(run)) == list(range(1, STEPS + 1))
    assert json.loads((run / "run.json").read_bytes())
    assert Results.read(run / "evaluation").models["after"]
    assert owner_of(run) is None
    assert not (cli.folder / ".run.lock").exists()
