"""Refreshed hard negatives: the cost of a refresh for the steps during it, and the value of the negatives.

Run: `python benchmarks/refresh.py [--json PATH]`, about 20 minutes on two cores. Paragraphs of SQuAD, two questions
each. `jobs/train.py` trains MiniLM for one epoch three times with the same seed and number of steps: with in-batch
negatives only; with negatives that BM25 mined once; and with these until the first refresh and then with negatives that
the encoder itself mines repeatedly during training. The evaluation uses questions of other articles and all paragraphs.
Encoding without cores of its own slows training down, so on two cores the cost of a step has no threshold. The table
for docs/explanation/hard-negative-refresh.md is printed after the results."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ends import End, at_least, job, own_places, parser, report, reported

SQUAD = Path(__file__).parents[2] / "shared" / "data" / "squad"
HELD_OUT = 400  # paragraphs of the articles that are measured on
RUNS = {
    "in-batch": [],
    "BM25 once": ["--negatives-per-query", "2"],
    "BM25, then refreshed": ["--negatives-per-query", "2", "--refresh-relative-margin", "0.05"],
}
OWN_CORES = 4
BATCH = 32


def rows(name: str) -> Iterator[dict[str, Any]]:
    """Return the rows of a file of SQuAD."""
    with gzip.open(SQUAD / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def subset(folder: Path, documents: int) -> None:
    """Write the paragraphs for training and for evaluation, with two questions each."""
    (folder / "qrels").mkdir(parents=True)
    chosen: dict[str, dict[str, list[str]]] = {"train": {}, "dev": {}, "test": {}}
    for split, most in (("train", documents), ("dev", HELD_OUT)):
        for line in (SQUAD / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]:
            query, document, _ = line.split("\t")
            part = chosen[split]
            if document in part or len(part) < most:
                part.setdefault(document, []).append(query)
    dev = list(chosen["dev"].items())
    chosen["test"], chosen["dev"] = dict(dev[: HELD_OUT * 3 // 4]), dict(dev[HELD_OUT * 3 // 4 :])
    query_ids: set[str] = set()
    for split, part in chosen.items():
        lines = [f"{query}\t{document}\t1\n" for document, queries in part.items() for query in queries[:2]]
        query_ids |= {line.split("\t")[0] for line in lines}
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    there = {document for part in chosen.values() for document in part}
    for name, ids in (("corpus", there), ("queries", query_ids)):
        lines = [json.dumps(row) + "\n" for row in rows(name) if row["_id"] in ids]
        (folder / f"{name}.jsonl").write_text("".join(lines))


def training(folder: Path, run: Path, more: list[str], steps: int) -> list[str]:
    """Return the command of a training on the paragraphs of `subset`."""
    words = ["--dataset", folder / "squad", "--loss", "infonce", "--temperature", "0.05", "--batch-size", BATCH]
    words += ["--max-steps", steps, "--passage-length", "128", "--query-length", "64"]
    return [*job("train"), *map(str, words), "--learning-rate", "2e-5", "--output", str(run), *more]


def train(folder: Path, name: str, more: list[str], steps: int) -> tuple[Path, float]:
    """Train once; return the run directory and the seconds."""
    run = folder / name.replace(" ", "-").replace(",", "")
    words = training(folder, run, [*more, "--eval-steps", str(steps)], steps)
    began = time.perf_counter()
    subprocess.run(words, check=True, env=own_places(folder), cwd=folder, stdout=subprocess.DEVNULL)
    return run, time.perf_counter() - began


def steps_of(run: Path) -> dict[int, dict[str, float]]:
    """Return the logged figures of each step, by its number from 0."""
    steps: dict[int, dict[str, float]] = {}
    for line in (run / "steps.jsonl").read_text().splitlines():
        entry = json.loads(line)
        steps.setdefault(entry["step"] - 1, {}).update(entry["metrics"])
    return steps


def costs(run: Path) -> dict[str, End]:
    """Return the cost of the refresh rounds for the steps during them, and the results of the rounds."""
    rounds = json.loads((run / "negatives" / "rounds.json").read_text())
    metrics = {step: figures for step, figures in steps_of(run).items() if step > 2}  # the first steps allocate memory
    during = {step for item in rounds for step in range(item["step"], item["ended"])}
    seconds = {step: figures["step_seconds"] + figures["refresh_wait_seconds"] for step, figures in metrics.items()}
    alone = [value for step, value in seconds.items() if step not in during]
    together = [value for step, value in seconds.items() if step in during]
    used = [item["metrics"] for item in rounds if item["used_from"]]
    results: dict[str, End] = {}
    if alone and together:  # in a short run rounds may follow each other without a pause
        own = (os.cpu_count() or 1) >= OWN_CORES
        ratio = median(together) / median(alone)
        target, holds = ("at most 1.1", ratio <= 1.1) if own else ("reported", True)
        results |= {
            "a step alone, seconds": reported(median(alone)),
            "a step while refreshing, seconds": reported(median(together)),
            "a step while refreshing / alone": End(ratio, target, holds),
        }
    results |= {
        "steps alone, of all but the first three": reported(len(alone) / len(metrics)),
        "longest wait of a step for a round, seconds": reported(
            max(figures["refresh_wait_seconds"] for figures in metrics.values())
        ),
        "rounds that ended": reported(len(rounds)),
        "rounds whose tables were used": at_least(len(used), 1),
    }
    measured = "seconds encode_seconds mine_seconds staleness_steps overlap share_within_relative_margin"
    for name in measured.split():
        values = [item[f"refresh_{name}"] for item in used if f"refresh_{name}" in item]
        if values:
            results[f"rounds: {name.replace('_', ' ')}, median"] = reported(median(values))
    return results


def line(name: str, metrics: dict[str, float], seconds: float | None) -> str:
    """Return a line of the table."""
    cells = [f"{metrics[key]:.4f}" if key in metrics else "" for key in ("ndcg_at_10", "mrr_at_10", "auc")]
    return f"| {' | '.join([name, *cells, f'{seconds:.0f}' if seconds else ''])} |"


def main() -> None:
    """Run the three trainings and report."""
    command = parser(__doc__ or "")
    command.add_argument("--documents", type=int, default=2400, help="paragraphs that are trained on (default: 2400)")
    command.add_argument("--steps", type=int, help="of each run (default: one epoch)")
    command.add_argument("--every", type=int, default=40, help="steps between two refreshes (default: 40)")
    arguments = command.parse_args()
    steps = arguments.steps or 2 * arguments.documents // BATCH
    lines = ["| negatives | nDCG@10 | MRR@10 | AUC | seconds of the whole run |", "| --- | --- | --- | --- | --- |"]
    results: dict[str, End] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        subset(folder / "squad", arguments.documents)
        for title, more in RUNS.items():
            refresh = ["--refresh-every", str(arguments.every)] if "refreshed" in title else []
            run, seconds = train(folder, title, more + refresh, steps)
            models = json.loads((run / "evaluation" / "results.json").read_text())["models"]
            figures = {name: row for name, sets in models.items() for row in sets.values()}
            if not results:
                results["nDCG@10, BM25"] = reported(figures["bm25"]["ndcg_at_10"])
                results["nDCG@10, before training"] = reported(figures["before"]["ndcg_at_10"])
                lines += [
                    line(name, figures[key], None) for name, key in {"BM25": "bm25", "untrained": "before"}.items()
                ]
            results[f"nDCG@10, {title}"] = reported(figures["after"]["ndcg_at_10"])
            results[f"AUC, {title}"] = reported(figures["after"]["auc"])
            results[f"whole run, {title}, seconds"] = reported(seconds)
            lines.append(line(title, figures["after"], seconds))
            if refresh:
                results |= costs(run)
    report(f"refresh, {arguments.documents:,} paragraphs, {steps} steps", results, arguments.json)
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
