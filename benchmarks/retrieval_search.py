"""Exact search against FAISS's flat index: time, memory in addition to the corpus, and correctness.

Run: `python benchmarks/retrieval_search.py [--json PATH] [--repeats 5] [--device cuda]`. 200,000 documents and 1,000
queries of dimension 384, k = 1,000. Both search alternately in one process with the same threads; the figures are the
medians of the ratios in wall and in processor seconds. The vectors are normalised and without structure, so most
documents score near the k-th score: the hardest case for bounds. Clustered vectors, as encoders make them, and other k
are reported too. A separate process measures the memory of a search. With `--device cuda` it is compared with
`torch.mm` and `torch.topk`, and with the bytes of a search on the CPU; FAISS is not needed."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, process_time

import numpy as np
import torch
from numpy import ndarray

from ends import End, add_device, at_most, check_device, exactly, parser, report, reported
from raytriever.retrieval.index.exact_top_k import Corpus, top_k, top_k_of_blocks
from raytriever.retrieval.index.rank_keys import TieOrder

DOCUMENTS, QUERIES, DIM, K = 200_000, 1_000, 384, 1_000
SHARD = 25_000
TURNS = 7  # of each case of the grid
FIRST = 20_000  # documents of a search that only loads libraries


def unit(values: ndarray) -> ndarray:
    """Normalise rows to length one."""
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def vectors(clustered: bool) -> tuple[ndarray, ndarray]:
    """Return queries and documents; clustered vectors have about 2,000 centres, which are similar to each other."""
    rng = np.random.default_rng(0)

    def some(count: int, *_: object) -> ndarray:
        return rng.standard_normal((count, DIM), dtype=np.float32)

    if not clustered:
        return unit(some(QUERIES)), unit(some(DOCUMENTS))
    centers = some(2_000) + 0.5 * some(1)
    queries, documents = (
        unit(centers[rng.integers(0, 2_000, count)] + 0.8 * some(count)) for count in (QUERIES, DOCUMENTS)
    )
    return queries, documents


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor seconds of a call."""
    wall, processor = perf_counter(), process_time()
    work()
    return perf_counter() - wall, process_time() - processor


def ratios(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int
) -> tuple[float, float, list[tuple[float, float]]]:
    """Return the median ratios of our time to theirs in wall and processor seconds, and ours of each turn."""
    turns = [(timed(ours), timed(theirs)) for _ in range(repeats)]
    wall, processor = (median(mine[at] / other[at] for mine, other in turns) for at in (0, 1))
    return wall, processor, [mine for mine, _ in turns]


def right(queries: ndarray, documents: ndarray, result: tuple[ndarray, ndarray]) -> bool:
    """Return True if the rankings of some queries equal those of float64 products rounded to float32."""
    some = np.arange(0, len(queries), 50)
    products = (queries[some].astype(np.float64) @ documents.T.astype(np.float64)).astype(np.float32)
    order = np.argsort(-products, axis=1, kind="stable")[:, : result[1].shape[1]]
    return bool((order == result[1][some]).mean() > 0.9999)  # where float64's own last bit decides


def against_faiss(repeats: int) -> dict[str, End]:
    """Compare the time with FAISS."""
    import faiss

    ties = np.arange(DOCUMENTS)
    ends = {}
    for kind in ("unstructured", "clustered"):
        queries, documents = vectors(kind == "clustered")
        index = faiss.IndexFlatIP(DIM)
        index.add(documents)
        result = top_k(queries, documents, K, ties)
        if kind == "unstructured":
            good = right(queries, documents, result)
            ends["ranking is that of float64 products"] = exactly(float(good), 1)
        for k in (K,) if kind == "clustered" else (K, 10, 100, 10_000):
            wall, processor, turns = ratios(
                lambda k=k: top_k(queries, documents, k, ties),  # noqa: B023  called at once
                lambda k=k: index.search(queries, k),  # noqa: B023
                repeats if k == K else min(repeats, 3),
            )
            name = f"{kind}, k = {k:,}"
            ends[f"{name}: wall seconds / IndexFlatIP's (x)"] = at_most(wall, 1.0) if k <= K else reported(wall)
            ends[f"{name}: processor seconds / IndexFlatIP's (x)"] = reported(processor)
            ends[f"{name}: wall seconds"] = reported(min(turns)[0])
            ends[f"{name}: processor seconds"] = reported(min(used for _, used in turns))
    return ends | other_ways(*vectors(clustered=False), ties) | grid()


def grid(sizes: Sequence[int] = (10_000, 100_000)) -> dict[str, End]:
    """Compare the time with FAISS for few and many queries, passages and results."""
    import faiss

    queries, documents = vectors(clustered=False)
    ends = {}
    for size in sizes:
        index = faiss.IndexFlatIP(DIM)
        index.add(documents[:size])
        corpus = Corpus(lambda size=size: [(0, documents[:size])], TieOrder.of(np.arange(size)))  # type: ignore[misc]
        for count in (1, 20, 100, 1_000):
            for k in (10, 100, 1_000):
                some = queries[:count]
                wall, processor, *_ = ratios(
                    lambda corpus=corpus, some=some, k=k: corpus.top_k(some, k),  # type: ignore[misc]
                    lambda index=index, some=some, k=k: index.search(some, k),  # type: ignore[misc]
                    TURNS,
                )
                name = f"{count:,} queries, {size:,} passages, k = {k:,}"
                ends[f"{name}: wall seconds / IndexFlatIP's (x)"] = at_most(wall, 1.3) if k < K else reported(wall)
                ends[f"{name}: processor seconds / IndexFlatIP's (x)"] = reported(processor)
    return ends


def other_ways(queries: ndarray, documents: ndarray, ties: ndarray) -> dict[str, End]:
    """Measure the cost of a corpus in shards, in processor seconds."""
    parts = [(first, documents[first : first + SHARD]) for first in range(0, DOCUMENTS, SHARD)]
    whole = top_k(queries, documents, K, ties)
    cut = top_k_of_blocks(queries, parts, K, ties)
    same = all(value.tobytes() == other.tobytes() for value, other in zip(whole, cut, strict=True))
    ends = {f"shards of {SHARD:,}: same bytes": exactly(float(same), 1)}
    _, base = timed(lambda: top_k(queries, documents, K, ties))
    _, took = timed(lambda: top_k_of_blocks(queries, parts, K, ties))
    ends[f"shards of {SHARD:,}: processor seconds / whole (x)"] = reported(took / base)
    return ends


def on_a_gpu(repeats: int) -> dict[str, End]:
    """Compare the time with a product and `torch.topk` of documents that are on the GPU already."""
    queries, documents = vectors(clustered=False)
    ties, device = np.arange(DOCUMENTS), torch.device("cuda", 0)
    left, right = (torch.from_numpy(side).to(device, torch.bfloat16) for side in (queries, documents))
    ends = {}
    for k in (10, 100, K):
        result = top_k(queries, documents, k, ties, device=device)
        expected = top_k(queries, documents, k, ties, device=torch.device("cpu"))
        same = all(value.tobytes() == other.tobytes() for value, other in zip(result, expected, strict=True))
        ends[f"k = {k:,}: the bytes of a search on the CPU"] = exactly(float(same), 1)

        def theirs(k: int = k) -> None:
            torch.mm(left, right.T, out_dtype=torch.float32).topk(k)
            torch.cuda.synchronize()

        theirs()
        wall, _, turns = ratios(lambda k=k: top_k(queries, documents, k, ties, device=device), theirs, repeats)
        ends[f"k = {k:,}: wall seconds with the copy of the documents / torch.mm and topk without (x)"] = reported(wall)
        ends[f"k = {k:,}: wall seconds"] = reported(min(turns)[0])
    return ends


def memory() -> None:
    """Print the megabytes that a search adds to this process's peak."""
    queries, documents = vectors(clustered=False)
    ties = np.arange(DOCUMENTS)
    top_k(queries[:5], documents[:FIRST], 5, ties[:FIRST])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Memory that is free again does not raise the peak: take it.
    with open("/proc/self/statm") as stream:
        resident = int(stream.read().split()[1]) * resource.getpagesize()
    ballast = np.ones(max(0, before * 1024 - resident) // 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    top_k(queries, documents, K, ties)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, len(ballast))


def memory_end() -> dict[str, End]:
    """Return the result of memory, measured in its own process."""
    command = [sys.executable, __file__, "--memory"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    megabytes = float(out.split()[0])
    # The ranking itself is 12 bytes an entry, and 8 while it is made.
    return {"memory in addition to the corpus (MB)": End(megabytes, "under 200", megabytes < 200)}


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--repeats", type=int, default=5, help="turns (default: 5)")
    arguments.add_argument("--grid", type=int, help="only 1 to 1,000 queries of so many passages, at most 200,000")
    arguments.add_argument("--memory", action="store_true", help="only print what memory a search takes")
    add_device(arguments)
    options = arguments.parse_args()
    check_device(options.device)
    if options.device == "cuda":
        name = torch.cuda.get_device_name()
        report(f"search {DOCUMENTS:,} x {DIM}, {QUERIES:,} queries, {name}", on_a_gpu(options.repeats), options.json)
        return
    if options.memory:
        memory()
        return
    if options.grid:
        report(f"search, width {DIM}, {torch.get_num_threads()} threads", grid([options.grid]), options.json)
        return
    title = f"search {DOCUMENTS:,} x {DIM}, {QUERIES:,} queries, {torch.get_num_threads()} threads"
    report(title, memory_end() | against_faiss(options.repeats), options.json)


if __name__ == "__main__":
    main()
