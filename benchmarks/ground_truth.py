"""all-MiniLM-L6-v2 and BM25 on the data packs: on SciFact against the published figures, and a table of all packs.

Run: `python benchmarks/ground_truth.py [--json PATH] [--keep DIR [--only PACK ...]] [--table PATH.md]`. The environment
variable RAYTRIEVER_DATA is the folder of the data packs.

`--keep DIR` also evaluates every retrieval pack, or the packs of `--only`, and stores the evaluations in DIR. A pack is
measured on `test`, or on `dev` or `train` if it has no test split; one command of `jobs/evaluate.py` evaluates all
packs of a split. `--table` writes their figures as Markdown, and as JSON to the same path with another ending."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ends import End, job, machine, own_places, parser, report

REPOSITORY = Path(__file__).parent.parent
PUBLISHED_NDCG = 0.645
SPLITS = ("test", "dev", "train")
MODELS = ("bm25", "minilm")
TITLES = {"ndcg_at_10": "nDCG@10", "recall_at_100": "R@100", "auc": "AUC"}
METRICS = tuple(TITLES)


def packs_folder() -> Path:
    """Return the folder of the data packs."""
    return (REPOSITORY / os.environ.get("RAYTRIEVER_DATA", "../shared/data")).resolve()


def evaluated(words: list[str], output: Path, cache: Path) -> dict[str, Any]:
    """Run `jobs/evaluate.py` as a user does, and return its `results.json`."""
    command = [*job("evaluate"), "--model", *MODELS, "--output", str(output), "--fresh", *words]
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL, env=own_places(cache))
    results: dict[str, Any] = json.loads((output / "results.json").read_text())
    return results


def packs(only: Sequence[str]) -> dict[str, list[Path]]:
    """Return the retrieval packs by the split they are measured on; only the named packs, if any are named."""
    by_split: dict[str, list[Path]] = defaultdict(list)
    for corpus in sorted(packs_folder().rglob("corpus.jsonl.gz")):
        splits = [split for split in SPLITS if (corpus.parent / "qrels" / f"{split}.tsv").is_file()]
        name = corpus.parent.relative_to(packs_folder()).parts[0]
        if splits and (not only or name in only):
            by_split[splits[0]].append(corpus.parent)
    return by_split


def bm25_figures() -> dict[str, float]:
    """Return nDCG@10 of BM25 by pack, as the README of the packs has it for this analyser and all queries."""
    rows = [line.split(" | ") for line in (packs_folder() / "README.md").read_text().splitlines()]
    figures = {}
    for row in rows:
        number = re.search(r"(?<![\d.])0\.\d{3} / ", row[-1]) if row[0].startswith("| ") else None
        if number and not re.search("bigrams|sampled|no stemmer", row[-1]):
            figures[row[0][2:].strip()] = float(number[0][:5])
    return figures


def scifact(cache: Path) -> dict[str, End]:
    """Measure the test split of SciFact in both number formats."""
    ends = {}
    for precision in ("fp32", "bf16"):
        words = ["--datasets", str(packs_folder() / "scifact"), "--precision", precision]
        models = evaluated(words, cache / precision, cache)["models"]
        ndcg = models["minilm"]["scifact"]["ndcg_at_10"]
        holds = abs(ndcg - PUBLISHED_NDCG) <= 0.002
        ends[f"SciFact nDCG@10 of minilm, {precision}"] = End(ndcg, "0.645 within 0.002", holds)
    bm25 = models["bm25"]["scifact"]["ndcg_at_10"]
    ends["SciFact nDCG@10 of BM25"] = End(bm25, "0.676 within 0.01", abs(bm25 - 0.676) <= 0.01)
    return ends


def every_pack(output: Path, cache: Path, only: Sequence[str]) -> tuple[dict[str, End], list[dict[str, Any]]]:
    """Return the figures of every pack, and one row for each pack; BM25's are compared with the README of the packs.

    A document with the query's own id is left out, as in the README. BM25 in the README only returns documents that
    share a term with the query; a ranking here continues with the others. So on a corpus of fewer than 100 documents
    recall@100 only shows how many relevant documents have the id of their query."""
    ends: dict[str, End] = {}
    table: list[dict[str, Any]] = []
    known = bm25_figures()
    for split, folders in packs(only).items():
        for group in (False, True):  # the languages of one pack are one data set of parts
            chosen = [folder for folder in folders if (folder.parent != packs_folder()) == group]
            names = sorted({str(folder.parent) for folder in chosen}) if group else [str(folder) for folder in chosen]
            if not names:
                continue
            there = output / (f"{split}-parts" if group else split)
            results = evaluated(["--datasets", *names, "--split", split], there, cache)
            table += table_rows(results)
            for model, rows in results["models"].items():
                for name, metrics in rows.items():
                    ndcg, published = metrics["ndcg_at_10"], known.get(name)
                    has_threshold = model == "bm25" and published is not None
                    target = f"{published} within 0.01" if has_threshold else "-"
                    holds = not has_threshold or abs(ndcg - (published or 0)) <= 0.01
                    ends[f"{name} {split} nDCG@10 of {model}"] = End(ndcg, target, holds)
    return ends, table


def table_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each data set: its description and the figures of both models."""
    return [
        {
            "pack": name,
            **{key: about[key] for key in ("split", "queries", "documents")},
            "parts": len(about.get("parts", ())),
            **{model: results["models"][model][name] for model in MODELS},
        }
        for name, about in results["about"].items()
    ]


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows as Markdown with the higher figure of each pair bold, and as JSON."""
    pairs = [(model, metric) for metric in METRICS for model in MODELS]
    head = ["pack", "split", "queries", "documents", *(f"{TITLES[metric]} {model}" for model, metric in pairs)]
    lines = [
        f"BM25 and all-MiniLM-L6-v2 (`minilm`) on every retrieval pack, {date.today()}, {machine()}: "
        "`python benchmarks/ground_truth.py --keep DIR --table PATH.md`.",
        "",
        "| " + " | ".join(head) + " |",
        "| --- | --- |" + " ---: |" * (len(head) - 2),
    ]
    for row in sorted(rows, key=lambda row: str(row["pack"])):
        name = f"{row['pack']} (mean of {row['parts']})" if row["parts"] else str(row["pack"])
        cells = [name, row["split"], f"{row['queries']:,}", f"{row['documents']:,}"]
        for model, metric in pairs:
            value, best = row[model][metric], max(row[model][metric] for model in MODELS)
            cells.append(f"**{value:.3f}**" if value == best else f"{value:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    path.write_text("\n".join(lines) + "\n")
    path.with_suffix(".json").write_text(json.dumps(list(rows), indent=1) + "\n")


def main() -> None:
    """Measure and report."""
    words = parser(__doc__ or "")
    words.add_argument(
        "--keep", type=Path, metavar="DIR", help="evaluate every retrieval pack, and keep the evaluations in DIR"
    )
    words.add_argument("--only", nargs="+", default=[], metavar="PACK", help="of the packs, these alone")
    words.add_argument("--table", type=Path, metavar="PATH.md", help="write the packs' figures there, and as JSON")
    arguments = words.parse_args()
    with TemporaryDirectory() as folder:
        ends = {} if arguments.only else scifact(Path(folder))
        if arguments.keep:
            results, rows = every_pack(arguments.keep.resolve(), Path(folder), arguments.only)
            ends |= results
            if arguments.table:
                write_table(arguments.table, rows)
    report("ground truth", ends, arguments.json)


if __name__ == "__main__":
    main()
