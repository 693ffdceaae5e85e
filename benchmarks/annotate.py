"""Annotation against a chat-completions server with a fixed service time: its rate, and the cost of a kill -9.

200 queries of four passages, 600 requests, 16 in flight. The rate of the server is that of a plain loop, which sends
the same requests over 16 connections and does not read the answers. The log of the server gives both rates: requests
divided by the time from the first request to the last answer. The result is the median ratio of three pairs of runs.

An answer is paid twice if the server answered a request and received it again after a kill. There are two kills:
- while the server delays its answers, after everything it has sent has arrived: nothing may be paid twice;
- at a random time: an answer that is on the network when the process dies is lost, and these answers are counted.

Run: `python benchmarks/annotate.py [--json PATH]`; about three minutes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import aiohttp

from ends import End, exactly, job, own_places, parser, report, reported
from raytriever.evaluation.annotation.annotated_dataset import write_beir
from raytriever.evaluation.annotation.annotator import AnnotationQuery, count_bytes
from raytriever.evaluation.annotation.llm_prompts import RELEVANCE, build_schema, load_prompts

REPOSITORY = Path(__file__).parent.parent
QUERIES, PASSAGES, IN_FLIGHT, SECONDS = 200, 4, 16, 0.2
REQUESTS = 3 * QUERIES
PAIRS, KILLS = 3, 5


@dataclass
class Served:
    """Running server."""

    process: subprocess.Popen[str]
    endpoint: str
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines of the server's log."""
        whole = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in whole if line.endswith("\n")]

    def digests(self, event: str) -> Counter[str]:
        """Count the events `asked` or `answered` of each request."""
        return Counter(line["digest"] for line in self.lines() if line["event"] == event)

    def rate(self) -> float:
        """Return the answers per second."""
        lines = self.lines()
        answered = [line["at"] for line in lines if line["event"] == "answered"]
        return len(answered) / (max(answered) - min(line["at"] for line in lines))


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Run the server of the tests, which answers after a fixed time."""
    log = folder / f"requests-{len(list(folder.glob('requests-*')))}.jsonl"
    program = REPOSITORY / "tests" / "support" / "llm_server.py"
    words = [sys.executable, str(program), "--log", str(log), "--service-time", str(SECONDS)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Served(process, f"http://127.0.0.1:{int(process.stdout.readline())}/v1", log)
    finally:
        process.kill()
        process.wait()


def questions() -> list[AnnotationQuery]:
    """Return the questions; each has passages that share a word with it only."""
    random_numbers = random.Random(5)
    result = []
    for _ in range(QUERIES):
        name = "".join(random_numbers.choices("abcdefghij", k=8))
        passages = [f"{name} no {j}" + " and a hundred words more of it" * (j + 5) for j in range(PASSAGES)]
        result.append(AnnotationQuery(f"what is {name}", range(PASSAGES), passages))
    return result


def write_dataset(folder: Path) -> None:
    """Write the questions and their passages as a data set in BEIR layout."""
    numbered = list(enumerate(questions()))
    documents = ({"_id": f"d{i}-{j}", "text": text} for i, item in numbered for j, text in enumerate(item.passages))
    queries = ({"_id": f"q{i}", "text": item.text} for i, item in numbered)
    folder.mkdir(parents=True)
    write_beir(folder, documents, queries, {"train": [(f"q{i}", f"d{i}-0", 1) for i, _ in numbered]})


async def bare_loop(endpoint: str) -> None:
    """Send as many requests of the same size over as many connections."""
    prompts = load_prompts("")
    bodies = []
    for number in range(REQUESTS):
        question = questions_made[number % QUERIES]
        messages = prompts.build_messages(RELEVANCE, question.text, question.passages)
        bodies.append(
            {"model": "judge", "messages": messages, "max_tokens": 1024, "schema": build_schema(RELEVANCE, 4)}
        )
    waiting = iter(bodies)
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)

    async def send(session: aiohttp.ClientSession) -> None:
        for body in waiting:
            async with session.post(f"{endpoint}/chat/completions", json=body) as response:
                await response.read()

    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(send(session) for _ in range(IN_FLIGHT)))


questions_made = questions()


def command(folder: Path, name: str, endpoint: str) -> list[str]:
    """Return the command of a job with its own answer log."""
    words = ["--dataset", folder / "data", "--base-url", endpoint, "--llm", "judge", "--in-flight", IN_FLIGHT]
    words += ["--output", folder / name, "--answers", folder / f"{name}-answers"]
    return [*job("annotate"), *map(str, words)]


def begin(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start the job as a process."""
    return subprocess.Popen(words, env=own_places(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finish(words: list[str], folder: Path) -> None:
    """Wait for the end of the job."""
    code = begin(words, folder).wait()
    if code:
        raise RuntimeError(f"{' '.join(words)} ended with code {code}")


def rates(folder: Path) -> list[tuple[float, float]]:
    """Return pairs of rates: of the server and of the job."""
    pairs = []
    for number in range(PAIRS):
        with serving(folder) as served:
            asyncio.run(bare_loop(served.endpoint))
            own = served.rate()
        with serving(folder) as served:
            finish(command(folder, f"rate-{number}", served.endpoint), folder)
            pairs.append((own, served.rate()))
    return pairs


def killed(folder: Path, name: str, fraction: float, hold: bool) -> tuple[int, int, float]:
    """Kill a job after a fraction of its requests is answered, then run it again until it ends.

    Returns:
        The number of answers that were paid twice, the number of running requests at the kill, and the longest time in
        seconds between an answer that was paid twice and the kill.
    """
    with serving(folder) as served:
        words = command(folder, name, served.endpoint)
        process = begin(words, folder)
        while served.digests("answered").total() < fraction * REQUESTS:
            time.sleep(0.002)
        if hold:
            urlopen(Request(f"{served.endpoint}/hold", method="POST"), timeout=30).close()
            time.sleep(1.0)
        else:
            time.sleep(random.uniform(0, 2 * SECONDS))  # answers come in waves: every moment is as good
        at = time.time()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(2 * SECONDS)
        first = served.lines()
        # A request that is answered while the process dies was running when it was killed.
        sent = {line["digest"]: line["at"] for line in first if line["event"] == "answered"}
        under_way = sum(moment >= at for moment in sent.values()) + len(served.digests("asked").keys() - sent.keys())
    with serving(folder) as served:
        again = [served.endpoint if word.startswith("http://") else word for word in words]
        finish(again, folder)
        again_answered = set(served.digests("answered"))
        twice = {digest for digest, moment in sent.items() if moment < at and digest in again_answered}
        missing = REQUESTS - len(set(sent) | again_answered)
    if missing:
        raise RuntimeError(f"{missing} requests were never answered")
    return len(twice), under_way, max((at - sent[digest] for digest in twice), default=0.0)


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "").parse_args()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_dataset(folder / "data")
        pairs = rates(folder)
        delayed = killed(folder, "held", 0.5, hold=True)
        random_numbers = random.Random()
        kills = [
            killed(folder, f"kill-{number}", random_numbers.uniform(0.2, 0.8), hold=False) for number in range(KILLS)
        ]
    own, ours = (sorted(column)[PAIRS // 2] for column in zip(*pairs, strict=True))
    ratio = sorted(job / server for server, job in pairs)[PAIRS // 2]
    prompt = load_prompts("").build_messages(RELEVANCE, questions_made[0].text, questions_made[0].passages)
    ends = {
        "bytes of a prompt": reported(count_bytes(prompt)),
        f"{IN_FLIGHT} in flight at {SECONDS} s each, requests/s": reported(IN_FLIGHT / SECONDS),
        "the server's own, by a bare loop, requests/s": reported(own),
        "annotate, requests/s": reported(ours),
        "annotate / the server's own": End(ratio, ">= 0.95", ratio >= 0.95),
        "kill -9, answers held back: under way": reported(delayed[1]),
        "kill -9, answers held back: paid twice": exactly(delayed[0], 0),
        f"{KILLS} kills at any moment: answers lost on their way": reported(sum(kill[0] for kill in kills)),
        "of those, the longest between answer and kill, ms": reported(max(kill[2] for kill in kills) * 1000),
        f"{KILLS} kills at any moment: under way": reported(sum(kill[1] for kill in kills)),
    }
    report("annotate", ends, arguments.json)


if __name__ == "__main__":
    main()
