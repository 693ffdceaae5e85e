"""Running cases: materials are made once, each case gets a folder of its own, and what it did is kept for checks."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hostile.case import CANARY, Case

SERVER = Path(__file__).with_name("server.py")
PLATFORM = Path(__file__).parents[3] / "platform"
QUICK = "--precision fp32"
LETTERS = "--dataset letters --model model"
# How each material is made from others, by a command in the folder of materials; letters, model and cross are given.
MADE = {
    "prepared": f"prepare {LETTERS} --output prepared",
    "store": f"encode {LETTERS} --output store {QUICK}",
    "index": f"index {LETTERS} --output index {QUICK}",
    "negatives": "mine --dataset letters --method random --num-negatives 4 --output negatives",
    "scores": f"score --dataset letters --model cross --negatives negatives --output scores {QUICK}",
    "results": f"evaluate --datasets letters --model model --output results {QUICK}",
    "run": f"train {LETTERS} --output run --max-steps 4 --batch-size 8 {QUICK}",
}


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (None: killed at its limit), output, folder, and what is new in it."""

    code: int | None
    out: str
    err: str
    folder: Path
    before: frozenset[str]
    after: frozenset[str]
    left: bool


class Runner:
    """Runs commands by the server, two at a time.

    Args:
        folder: for materials, cases and their output.
        given: the materials that are made elsewhere, by name.
    """

    def __init__(self, folder: Path, given: dict[str, Path]) -> None:
        self._folder = folder
        self._materials = folder / "materials"
        self._materials.mkdir()
        for name, path in given.items():
            shutil.copytree(path, self._materials / name)
        self._making = threading.Lock()
        environment = {**self.environment(folder), "HF_HUB_OFFLINE": "1"}
        self._server = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, env=environment)
        assert self._server.stdout is not None
        self._port = int(self._server.stdout.readline())

    def close(self) -> None:
        """End the server."""
        self._server.terminate()
        self._server.communicate(timeout=30)

    def run(self, case: Case) -> Ended:
        """Prepare a case's folder, run its command, and collect what it did."""
        with self._making:
            for name in case.materials():
                self._make(name)
        folder = Path(mkdtemp(dir=self._folder)) / "here"
        folder.mkdir()
        for name in case.materials():
            shutil.copytree(self._materials / name, folder / name, symlinks=True)
        for maker in case.make:
            maker(folder)
        return self._ended(case, folder)

    def environment(self, folder: Path) -> dict[str, str]:
        """The environment of a command whose folder this is."""
        inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return inherited | {
            "HOME": str(folder.parent / "home"),
            "LANG": "C.UTF-8",
            "HF_HUB_OFFLINE": "1",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder.parent}/mlflow.db",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONPATH": str(PLATFORM),
            "RAYTRIEVER_CACHE": str(folder.parent / "cache"),
            "CANARY_TOKEN": CANARY,
        }

    def _ended(self, case: Case, folder: Path) -> Ended:
        here = {"{here}": str(folder), "{canary}": CANARY}
        words = [_filled(word, here) for word in case.arguments]
        environment = self.environment(folder) | {name: _filled(value, here) for name, value in case.env.items()}
        environment = {name: value for name, value in environment.items() if value}
        if case.unprivileged and os.geteuid() == 0:
            _open_to_all(folder)
        before = _names(folder)
        out, err = folder.parent / "out", folder.parent / "err"
        if case.shell:
            code, left = self._shell(words, case, folder, environment, out, err)
        else:
            code, left = self._ask(
                words=words,
                folder=str(folder),
                env=environment,
                out=str(out),
                err=str(err),
                limits=dict(case.limits),
                unprivileged=case.unprivileged,
                seconds=case.seconds,
            )
        texts = (path.read_bytes().decode("utf-8", "backslashreplace") for path in (out, err))
        return Ended(code, *texts, folder, before, _names(folder), left)

    def _shell(
        self, words: list[str], case: Case, folder: Path, environment: dict[str, str], out: Path, err: Path
    ) -> tuple[int | None, bool]:
        program = "from raytriever.cli.main import run; raise SystemExit(run())"
        command = ["bash", "-c", case.shell, "case", sys.executable, "-c", program, *words]
        with out.open("wb") as first, err.open("wb") as second:
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=first,
                    stderr=second,
                    timeout=case.seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None, False
        return done.returncode, False

    def _make(self, name: str) -> None:
        """Make a material that is not there yet, after those that it is made from."""
        if (self._materials / name).exists():
            return
        case = Case(f"the material {name}", MADE[name], code=0, seconds=240)
        for other in case.materials():
            if other != name:
                self._make(other)
        ended = self._ended(case, self._materials)
        assert ended.code == 0, f"{case.words} ended with {ended.code}: {ended.err}"

    def _ask(self, **request: Any) -> tuple[int | None, bool]:
        # A command may leave processes, which the server waits for.
        with socket.create_connection(("127.0.0.1", self._port), timeout=request["seconds"] + 150) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile() as answer:
                code, left = json.loads(answer.readline())
        return code, left


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _names(folder: Path) -> frozenset[str]:
    """The paths of everything in a folder, links not followed."""
    names = []
    for path, folders, files in os.walk(folder):
        names += [os.path.relpath(os.path.join(path, name), folder) for name in (*folders, *files)]
    return frozenset(names)


def _open_to_all(folder: Path) -> None:
    """Let any user write in a case's folder and the one around it, without changing what the case closed."""
    for folder_or_file in [folder.parent, folder, *(path for path in folder.rglob("*") if not path.is_symlink())]:
        if folder_or_file.stat().st_mode & 0o700:
            os.chown(folder_or_file, 65534, 65534)
    for folder_or_file in folder.parents:
        if (
            folder_or_file.stat().st_uid == os.geteuid()
            and not folder_or_file.stat().st_mode & 0o001
            and folder_or_file != Path("/")
        ):
            folder_or_file.chmod(folder_or_file.stat().st_mode | 0o011)
