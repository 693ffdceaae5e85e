"""Refreshing hard negatives: what it costs the steps beside it, and what the negatives are worth.

Run: `python benchmarks/refresh.py [--json PATH]`, a third of an hour on two cores. Paragraphs of SQuAD, two questions
of each; MiniLM is trained by `jobs/train.py` for one epoch, three times with the same seed and as many steps: on
in-batch negatives only, with negatives that BM25 found once, and with those and then its own, found anew every so many
steps while training goes on. Measured on questions of other articles, among all paragraphs. Where encoding has no
cores of its own it takes them from training: on two cores the cost of a step is told and held to nothing. The table for
docs/explanation/hard-negative-refresh.md is printed behind the ends.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ends import End, parser, report

REPOSITORY = Path(__file__).parent.parent
SQUAD = REPOSITORY.parent / "shared" / "data" / "squad"
HELD_OUT = 400  # paragraphs of the articles that are measured on
RUNS = {
    "in-batch": [],
    "BM25 once": ["--negatives-per-query", "2"],
    "BM25, then refreshed": ["--negatives-per-query", "2", "--refresh-relative-margin", "0.05"],
}
OWN_CORES = 4
BATCH = 32


def rows(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a file of SQuAD."""
    with gzip.open(SQUAD / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def subset(folder: Path, documents: int) -> None:
    """Write the paragraphs that are trained on and those that are measured on, with two questions of each."""
    (folder / "qrels").mkdir(parents=True)
    chosen: dict[str, dict[str, list[str]]] = {"train": {}, "dev": {}, "test": {}}
    for split, most in (("train", documents), ("dev", HELD_OUT)):
        for line in (SQUAD / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]:
            query, document, _ = line.split("\t")
            part = chosen[split]
            if document in part or len(part) < most:
                part.setdefault(document, []).append(query)
    held = list(chosen["dev"].items())
    chosen["test"], chosen["dev"] = dict(held[: HELD_OUT * 3 // 4]), dict(held[HELD_OUT * 3 // 4 :])
    kept: set[str] = set()
    for split, part in chosen.items():
        lines = [f"{query}\t{document}\t1\n" for document, queries in part.items() for query in queries[:2]]
        kept |= {line.split("\t")[0] for line in lines}
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    there = {document for part in chosen.values() for document in part}
    for name, wanted in (("corpus", there), ("queries", kept)):
        lines = [json.dumps(row) + "\n" for row in rows(name) if row["_id"] in wanted]
        (folder / f"{name}.jsonl").write_text("".join(lines))


def train(folder: Path, name: str, more: list[str], steps: int) -> tuple[Path, float]:
    """One run: its directory, and its seconds."""
    run = folder / name.replace(" ", "-").replace(",", "")
    words = ["--dataset", folder / "squad", "--loss", "infonce", "--temperature", "0.05", "--batch-size", BATCH]
    words += ["--max-steps", steps, "--eval-steps", steps, "--passage-length", "128", "--query-length", "64"]
    words += ["--learning-rate", "2e-5", "--output", run, *more]
    environment = {
        **os.environ,
        "RAYTRIEVER_CACHE": f"{folder}/cache",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }
    began = time.perf_counter()
    command = [sys.executable, str(REPOSITORY / "jobs" / "train.py"), *map(str, words)]
    subprocess.run(command, check=True, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    return run, time.perf_counter() - began


def steps_of(run: Path) -> dict[int, dict[str, float]]:
    """What was measured of each step, by its number from 0."""
    found: dict[int, dict[str, float]] = {}
    for line in (run / "steps.jsonl").read_text().splitlines():
        entry = json.loads(line)
        found.setdefault(entry["step"] - 1, {}).update(entry["measured"])
    return found


def costs(run: Path) -> dict[str, End]:
    """What rounds cost the steps beside them, and what became of them."""
    rounds = json.loads((run / "negatives" / "rounds.json").read_text())
    measured = {step: told for step, told in steps_of(run).items() if step > 2}  # the first ones touch their memory
    last = max(measured) + 1  # the end of a round that had none
    beside = {step for one in rounds for step in range(one["snapshot"], one["ended"] or last)}
    seconds = {step: told["step_seconds"] + told["refresh_wait_seconds"] for step, told in measured.items()}
    alone = [value for step, value in seconds.items() if step not in beside]
    together = [value for step, value in seconds.items() if step in beside]
    taken = [one["measured"] for one in rounds if one["used_from"] is not None]
    found: dict[str, End] = {}
    if alone and together:  # in a short run rounds may follow each other without a pause
        own = (os.cpu_count() or 1) >= OWN_CORES
        ratio = median(together) / median(alone)
        target, holds = ("at most 1.1", ratio <= 1.1) if own else ("reported", True)
        found |= {
            "a step alone, seconds": End(median(alone), "reported", True),
            "a step while refreshing, seconds": End(median(together), "reported", True),
            "a step while refreshing / alone": End(ratio, target, holds),
        }
    found |= {
        "steps alone, of all but the first three": End(len(alone) / len(measured), "reported", True),
        "a hand-over of weights, longest wait of a step, seconds": End(
            max(told["refresh_wait_seconds"] for told in measured.values()), "reported", True
        ),
        "rounds begun": End(len(rounds), "reported", True),
        "rounds whose tables were used": End(len(taken), "at least 1", len(taken) >= 1),
    }
    for name in (
        "seconds",
        "encode_seconds",
        "mine_seconds",
        "staleness_steps",
        "overlap",
        "share_within_relative_margin",
    ):
        values = [one[f"refresh_{name}"] for one in taken if f"refresh_{name}" in one]
        if values:
            found[f"rounds: {name.replace('_', ' ')}, median"] = End(median(values), "reported", True)
    return found


def line(name: str, metrics: dict[str, float], seconds: float | None) -> str:
    """A line of the table."""
    cells = [f"{metrics[key]:.4f}" if key in metrics else "" for key in ("ndcg_at_10", "mrr_at_10", "auc")]
    return f"| {' | '.join([name, *cells, f'{seconds:.0f}' if seconds else ''])} |"


def main() -> None:
    """Three runs."""
    command = parser(__doc__ or "")
    command.add_argument("--documents", type=int, default=2400, help="paragraphs that are trained on (default: 2400)")
    command.add_argument("--steps", type=int, help="of each run (default: one epoch)")
    command.add_argument("--every", type=int, default=40, help="steps between two refreshes (default: 40)")
    arguments = command.parse_args()
    steps = arguments.steps or 2 * arguments.documents // BATCH
    lines = ["| negatives | nDCG@10 | MRR@10 | AUC | seconds of the whole run |", "| --- | --- | --- | --- | --- |"]
    found: dict[str, End] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        subset(folder / "squad", arguments.documents)
        for title, more in RUNS.items():
            refresh = ["--refresh-every", str(arguments.every)] if "refreshed" in title else []
            run, seconds = train(folder, title, more + refresh, steps)
            figures = json.loads((run / "metrics.json").read_text())
            if not found:
                found["nDCG@10, BM25"] = End(figures["bm25"]["ndcg_at_10"], "reported", True)
                found["nDCG@10, before training"] = End(figures["before"]["ndcg_at_10"], "reported", True)
                lines += [
                    line(name, figures[key], None) for name, key in {"BM25": "bm25", "untrained": "before"}.items()
                ]
            found[f"nDCG@10, {title}"] = End(figures["after"]["ndcg_at_10"], "reported", True)
            found[f"AUC, {title}"] = End(figures["after"]["auc"], "reported", True)
            found[f"whole run, {title}, seconds"] = End(seconds, "reported", True)
            lines.append(line(title, figures["after"], seconds))
            if refresh:
                found |= costs(run)
    report(f"refresh, {arguments.documents:,} paragraphs, {steps} steps", found, arguments.json)
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
