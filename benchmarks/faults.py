"""Deaths of workers: a worker is killed with signal 9 repeatedly, and the run must equal an undisturbed one.

Run: `python benchmarks/faults.py [--json PATH] [--kills 20] [--workers 2]`. Two runs of `jobs/train.py` on a tiny
encoder and data set: one undisturbed, and one in which a random worker is killed at a random time, and again after the
run has continued, until it has had enough deaths. A step was done if the driver had received it when the worker died;
the steps between it and the checkpoint of the resumed run are repeated. The seconds are from the death to the first new
step, so they include the repeated steps."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from ends import End, at_most, exactly, job, own_places, parser, report, reported
from raytriever.evaluation.annotation.annotated_dataset import write_beir

INTERVAL, STEPS_A_KILL, SECONDS, PAUSE = 25, 40, 15.0, 4.0
# Events of a worker may arrive for this long after its death.
LAG = 1.0


def make_dataset(folder: Path, size: int = 400, training: int = 300, others: int = 50) -> Path:
    """Write a data set in BEIR layout: queries of six letters, passages that spell them backwards."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghij", k=6)) for _ in range(size)]
    passages = ({"_id": f"d{n}", "title": "", "text": f"{word} {word[::-1]}"} for n, word in enumerate(words))
    queries = ({"_id": f"q{n}", "text": word} for n, word in enumerate(words))
    ends = (0, training, training + others, training + 2 * others)
    splits = {name: range(*pair) for name, pair in zip(("train", "dev", "test"), pairwise(ends), strict=True)}
    judgements = {split: [(f"q{n}", f"d{n}", 1) for n in members] for split, members in splits.items()}
    folder.mkdir(parents=True)
    write_beir(folder, passages, queries, judgements)
    return folder


def make_encoder(folder: Path) -> Path:
    """Write a transformers checkpoint with random weights: two layers of dimension 64, one token per character."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    letters = {piece: number for number, piece in enumerate(["[PAD]", "[UNK]", *map(chr, range(33, 127))])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 64}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    BertModel(BertConfig(vocab_size=len(letters), max_position_embeddings=64, **shape)).save_pretrained(folder)
    return folder


@dataclass
class Death:
    """Death of one worker.

    Args:
        at: seconds since 1970.
        done: the last step that the driver had received.
        resumed: the step of the checkpoint of the resumed run, 0 if there was none yet.
        seconds: until the first new step.
    """

    at: float
    done: int
    resumed: int
    seconds: float


class Run:
    """Run of `jobs/train.py` in its own session."""

    def __init__(self, work: Path, name: str, words: list[str]) -> None:
        self.folder, self.lines = work / name, list[tuple[float, str]]()
        self.process = subprocess.Popen(
            [*job("train"), *words, "--output", str(self.folder)],
            cwd=work,
            env=own_places(work),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append((time.time(), line.rstrip()))

    def steps(self) -> dict[int, tuple[float, float]]:
        """Return the time and the loss of each stored step."""
        stored = {}
        file = self.folder / "steps.jsonl"
        for line in file.read_text().splitlines() if file.is_file() else ():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # being written
            if "loss" in entry["metrics"]:
                stored[entry["step"]] = (entry["milliseconds"] / 1000, entry["metrics"]["loss"])
        return stored

    def workers(self) -> list[int]:
        """Return the training processes."""
        workers = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.getsid(int(entry.name)) == self.process.pid:
                    line = (entry / "cmdline").read_bytes()
                    workers += [int(entry.name)] if b"RayTrainWorker" in line else []
            except OSError:
                continue
        return workers

    def wait(self, seconds: float = 3600) -> None:
        """Wait for a successful end."""
        if self.process.wait(seconds):
            raise SystemExit("\n".join(line for _, line in self.lines[-20:]))
        self._reader.join()

    def further(self, than: int) -> None:
        """Wait until a later step is stored."""
        while max(self.steps(), default=0) <= than and self.process.poll() is None:
            time.sleep(0.1)


def kill(run: Run, count: int, last: int) -> list[float]:
    """Kill workers of a run; return the times."""
    chance, times = random.Random(1), list[float]()
    run.further(0)
    while len(times) < count:
        time.sleep(chance.uniform(0, PAUSE))
        workers = run.workers()
        if not workers or run.process.poll() is not None or max(run.steps()) > last:
            break
        os.kill(chance.choice(workers), signal.SIGKILL)
        times.append(time.time())
        # Stored steps may lag behind received ones: a step well after the death shows that the run continues.
        while run.process.poll() is None and max(at for at, _ in run.steps().values()) < times[-1] + LAG:
            time.sleep(0.1)
    return times


def deaths_of(run: Run, kills: list[float]) -> list[Death]:
    """Return the costs of the kills, from the output of the run."""
    steps = run.steps()
    deaths = []
    for at in kills:
        done = max((step for step, (when, _) in steps.items() if when <= at + LAG), default=0)
        first = min(when for step, (when, _) in steps.items() if when > at + LAG)
        resumed = [
            int(match[1])
            for when, line in run.lines
            if at < when <= first + 1 and (match := re.search(r"Resumed from checkpoint step-(\d+)", line))
        ]
        deaths.append(Death(at, done, resumed[-1] if resumed else 0, first - at))
    return deaths


def main() -> None:
    """Measure and report."""
    line = parser((__doc__ or "").splitlines()[0])
    line.add_argument("--kills", type=int, default=20, help="deaths in one run")
    line.add_argument("--workers", type=int, default=2, help="training processes")
    options = line.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        settings = {
            "model": make_encoder(work / "encoder"),
            "dataset": make_dataset(work / "letters"),
            "loss": "mw",
            "temperature": 0.05,
            "batch-size": 64,
            "negatives-per-query": 2,
            "learning-rate": 1e-4,
            "precision": "fp32",
            "eval-steps": 10 * INTERVAL,
            "checkpoint-steps": INTERVAL,
            "patience": 10**6,
            "max-steps": STEPS_A_KILL * options.kills,
            "num-workers": options.workers,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        runs = {name: Run(work, name, words) for name in ["killed"]}
        kills = kill(runs["killed"], options.kills, settings["max-steps"] - 2 * INTERVAL)
        runs["killed"].wait()
        runs["undisturbed"] = Run(work, "undisturbed", words)
        runs["undisturbed"].wait()
        deaths = deaths_of(runs["killed"], kills)
        losses = {name: {step: loss for step, (_, loss) in run.steps().items()} for name, run in runs.items()}
        other = sum(losses["killed"].get(step) != loss for step, loss in losses["undisturbed"].items())
    for death in deaths:
        print(
            f"died after step {death.done}, resumed after {death.resumed}, first new step {death.seconds:.1f} s later"
        )
    redone = [death.done - death.resumed for death in deaths]
    seconds = [death.seconds for death in deaths]
    ends = {
        "deaths survived": End(len(deaths), f"{options.kills}", len(deaths) == options.kills),
        "steps whose loss is not that of an undisturbed run": exactly(other, 0),
        "steps done again, most": at_most(max(redone), INTERVAL),
        "steps done again, median": reported(median(redone)),
        "death to first new step, most (s)": at_most(max(seconds), SECONDS),
        "death to first new step, median (s)": reported(median(seconds)),
    }
    report(f"{options.workers} workers, one killed at a time, a checkpoint every {INTERVAL} steps", ends, options.json)


if __name__ == "__main__":
    main()
