"""Deaths: a worker is killed with signal 9 again and again, and the run must end as the one that was left in peace.

Run: `python benchmarks/faults.py [--json PATH] [--kills 20] [--workers 2]`. Two runs of `jobs/train.py` on a tiny
encoder and data set of their own: one in peace, and one of which a worker, chosen by chance, is killed at a time
chosen by chance, then again when the run has got further, until there were so many deaths. What was done when a
worker died is what the driver had heard by then; redone is what lies between that and the checkpoint gone on from. The
seconds are from the death to the first step that had never been done, so redoing is in them.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ends import End, parser, report

REPOSITORY = Path(__file__).parent.parent
INTERVAL, STEPS_A_KILL, SECONDS, PAUSE = 25, 40, 15.0, 4.0
# What a worker had done before it died is heard of for a while.
LAG = 1.0


def make_encoder(folder: Path) -> Path:
    """A transformers checkpoint with random weights: two layers of width 64, a token a character."""
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


def make_dataset(folder: Path) -> Path:
    """Queries of six letters, whose passages spell them backwards, in BEIR layout."""
    (folder / "qrels").mkdir(parents=True)
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghij", k=6)) for _ in range(400)]
    passages = [{"_id": f"d{number}", "title": "", "text": f"{word} {word[::-1]}"} for number, word in enumerate(words)]
    queries = [{"_id": f"q{number}", "text": word} for number, word in enumerate(words)]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, members in {"train": range(300), "dev": range(300, 350), "test": range(350, 400)}.items():
        lines = "".join(f"q{number}\td{number}\t1\n" for number in members)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return folder


@dataclass
class Death:
    """One worker killed.

    Args:
        at: seconds since 1970.
        done: the last step heard of before.
        resumed: the step of the checkpoint gone on from, 0 where there was none yet.
        seconds: until the first step that had never been done.
    """

    at: float
    done: int
    resumed: int
    seconds: float


class Run:
    """A run of `jobs/train.py` in a session of its own."""

    def __init__(self, work: Path, name: str, words: list[str]) -> None:
        own = {"MLFLOW_TRACKING_URI": f"sqlite:///{work}/mlflow.db", "RAYTRIEVER_CACHE": f"{work}/cache"}
        self.folder, self.said = work / name, list[tuple[float, str]]()
        command = [sys.executable, str(REPOSITORY / "jobs" / "train.py"), *words, "--output", str(self.folder)]
        self.process = subprocess.Popen(
            command,
            cwd=work,
            env=os.environ | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.said.append((time.time(), line.rstrip()))

    def steps(self) -> dict[int, tuple[float, float]]:
        """When each step was heard of, and its loss; of what is kept so far."""
        found = {}
        file = self.folder / "steps.jsonl"
        for line in file.read_text().splitlines() if file.is_file() else ():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # being written
            if "loss" in entry["measured"]:
                found[entry["step"]] = (entry["milliseconds"] / 1000, entry["measured"]["loss"])
        return found

    def workers(self) -> list[int]:
        """Its training processes."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.getsid(int(entry.name)) == self.process.pid:
                    line = (entry / "cmdline").read_bytes()
                    found += [int(entry.name)] if b"RayTrainWorker" in line else []
            except OSError:
                continue
        return found

    def wait(self, seconds: float = 3600) -> None:
        """Until it ends, well."""
        if self.process.wait(seconds):
            raise SystemExit("\n".join(line for _, line in self.said[-20:]))
        self._reader.join()

    def further(self, than: int) -> None:
        """Until a step after this one is kept."""
        while max(self.steps(), default=0) <= than and self.process.poll() is None:
            time.sleep(0.1)


def kill(run: Run, count: int, last: int) -> list[float]:
    """Kill workers of a run; answers when."""
    chance, found = random.Random(1), list[float]()
    run.further(0)
    while len(found) < count:
        time.sleep(chance.uniform(0, PAUSE))
        workers = run.workers()
        if not workers or run.process.poll() is not None or max(run.steps()) > last:
            break
        os.kill(chance.choice(workers), signal.SIGKILL)
        found.append(time.time())
        # What was kept may lag behind what was heard: a step well behind the death says that the run goes on.
        while run.process.poll() is None and max(at for at, _ in run.steps().values()) < found[-1] + LAG:
            time.sleep(0.1)
    return found


def told(run: Run, kills: list[float]) -> list[Death]:
    """What the kills cost, from what the run said."""
    heard = run.steps()
    deaths = []
    for at in kills:
        done = max((step for step, (when, _) in heard.items() if when <= at + LAG), default=0)
        first = min(when for step, (when, _) in heard.items() if when > at + LAG)
        resumed = [
            int(found[1])
            for when, line in run.said
            if at < when <= first + 1 and (found := re.search(r"Resumed from checkpoint step-(\d+)", line))
        ]
        deaths.append(Death(at, done, resumed[-1] if resumed else 0, first - at))
    return deaths


def main() -> None:
    """Measure and report."""
    line = parser((__doc__ or "").splitlines()[0])
    line.add_argument("--kills", type=int, default=20, help="deaths in one run")
    line.add_argument("--workers", type=int, default=2, help="training processes")
    given = line.parse_args()
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
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
            "max-steps": STEPS_A_KILL * given.kills,
            "num-workers": given.workers,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        runs = {name: Run(work, name, words) for name in ["killed"]}
        kills = kill(runs["killed"], given.kills, settings["max-steps"] - 2 * INTERVAL)
        runs["killed"].wait()
        runs["peace"] = Run(work, "peace", words)
        runs["peace"].wait()
        deaths = told(runs["killed"], kills)
        losses = {name: {step: loss for step, (_, loss) in run.steps().items()} for name, run in runs.items()}
        other = sum(losses["killed"].get(step) != loss for step, loss in losses["peace"].items())
    for death in deaths:
        print(
            f"died after step {death.done}, went on after {death.resumed}, first new step {death.seconds:.1f} s later"
        )
    redone = [death.done - death.resumed for death in deaths]
    seconds = [death.seconds for death in deaths]
    ends = {
        "deaths survived": End(len(deaths), f"{given.kills}", len(deaths) == given.kills),
        "steps whose loss is not that of the run in peace": End(other, "0", other == 0),
        "steps done again, most": End(max(redone), f"at most {INTERVAL}", max(redone) <= INTERVAL),
        "steps done again, median": End(median(redone), "reported", True),
        "death to first new step, most (s)": End(max(seconds), f"at most {SECONDS:g}", max(seconds) <= SECONDS),
        "death to first new step, median (s)": End(median(seconds), "reported", True),
    }
    report(f"{given.workers} workers, one killed at a time, a checkpoint every {INTERVAL} steps", ends, given.json)


if __name__ == "__main__":
    main()
