"""Kills of every stage, and two equal commands at once: the result must equal that of an undisturbed command.

Run: `python benchmarks/kills.py [--json PATH] [--kills 20] [--pairs 20] [--stages prepare,encode,...]`. Each stage runs
on its own tiny encoder and data set, once undisturbed and then repeatedly with one of five disturbances at random
times: SIGKILL, SIGTERM or SIGHUP of the command, SIGKILL of one of its workers, SIGSTOP of the command for a moment.
After a command has ended, its remaining processes must end too, and the same command is started again at once.

Equal commands: while a training runs and shortly after it, equal commands for the same run directory start at random
times. A second command must be refused, or report that the run is finished. `steps.jsonl` must contain every step once,
with the loss of an undisturbed run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from ends import End, exactly, job, machine, own_places, parser, report, reported
from faults import make_dataset, make_encoder

HOW = ("SIGKILL", "SIGTERM", "SIGHUP", "worker", "SIGSTOP")
# Workers end within seconds of a killed command; Ray's own agents look for it every half a minute.
LEFT_SECONDS, STOPPED_SECONDS, HUNG_SECONDS = 60.0, 2.0, 900.0
STEPS = 60
TRAIN = ["--batch-size", "64", "--precision", "fp32", "--loss", "mw"]
TRAIN += ["--checkpoint-steps", "10", "--eval-steps", "1000"]
STAGES = {
    "prepare": ["--dataset", "letters", "--model", "encoder"],
    "encode": ["--dataset", "letters", "--model", "encoder", "--precision", "fp32", "--actors", "2"],
    "mine": ["--dataset", "letters", "--model", "encoder", "--precision", "fp32", "--method", "bm25,dense"],
    "evaluate": ["--model", "bm25", "encoder", "--datasets", "letters", "--precision", "fp32", "--actors", "2"],
    "tune": ["--dataset", "letters", "--model", "encoder", "--search-space", "space.yaml", "--max-steps", "30", *TRAIN],
}
SPACE = "loss:\n  temperature: [0.02, 0.05, 0.1]\n"
# Times and addresses are not results.
_TIMES = re.compile(r'("(?:evaluation_time|seconds|duration|started|ended|run_id|run_directory)": )[^,\n}]*')
_FILES = {
    "evaluate": ("results.json", "runs/*", "per_query/*", "scores/*", "mteb/*/*"),
    "tune": ("config.yaml", "best.yaml", "trials/*/config.yaml", "trials/*/model/*", "best/model/*"),
}


class Command:
    """Process of a stage in its own session, so that all of its processes can be listed."""

    def __init__(self, work: Path, stage: str, words: list[str], output: str, cache: str) -> None:
        self.log = work / f"{output.replace('/', '-')}.{cache}.log"
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                [*job(stage), *words, "--output", output],
                cwd=work,
                env=own_places(work, cache),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def others(self) -> list[int]:
        """Return the other processes of the session."""
        others = []
        for entry in Path("/proc").iterdir():
            try:
                own = entry.name.isdigit() and int(entry.name) != self.process.pid
                if own and os.getsid(int(entry.name)) == self.process.pid and _runs(entry):
                    others.append(int(entry.name))
            except OSError:
                continue
        return others

    def workers(self) -> list[int]:
        """Return the processes that compute: Ray's actors and tasks, or forked processes."""
        workers = []
        for pid in self.others():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if line.startswith(b"ray::") and not line.startswith(b"ray::IDLE"):
                workers.append(pid)
        return workers

    def leftovers(self) -> float:
        """Return the seconds until the last process of an ended command has ended, at most `LEFT_SECONDS`."""
        began = time.monotonic()
        while self.others() and time.monotonic() < began + LEFT_SECONDS:
            time.sleep(0.1)
        for pid in self.others():
            print(f"  left behind: {Path(f'/proc/{pid}/cmdline').read_bytes().decode().replace(chr(0), ' ')[:100]}")
            send(pid, signal.SIGKILL)
        return min(time.monotonic() - began, LEFT_SECONDS)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(HUNG_SECONDS)


@dataclass
class Results:
    """Results of the disturbances of a stage."""

    kills: dict[str, int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    seconds: float = 0.0


def disturbed(work: Path, stage: str, kills: int, chance: random.Random) -> Results:
    """Run a stage undisturbed and then disturbed, and compare the results."""
    results, words = Results(), STAGES[stage]
    began = time.monotonic()
    peace = Command(work, stage, words, f"{stage}-peace", f"{stage}-peace-cache")
    if peace.wait():
        raise SystemExit(peace.log.read_text())
    length = time.monotonic() - began
    wanted = contents(work / f"{stage}-peace", stage)
    done, attempt, how = 0, 0, ""
    deck: list[str] = []
    pool, watchers = ThreadPoolExecutor(kills + 1), list[Future[float]]()
    while done < kills:
        attempt += 1
        output, cache = f"{stage}-{attempt}", f"{stage}-{attempt}-cache"
        command = Command(work, stage, words, output, cache)
        while True:
            deck = deck or chance.sample(HOW, len(HOW))
            time.sleep(chance.uniform(0.1, 0.9) * length * (0.3 if done % 3 else 1.0))
            if command.process.poll() is not None or done >= kills:
                break
            how = disturb(command, deck.pop(), chance)
            results.kills[how] = results.kills.get(how, 0) + 1
            done += 1
            if how in ("SIGKILL", "SIGTERM", "SIGHUP"):
                code = command.wait()
                key = f"{how} {code}"
                results.codes[key] = results.codes.get(key, 0) + 1
                if code not in (-signal.SIGKILL, 130, 0):
                    results.errors.append(f"{how}: exit code {code}: {last_line(command)}")
                watchers.append(pool.submit(command.leftovers))
                command = Command(work, stage, words, output, cache)  # at once: leftovers may still be there
        if (code := command.wait()) == 2 and how == "worker":
            # The command needs the killed process and ends with an error; the same command continues.
            results.codes["worker 2"] = results.codes.get("worker 2", 0) + 1
            command = Command(work, stage, words, output, cache)
            code = command.wait()
        if code:
            results.errors.append(f"the last command: exit code {code}: {last_line(command)}")
            continue
        watchers.append(pool.submit(command.leftovers))
        there = contents(work / output, stage)
        results.different += [
            f"{output}/{name}" for name in sorted(wanted.keys() | there.keys()) if wanted.get(name) != there.get(name)
        ]
        results.different += [f"{path}" for path in work.glob(f".{output}*")]
        shutil.rmtree(work / output)
    results.left = [watcher.result() for watcher in watchers]
    results.seconds = time.monotonic() - began
    print(f"{stage}: {results.kills}, exit codes {results.codes}, {results.seconds:.0f} s", flush=True)
    for problem in (*results.errors, *results.different):
        print(f"  {problem}", flush=True)
    return results


def disturb(command: Command, how: str, chance: random.Random) -> str:
    """Disturb a command; without a worker the command itself is disturbed. Return the name of the disturbance."""
    workers = command.workers()
    if how == "worker" and not workers:
        how = "SIGKILL"
    if how == "worker":
        send(chance.choice(workers), signal.SIGKILL)
    elif how == "SIGSTOP":
        everything = [command.process.pid, *command.others()] if chance.random() < 0.5 else [command.process.pid]
        for number, pause in ((signal.SIGSTOP, STOPPED_SECONDS), (signal.SIGCONT, 0.0)):
            for pid in everything:
                send(pid, number)
            time.sleep(pause)
    elif how == "SIGHUP" and chance.random() < 0.5:
        for pid in [command.process.pid, *command.others()]:  # as a closed terminal sends it
            send(pid, signal.SIGHUP)
    else:
        os.kill(command.process.pid, getattr(signal, how))
    return how


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may just have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def contents(folder: Path, stage: str) -> dict[str, str]:
    """Return the digest of every result file, without times; for a sweep also settings and figures of trials."""
    names = _FILES.get(stage, ("**/*",))
    files = {file for name in names for file in folder.glob(name) if file.is_file()}
    digests = {}
    for file in sorted(files):
        content = file.read_bytes()
        if file.suffix in (".json", ".md"):
            content = _TIMES.sub(r"\1", content.decode()).encode()
        digests[str(file.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    if stage == "tune":
        for trial in json.loads((folder / "trials.json").read_bytes())["trials"]:
            kept = {name: trial[name] for name in ("settings", "status", "metrics") if name in trial}
            digests[f"trial {trial['number']}"] = json.dumps(kept, sort_keys=True)
        results = json.loads((folder / "best" / "evaluation" / "results.json").read_bytes())
        digests["best"] = json.dumps(results["models"], sort_keys=True)
        for steps in sorted(folder.glob("trials/*/steps.jsonl")):
            digests[str(steps.relative_to(folder))] = json.dumps(losses(steps))
    return digests


def losses(file: Path) -> list[tuple[int, float]]:
    """Return the step and loss of every training line."""
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    return [(entry["step"], entry["metrics"]["loss"]) for entry in entries if "loss" in entry.get("metrics", {})]


def last_line(command: Command) -> str:
    """Return the last line that a command printed."""
    lines = command.log.read_text().strip().splitlines()
    return lines[-1] if lines else ""


def equal_commands(work: Path, pairs: int, chance: random.Random) -> tuple[dict[str, End], dict[str, object]]:
    """Start equal commands for one run directory at random times."""
    words = ["--dataset", "letters", "--model", "encoder", "--max-steps", str(STEPS), *TRAIN]
    began = time.monotonic()
    peace = Command(work, "train", words, "train-peace", "train-cache")
    if peace.wait():
        raise SystemExit(peace.log.read_text())
    length = time.monotonic() - began
    wanted = losses(work / "train-peace" / "steps.jsonl")
    refused, finished, other, lost, slowest = 0, 0, list[str](), 0, 0.0
    while refused + finished + len(other) < pairs:
        run = f"train-{refused + finished + len(other)}"
        began = time.monotonic()
        first = Command(work, "train", words, run, "train-cache")
        for _ in range(min(5, pairs - refused - finished - len(other))):
            time.sleep(chance.uniform(0, 0.4 * length))
            started = time.monotonic()
            second = subprocess.run(
                [*job("train"), *words, "--output", f"./{run}/../{run}"],
                cwd=work,
                env=own_places(work, "train-cache"),
                capture_output=True,
                text=True,
                timeout=HUNG_SECONDS,
            )
            if second.returncode == 2 and "in use by 'raytriever train' on host" in second.stderr:
                refused += 1
                slowest = max(slowest, time.monotonic() - started)
            elif second.returncode == 0 and first.process.poll() is not None:
                finished += 1
            else:
                other.append(second.stderr.strip().splitlines()[-1])
        if first.wait():
            other.append(last_line(first))
        lost += losses(work / run / "steps.jsonl") != wanted
        json.loads((work / run / "run.json").read_bytes())
    for line in other:
        print(f"  {line}")
    ends = {
        "equal commands: refused, or found the run finished": End(
            refused + finished, f"{pairs}", refused + finished == pairs
        ),
        "equal commands: refused": reported(refused),
        "equal commands: runs with other steps or losses": exactly(lost, 0),
        "equal commands: slowest refusal (s)": reported(slowest),
    }
    return ends, {"equal commands": {"refused": refused, "found the run finished": finished, "other": other}}


def _runs(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def main() -> None:
    """Disturb, compare and report."""
    line = parser((__doc__ or "").splitlines()[0])
    line.add_argument("--kills", type=int, default=20, help="disturbances of each stage")
    line.add_argument("--pairs", type=int, default=20, help="equal commands")
    line.add_argument("--stages", default=",".join(STAGES), help="which; results of others stay in the file of --json")
    line.add_argument("--at-once", type=int, default=1, help="stages that are disturbed at the same time")
    options = line.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # for the commands, where `nohup` started this
    stages = [name for name in options.stages.split(",") if name]
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        make_encoder(work / "encoder")
        make_dataset(work / "letters", 6_000, 600, 100)
        (work / "space.yaml").write_text(SPACE)
        with ThreadPoolExecutor(options.at_once) as pool:
            tasks: list[Future[tuple[dict[str, End], dict[str, object]]]] = []
            if options.pairs:
                tasks.append(pool.submit(equal_commands, work, options.pairs, random.Random("train")))
            tasks += [pool.submit(metrics, work, stage, options.kills) for stage in stages]
            for task in as_completed(tasks):
                ends, details = task.result()
                report("kills and equal commands", ends, None)
                if options.json is not None:
                    add_to(options.json, ends, details)


def metrics(work: Path, stage: str, kills: int) -> tuple[dict[str, End], dict[str, object]]:
    """Disturb a stage; return its results and the details."""
    results = disturbed(work, stage, kills, random.Random(stage))
    done, left = sum(results.kills.values()), max(results.left)
    ends = {
        f"{stage}: disturbances": End(done, f"{kills}", done >= kills),
        f"{stage}: commands that ended otherwise": exactly(len(results.errors), 0),
        f"{stage}: files that differ": exactly(len(results.different), 0),
        f"{stage}: longest life of a process left behind (s)": End(
            round(left, 1), f"below {LEFT_SECONDS:g}", left < LEFT_SECONDS
        ),
    }
    return ends, {stage: {"kills": results.kills, "codes": results.codes, "seconds": round(results.seconds)}}


def add_to(file: Path, ends: dict[str, End], details: dict[str, object]) -> None:
    """Add results to a file; those of other stages stay in it."""
    before = json.loads(file.read_bytes()) if file.is_file() else {"details": {}, "ends": {}}
    content = {
        "date": str(date.today()),
        "machine": machine(),
        "details": before["details"] | details,
        "ends": before["ends"] | {name: vars(end) for name, end in ends.items()},
    }
    file.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
