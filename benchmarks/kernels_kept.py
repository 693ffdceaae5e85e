"""Compiled code of this package next to the libraries that could replace it.

Run: `python benchmarks/kernels_kept.py [--json PATH] [--only PREFIX]`. Each case runs in two processes with two
threads. The first has nothing compiled, the second has the compiled code of the first. Reported are the processor
seconds of the first call in both, the least of later calls, those of the library, and their ratio. A kernel stays where
a library takes 1.3 times as long at a size that users have. To measure an older version, put its package on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import process_time
from typing import Any

import bm25s
import faiss
import numpy as np
import torch

from ends import End, parser, report
from raytriever.index.exact.search import top_k
from raytriever.mining.bm25 import Bm25Index

THREADS = 2
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def search(documents: int, queries: int, k: int) -> Pair:
    """Exact search next to FAISS's flat search, whose scores are not exact."""
    faiss.omp_set_num_threads(THREADS)
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((rows, 384), dtype=np.float32) / 20 for rows in (queries, documents))
    ties, device = np.arange(documents), torch.device("cpu")
    kind = faiss.METRIC_INNER_PRODUCT
    return lambda: top_k(left, right, k, ties, None, device), lambda: faiss.knn(left, right, k, metric=kind)


def bm25(documents: int, queries: int, k: int) -> Pair:
    """BM25 next to bm25s with its compiled backend; words have the frequencies of Zipf's law."""
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(30, 50_030)
    drawn = rng.choice(50_000, (documents, 40), p=shares / shares.sum())
    texts = [" ".join(f"w{word}" for word in row) for row in drawn]
    wanted = [" ".join(f"w{word}" for word in row[:6]) for row in drawn[:queries]]
    index, library = Bm25Index(texts), bm25s.BM25(k1=0.9, b=0.4, backend="numba")
    library.index([text.split() for text in texts], show_progress=False)
    terms = [text.split() for text in wanted]
    options = {"k": k, "show_progress": False, "n_threads": THREADS}
    return lambda: index.search(wanted, k), lambda: library.retrieve(terms, **options)


CASES: dict[str, tuple[Callable[..., Pair], tuple[Any, ...]]] = {
    "search 100,000 x 384, 1,000 queries, k = 10": (search, (100_000, 1_000, 10)),
    "search 100,000 x 384, 1,000 queries, k = 100": (search, (100_000, 1_000, 100)),
    "search 100,000 x 384, 1,000 queries, k = 1,000": (search, (100_000, 1_000, 1_000)),
    "search 1,000,000 x 384, 1,000 queries, k = 1,000": (search, (1_000_000, 1_000, 1_000)),
    "search 1,000,000 x 384, 1 query, k = 100": (search, (1_000_000, 1, 100)),
    "BM25 200,000, 1,000 queries, k = 100": (bm25, (200_000, 1_000, 100)),
}


def _seconds(work: Callable[[], Any]) -> float:
    started = process_time()
    work()
    return process_time() - started


def measure(name: str) -> dict[str, float]:
    """Return the seconds of a case in this process."""
    torch.set_num_threads(THREADS)
    make, arguments = CASES[name]
    ours, library = make(*arguments)
    first = _seconds(ours)
    library()
    turns = [(_seconds(ours), _seconds(library)) for _ in range(3 if first > 1 else 9)]
    return {"first": first, "ours": min(one for one, _ in turns), "library": min(other for _, other in turns)}


def main() -> None:
    """Measure each case in new processes, and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", default="", help="first characters of the cases")
    arguments.add_argument("--case", help="print the seconds of one case")
    options = arguments.parse_args()
    if options.case:
        print(json.dumps(measure(options.case)))
        return
    ends: dict[str, End] = {}
    for name in CASES:
        if not name.startswith(options.only):
            continue
        with tempfile.TemporaryDirectory() as cache:
            command, environment = [sys.executable, __file__, "--case", name], os.environ | {"NUMBA_CACHE_DIR": cache}
            outputs = [subprocess.run(command, env=environment, check=True, capture_output=True) for _ in range(2)]
        cold, warm = (json.loads(output.stdout) for output in outputs)
        ours, library = (min(cold[key], warm[key]) for key in ("ours", "library"))
        for what, value in (
            ("first call, nothing compiled (s)", cold["first"]),
            ("first call, compiled before (s)", warm["first"]),
            ("later calls (s)", ours),
            ("library (s)", library),
            ("library / later calls (x)", library / ours),
        ):
            ends[f"{name}: {what}"] = End(value, "reported", True)
    report("compiled code and libraries", ends, options.json)


if __name__ == "__main__":
    main()
