"""The applications of the page on serving, as somebody copies and starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import free_port, wait_for

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
WEB_APP = ["-m", "uvicorn", "web_app:app", "--host", "127.0.0.1", "--port", "PORT"]


def blocks(page: str, title: str) -> list[str]:
    """The Python blocks of a section of a how-to page."""
    section = (HOW_TO / page).read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@contextmanager
def served(folder: Path, command: list[str], model: Path, dataset: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a command with `PORT` in place of a free port, and yield the address when `/search` answers."""
    port = str(free_port())
    own = {"RAYTRIEVER_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1", "NOTES": f"{folder}/notes"}
    inputs = {"MODEL": str(model), "DATASET": str(dataset)}
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *(word.replace("PORT", port) for word in command)],
            cwd=folder,
            env={**os.environ, **own, **inputs, "PYTHONPATH": paths},
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{address}/search?query=abc", timeout=120) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                raise AssertionError((folder / "log").read_text()) from error
            return False  # Ray Serve has no route yet
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        wait_for(answers, 300, process)
        yield address, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
