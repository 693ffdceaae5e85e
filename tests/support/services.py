"""Services with OpenAI's interface, each a process of its own: `llm_server.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

SERVER = Path(__file__).with_name("llm_server.py")


@dataclass
class Served:
    """A server's process, and the file of its requests."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def events(self, kind: str) -> Counter[str]:
        """How often each prompt was `asked` or `answered`."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return Counter(line["digest"] for line in lines if line["event"] == kind)

    def times(self, kind: str) -> list[float]:
        return [line["at"] for line in map(json.loads, self.log.read_text().splitlines()) if line["event"] == kind]

    def hold(self) -> int:
        """No answer is sent from now on; how many were."""
        with urlopen(Request(f"{self.endpoint}/hold", method="POST"), timeout=30) as response:
            return int(json.load(response)["answered"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def services(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Yield a function that starts a service; flags of the server as keywords."""
    started: list[Served] = []

    def start(**flags: object) -> Served:
        log = tmp_path / f"requests-{len(started)}.jsonl"
        words = [sys.executable, str(SERVER), "--log", str(log)]
        for name, value in flags.items():
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        served = Served(process, int(process.stdout.readline()), log)
        started.append(served)
        return served

    try:
        yield start
    finally:
        for served in started:
            served.end()
            assert served.process.stdout is not None
            served.process.stdout.close()
