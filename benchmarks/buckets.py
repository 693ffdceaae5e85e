"""Results in a bucket: kills, equal commands, and the seconds for which steps wait for checkpoints.

Run: `python benchmarks/buckets.py [--json PATH] [--kills 20] [--pairs 20] [--checkpoint-steps 4]`. The store is a real
S3 server (SeaweedFS) on this machine.

- Kills: `prepare`, `encode`, `train` and `evaluate` write to `s3://`, once undisturbed. Then SIGKILL strikes the
  command, in equal parts of the undisturbed duration, and the same command starts again at once, until it ends. The
  files that another machine finds in the bucket must be those of the undisturbed command, without times; of a
  training, every step with its loss, and the model.
- Equal commands: two `prepare` start within two seconds with copies and caches of their own, as on two machines. One
  must end well, and the other must be refused.
- Checkpoints: an encoder of the shape of XLM-R Base with random weights trains on this disk and into the bucket, with
  a checkpoint after every few steps. `steps.jsonl` has the seconds for which each step waited."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from ends import End, exactly, parser, report, reported
from faults import make_dataset, make_encoder
from kills import STAGES, TRAIN, Command, add_to, contents, last_line, losses

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
from object_store import object_store

from raytriever.core.store import object_stores
from raytriever.core.store.commit import complete
from raytriever.core.store.remote_folders import UNFINISHED, copy_of

BUCKET = "s3://bucket"
COMMANDS = {name: STAGES[name] for name in ("prepare", "encode", "evaluate")} | {
    "train": ["--dataset", "letters", "--model", "encoder", "--max-steps", "40", "--tracker", "none", *TRAIN]
}
COMMANDS["evaluate"] = [*COMMANDS["evaluate"], "--tracker", "none"]
STEPS = 12  # of the training of XLM-R Base
XLMR_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}


@contextmanager
def copied(uri: str) -> Iterator[Path]:
    """Yield the copy of a path of the bucket on a machine that had none."""
    with TemporaryDirectory() as folder:
        os.environ[object_stores.COPIES] = folder
        try:
            path = Path(copy_of(uri))
            complete(path)
            yield path
        finally:
            del os.environ[object_stores.COPIES]


def found(uri: str, stage: str) -> dict[str, str]:
    """Return the digests of what another machine finds in the bucket, and the objects of unfinished uploads."""
    with copied(uri) as path:
        left = {name: "unfinished" for name in object_stores.listing(path) if name.endswith(UNFINISHED)}
        if stage != "train":
            digests = contents(path, stage)
            digests.pop("manifest.json", None)  # it has the digests of files with times
            return digests | left
        model = contents(path / "model", "model")
        return model | left | {"steps": json.dumps(losses(path / "steps.jsonl"))}


def killed(work: Path, stage: str, kills: int) -> tuple[dict[str, End], dict[str, object]]:
    """Kill a command in every part of its duration, and compare what it leaves with an undisturbed one."""
    words, began = COMMANDS[stage], time.monotonic()
    peace = Command(work, stage, words, f"{BUCKET}/{stage}/peace", f"{stage}-peace")
    if peace.wait():
        raise SystemExit(peace.log.read_text())
    length = time.monotonic() - began
    wanted = found(f"{BUCKET}/{stage}/peace", stage)
    delays = random.Random(stage).sample([(number + 0.5) / kills * length for number in range(kills)], kills)
    struck, errors, different, attempt = list[tuple[float, str]](), list[str](), list[str](), 0
    while delays:
        attempt += 1
        output = f"{BUCKET}/{stage}/{attempt}"
        command = Command(work, stage, words, output, f"{stage}-{attempt}")
        for delay in list(delays):
            time.sleep(delay)
            if command.process.poll() is not None:
                break  # the rest of the work was shorter: another attempt has this delay
            delays.remove(delay)
            struck.append((round(delay, 1), last_line(command)[-80:]))
            os.kill(command.process.pid, signal.SIGKILL)
            command.wait()
            command = Command(work, stage, words, output, f"{stage}-{attempt}")
        if command.wait():
            errors.append(last_line(command))
            continue
        there = found(output, stage)
        different += [
            f"{output}/{name}" for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name)
        ]
    for problem in (*errors, *different):
        print(f"  {problem}", flush=True)
    ends = {
        f"{stage} into a bucket: kills": End(len(struck), f"{kills}", len(struck) == kills),
        f"{stage} into a bucket: commands that did not end well": exactly(len(errors), 0),
        f"{stage} into a bucket: files that differ": exactly(len(different), 0),
    }
    return ends, {stage: {"undisturbed seconds": round(length, 1), "kills": struck, "attempts": attempt}}


def equal_commands(work: Path, pairs: int) -> tuple[dict[str, End], dict[str, object]]:
    """Start two equal commands for one path of the bucket, again and again."""
    chance, ended, different = random.Random(0), list[list[str]](), 0
    wanted = None
    for pair in range(pairs):
        output = f"{BUCKET}/equal/{pair}"
        commands = []
        for number in range(2):
            commands.append(Command(work, "prepare", COMMANDS["prepare"], output, f"equal-{pair}-{number}"))
            time.sleep(chance.uniform(0, 2) * (not number))
        codes = [command.wait() for command in commands]
        lines = [last_line(command) for command in commands]
        refused = [line for code, line in zip(codes, lines, strict=True) if code == 2 and "in use by" in line]
        good = sorted(codes) == [0, 2] and len(refused) == 1
        ended.append(
            ["one ran, one was refused"]
            if good
            else [f"{code}: {line}" for code, line in zip(codes, lines, strict=True)]
        )
        there = found(output, "prepare")
        wanted = wanted or there
        different += there != wanted
    good_pairs = sum(len(item) == 1 for item in ended)
    ends = {
        "equal commands for a path of a bucket: one ran, one was refused": End(
            good_pairs, f"{pairs}", good_pairs == pairs
        ),
        "equal commands for a path of a bucket: results that differ": exactly(different, 0),
    }
    return ends, {"equal commands": [item for item in ended if len(item) > 1]}


def checkpoints(work: Path, every: int) -> tuple[dict[str, End], dict[str, object]]:
    """Train XLM-R Base into this disk and into the bucket, and compare the seconds that steps waited."""
    make_xlmr(work / "xlmr")
    make_dataset(work / "few")
    words = ["--dataset", "few", "--model", "xlmr", "--max-steps", str(STEPS), "--checkpoint-steps", str(every)]
    words += ["--batch-size", "4", "--precision", "fp32", "--loss", "mw", "--tracker", "none", "--eval-steps", "1000"]
    words += ["--keep", "1", "--test-split", "dev", "--allow-split-overlap"]
    seconds: dict[str, list[list[float]]] = {}
    for place, output in (("disk", "disk"), ("bucket", f"{BUCKET}/xlmr")):
        command = Command(work, "train", words, output, f"xlmr-{place}")
        if command.wait():
            raise SystemExit(command.log.read_text())
        with copied(output) if place == "bucket" else nullcontext(work / output) as path:
            rows = [json.loads(line)["metrics"] for line in (path / "steps.jsonl").read_text().splitlines()]
        rows = [row for row in rows if "checkpoint_seconds" in row]
        seconds[place] = [[round(row["step_seconds"], 2), round(row["checkpoint_seconds"], 2)] for row in rows]
    waits = {place: median([row[1] for row in rows if row[1]] or [0.0]) for place, rows in seconds.items()}
    steps = {place: median(row[0] for row in rows) for place, rows in seconds.items()}
    ends = {
        "XLM-R Base: seconds that a step waits for a checkpoint, disk": reported(waits["disk"]),
        "XLM-R Base: seconds that a step waits for a checkpoint, bucket": reported(waits["bucket"]),
        "XLM-R Base: median seconds of a step, disk": reported(steps["disk"]),
        "XLM-R Base: median seconds of a step, bucket": reported(steps["bucket"]),
    }
    return ends, {"XLM-R Base": {"[seconds of a step, of its wait]": seconds}}


def make_xlmr(folder: Path) -> None:
    """Write an encoder of the shape of XLM-R Base: 278 million random weights."""
    from transformers import XLMRobertaConfig, XLMRobertaModel

    make_encoder(folder)  # for its tokenizer
    config = XLMRobertaConfig(
        vocab_size=250_002, max_position_embeddings=514, type_vocab_size=1, pad_token_id=1, **XLMR_BASE
    )
    XLMRobertaModel(config, add_pooling_layer=False).save_pretrained(folder)


def main() -> None:
    """Start a store, disturb, compare and report."""
    line = parser((__doc__ or "").splitlines()[0])
    line.add_argument("--kills", type=int, default=20, help="kills of all commands together")
    line.add_argument("--pairs", type=int, default=20, help="pairs of equal commands")
    line.add_argument("--checkpoint-steps", type=int, default=4, help="steps between checkpoints of XLM-R Base, or 0")
    options = line.parse_args()
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        make_encoder(work / "encoder")
        make_dataset(work / "letters", 6_000, 600, 100)
        (work / "store").mkdir()
        with object_store(work / "store") as store:
            os.environ |= store.environment()
            tasks = [lambda stage=stage: killed(work, stage, options.kills // 4) for stage in COMMANDS if options.kills]
            tasks += [lambda: equal_commands(work, options.pairs)] * bool(options.pairs)
            tasks += [lambda: checkpoints(work, options.checkpoint_steps)] * bool(options.checkpoint_steps)
            for task in tasks:
                ends, details = task()
                report("results in a bucket", ends, None)
                if options.json is not None:
                    add_to(options.json, ends, details)


if __name__ == "__main__":
    main()
