"""all-MiniLM-L6-v2 and BM25 on the data packs: on SciFact against the published figures, and on every pack as a table.

Run: `python benchmarks/ground_truth.py [--json PATH] [--packs DIR]`; the data packs are found by RAYTRIEVER_DATA.

`--packs DIR` evaluates every retrieval pack too and leaves the evaluations in DIR. A pack is measured on
`test`, or on `dev` or `train` where it has none; packs that share a split are one command of `jobs/evaluate.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from ends import End, parser, report

REPOSITORY = Path(__file__).parent.parent
PUBLISHED_NDCG = 0.645
SPLITS = ("test", "dev", "train")


def packs_folder() -> Path:
    """The folder of the data packs."""
    return (REPOSITORY / os.environ.get("RAYTRIEVER_DATA", "../shared/data")).resolve()


def evaluated(words: list[str], output: Path, cache: Path) -> dict[str, dict[str, dict[str, float]]]:
    """`jobs/evaluate.py` as a user runs it; metrics by model and data set."""
    command = [sys.executable, "jobs/evaluate.py", "--model", "bm25", "minilm", "--output", str(output), "--fresh"]
    environment = {**os.environ, "RAYTRIEVER_CACHE": str(cache), "MLFLOW_TRACKING_URI": f"sqlite:///{cache}/mlflow.db"}
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, *words], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL, env=environment)
    models: dict[str, dict[str, dict[str, float]]] = json.loads((output / "results.json").read_text())["models"]
    return models


def packs() -> dict[str, list[Path]]:
    """The retrieval packs by the split they are measured on."""
    found: dict[str, list[Path]] = defaultdict(list)
    for corpus in sorted(packs_folder().rglob("corpus.jsonl.gz")):
        splits = [split for split in SPLITS if (corpus.parent / "qrels" / f"{split}.tsv").is_file()]
        if splits:
            found[splits[0]].append(corpus.parent)
    return found


def bm25_figures() -> dict[str, float]:
    """nDCG@10 of BM25 by pack, as the packs' README has it; those of other analysers or of sampled queries left out."""
    rows = [line.split(" | ") for line in (packs_folder() / "README.md").read_text().splitlines()]
    figures = {}
    for row in rows:
        number = re.search(r"(?<![\d.])0\.\d{3} / ", row[-1]) if row[0].startswith("| ") else None
        if number and not re.search("bigrams|sampled|no stemmer", row[-1]):
            figures[row[0][2:].strip()] = float(number[0][:5])
    return figures


def scifact(cache: Path) -> dict[str, End]:
    """SciFact's test split in both arithmetics."""
    ends = {}
    for precision in ("fp32", "bf16"):
        words = ["--datasets", str(packs_folder() / "scifact"), "--precision", precision]
        found = evaluated(words, cache / precision, cache)
        ndcg = found["minilm"]["scifact"]["ndcg_at_10"]
        holds = abs(ndcg - PUBLISHED_NDCG) <= 0.002
        ends[f"SciFact nDCG@10 of minilm, {precision}"] = End(ndcg, "0.645 within 0.002", holds)
    bm25 = found["bm25"]["scifact"]["ndcg_at_10"]
    ends["SciFact nDCG@10 of BM25"] = End(bm25, "0.676 within 0.01", abs(bm25 - 0.676) <= 0.01)
    return ends


def every_pack(output: Path, cache: Path) -> dict[str, End]:
    """Every pack's figures; those of BM25 against the packs' README, where that used the same analyser."""
    ends, known = {}, bm25_figures()
    for split, folders in packs().items():
        for group in (False, True):  # the languages of one pack are one data set of parts
            chosen = [folder for folder in folders if (folder.parent != packs_folder()) == group]
            names = sorted({str(folder.parent) for folder in chosen}) if group else [str(folder) for folder in chosen]
            if not names:
                continue
            there = output / (f"{split}-parts" if group else split)
            for model, rows in evaluated(["--datasets", *names, "--split", split], there, cache).items():
                for name, metrics in rows.items():
                    ndcg, published = metrics["ndcg_at_10"], known.get(name)
                    told = model == "bm25" and published is not None
                    target = f"{published} within 0.01" if told else "-"
                    holds = not told or abs(ndcg - (published or 0)) <= 0.01
                    ends[f"{name} {split} nDCG@10 of {model}"] = End(ndcg, target, holds)
    return ends


def main() -> None:
    """Measure."""
    words = parser(__doc__ or "")
    words.add_argument("--packs", type=Path, metavar="DIR", help="evaluate every retrieval pack into DIR")
    arguments = words.parse_args()
    with TemporaryDirectory() as folder:
        ends = scifact(Path(folder))
        if arguments.packs:
            ends |= every_pack(arguments.packs.resolve(), Path(folder))
    report("ground truth", ends, arguments.json)


if __name__ == "__main__":
    main()
