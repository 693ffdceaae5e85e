"""all-MiniLM-L6-v2 on the whole of SciFact's test split, against its published BEIR figure.

Run: `python benchmarks/ground_truth.py [--json PATH]`; the data packs are found by RAYTRIEVER_DATA.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from ends import End, parser, report

REPOSITORY = Path(__file__).parent.parent
PUBLISHED_NDCG = 0.645


def evaluated(precision: str) -> dict[str, dict[str, float]]:
    """`jobs/evaluate.py` as a user runs it, with nothing cached."""
    data = (REPOSITORY / os.environ.get("RAYTRIEVER_DATA", "../shared/data")).resolve()
    with TemporaryDirectory() as folder:
        command = [sys.executable, "jobs/evaluate.py", "--model", "minilm", "--datasets", str(data / "scifact")]
        command += ["--split", "test", "--precision", precision, "--output", folder]
        environment = {**os.environ, "RAYTRIEVER_CACHE": f"{folder}/cache"}
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL, env=environment)
        models = json.loads((Path(folder) / "results.json").read_text())["models"]
    return {model: datasets["scifact"] for model, datasets in models.items()}


def main() -> None:
    """Measure in both arithmetics."""
    arguments = parser(__doc__ or "").parse_args()
    ends = {}
    for precision in ("fp32", "bf16"):
        found = evaluated(precision)
        ndcg = found["minilm"]["ndcg_at_10"]
        holds = abs(ndcg - PUBLISHED_NDCG) <= 0.003
        ends[f"SciFact nDCG@10 of minilm, {precision}"] = End(ndcg, "0.645 within 0.003", holds)
    bm25 = found["bm25"]["ndcg_at_10"]
    ends["SciFact nDCG@10 of BM25"] = End(bm25, "0.676 within 0.01", abs(bm25 - 0.676) <= 0.01)
    report("ground truth", ends, arguments.json)


if __name__ == "__main__":
    main()
