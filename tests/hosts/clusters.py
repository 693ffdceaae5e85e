"""What tests of clusters of hosts share: a server that answers, a run in a bucket, and the lines of a process."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import IO

from network import Hosts

WAIT = """
import sys, time, urllib.error, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen(sys.argv[1] + "/status", timeout=1)
    except urllib.error.HTTPError:
        break
    except OSError:
        time.sleep(0.2)
    else:
        break
"""
READ = """
import sys
from pathlib import Path
from raytriever.store.objects import copy_of, read_object
print(read_object(Path(copy_of(sys.argv[1]))).decode())
"""


def wait_for(hosts: Hosts, name: str, address: str) -> None:
    """Return when a server answers a host."""
    hosts.run(name, [sys.executable, "-c", WAIT, address], {})


def losses_of(hosts: Hosts, name: str, run: str, environment: dict[str, str]) -> dict[int, float]:
    """Return the loss of each step of a run as the bucket has it."""
    words = [sys.executable, "-c", READ, f"s3://bucket/runs/{run}/steps.jsonl"]
    lines = hosts.run(name, words, environment).splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return {row["step"]: row["measured"]["loss"] for row in rows if "loss" in row["measured"]}


class Lines:
    """Lines that a process prints, as they come."""

    def __init__(self, stream: IO[str] | None) -> None:
        assert stream is not None
        self._stream = stream

    def wait_for(self, pattern: str, seconds: float = 400) -> re.Match[str]:
        """Return the match of the next line that has the pattern."""
        end, seen = time.monotonic() + seconds, []
        for line in self._stream:
            seen.append(line)
            if match := re.search(pattern, line):
                return match
            assert time.monotonic() < end, "".join(seen[-20:])
        raise AssertionError("".join(seen[-20:]))
