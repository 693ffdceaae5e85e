"""Mining: hard negatives of SQuAD's training queries, compared with `mine_hard_negatives` of sentence-transformers.

Run: `python benchmarks/retrieval_mine.py [--json PATH] [--dataset DIR] [--queries N] [--repeats 3]`. Ten negatives for
each of 87,000 queries from 21,000 paragraphs, with at most 95 % of the positive's score. The embeddings are bags of
words, weighted by rarity, projected at random to 384 components and normalised. Both libraries get them in memory at no
cost: sentence-transformers from an object in place of a model, which returns them and compares by a dot product. It
makes n-tuples, its fastest output, by torch and by faiss; triplets, its default, are reported too.

Each run has its own process, and the libraries alternate. The figures are the fastest run of each, its processor
seconds, and the growth of the process's memory to its peak. Both start from texts and ids and end with a table in
memory."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy import ndarray

from ends import End, add_device, at_least, check_device, parser, report, reported

SQUAD = Path(os.environ.get("RAYTRIEVER_DATA", "../shared/data")) / "squad"
DIM, NEGATIVES, MARGIN = 384, 10, 0.05
NEEDED = ("pyarrow", "bm25s", "sentence_transformers", "datasets")
WAYS = ("ours", "n-tuple", "n-tuple, faiss", "triplet")


def opened(arguments: argparse.Namespace) -> Any:
    """Return the data set with this number of its training queries."""
    from dataclasses import replace

    from raytriever.data.prepare.open_dataset import open_dataset

    dataset = open_dataset(arguments.dataset, ["train"])
    rows = dataset.judgements["train"]
    return replace(
        dataset, judgements={"train": rows.where(rows.queries < rows.queries[: arguments.queries].max() + 1)}
    )


def project(dataset: Any, folder: Path) -> None:
    """Write embeddings of all documents and of the split's queries."""
    import bm25s
    from scipy.sparse import csr_matrix

    texts = [*dataset.passages(), *(dataset.queries.texts[q] for q in dataset.positives("train").queries)]
    tokens = bm25s.tokenize(texts, stopwords="en", show_progress=False)
    counts = [len(id_) for id_ in tokens.ids]
    flat = np.concatenate([np.array(id_, np.int64) for id_ in tokens.ids])
    shape = (len(texts), len(tokens.vocab))
    bags = csr_matrix((np.ones(len(flat), np.float32), flat, np.cumsum([0, *counts])), shape)
    rarity = np.log(len(texts) / (1 + np.bincount(flat, minlength=shape[1]))).astype(np.float32)
    directions = np.random.default_rng(0).standard_normal((shape[1], DIM)).astype(np.float32)
    embeddings = bags.sqrt() @ (rarity[:, None] * directions) + 1e-3 * directions[0]
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    np.save(folder / "documents.npy", embeddings[: len(dataset.documents)])
    np.save(folder / "queries.npy", embeddings[len(dataset.documents) :])


def ours(dataset: Any, queries: ndarray, documents: ndarray) -> Any:
    """Mine with raytriever."""
    from raytriever.retrieval.mining.candidate_search import ArrayEmbeddings, Embeddings
    from raytriever.retrieval.mining.miner import mine
    from raytriever.retrieval.mining.mining_settings import MiningConfig

    config = MiningConfig(method="dense", num_negatives=NEGATIVES, relative_margin=MARGIN)
    return mine(dataset, "train", config, embeddings=Embeddings(queries, ArrayEmbeddings(documents)))


def theirs(dataset: Any, queries: ndarray, documents: ndarray, way: str, device: str) -> Any:
    """Mine with sentence-transformers."""
    import torch
    from datasets import Dataset
    from sentence_transformers.util import dot_score, mine_hard_negatives, pairwise_dot_score

    positives = dataset.positives("train")
    passages = list(dataset.passages())
    texts = [dataset.queries.texts[int(query)] for query in positives.queries]
    rows = np.repeat(np.arange(len(texts)), np.diff(positives.offsets))
    pairs = Dataset.from_dict(
        {"query": [texts[row] for row in rows], "passage": [passages[d] for d in positives.documents]}
    )
    row_of = {text: row for row, text in reversed(list(enumerate(texts)))}
    of = {text: row for row, text in reversed(list(enumerate(passages)))}
    model = SimpleNamespace(
        device=torch.device(device),
        similarity=dot_score,
        similarity_pairwise=pairwise_dot_score,
        get_embedding_dimension=lambda: DIM,
        encode_query=lambda texts_, **_: queries[[row_of[text] for text in texts_]],
        encode_document=lambda texts_, **_: documents[[of[text] for text in texts_]],
    )
    began = time.perf_counter(), time.process_time()
    mined = mine_hard_negatives(
        pairs,
        model,
        corpus=passages,
        relative_margin=MARGIN,
        num_negatives=NEGATIVES,
        output_format=way.split(",")[0],
        use_faiss="faiss" in way,
        verbose=False,
    )
    return mined, time.perf_counter() - began[0], time.process_time() - began[1]


def once(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run one library once in this process."""
    dataset = opened(arguments)
    queries, documents = (np.load(folder / f"{side}.npy") for side in ("queries", "documents"))
    if arguments.way == "ours":
        few = opened(argparse.Namespace(**{**vars(arguments), "queries": 64}))
        ours(few, queries[: len(few.positives("train"))], documents)  # compiled before
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if arguments.way == "ours":
        began = time.perf_counter(), time.process_time()
        mined = ours(dataset, queries, documents)
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        texts, passages = list(dataset.queries.texts), list(dataset.passages())
        first: dict[str, int] = {}
        for query in dataset.positives("train").queries.tolist():
            first.setdefault(texts[query], query)
        negatives: dict[str, list[str]] = {}
        for query, document in zip(mined.table.queries.tolist(), mined.table.documents.tolist(), strict=True):
            if first[texts[query]] == query:
                negatives.setdefault(texts[query], []).append(passages[document])
    else:
        answer, *took = theirs(dataset, queries, documents, arguments.way, arguments.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        columns = [answer[f"negative_{n + 1}"] for n in range(NEGATIVES)] if arguments.way != "triplet" else []
        negatives = dict(zip(answer["query"], map(list, zip(*columns, strict=True)), strict=True)) if columns else {}
    (folder / f"{arguments.way}.json").write_text(json.dumps(negatives))
    return {"seconds": took[0], "processor": took[1], "grown": (peak - before) / 1e3, "peak": peak / 1e3}


def in_a_process(way: str, arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run one library once in a process."""
    words = ["--dataset", str(arguments.dataset), "--queries", str(arguments.queries), "--scratch", str(folder)]
    words += ["--device", arguments.device]
    process = subprocess.run(
        [sys.executable, __file__, *words, "--way", way], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return dict(json.loads(process.stdout.splitlines()[-1]))


def ends_of(arguments: argparse.Namespace) -> dict[str, End]:
    """Return all results of mining."""
    with TemporaryDirectory(dir=arguments.scratch) as scratch:
        folder = Path(scratch)
        dataset = opened(arguments)
        project(dataset, folder)
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for repeat in range(arguments.repeats):
            for way in WAYS:
                if way != "triplet" or not repeat:
                    runs[way].append(in_a_process(way, arguments, folder))
        best = {way: {name: min(run[name] for run in of) for name in of[0]} for way, of in runs.items()}
        mine_, their = (json.loads((folder / f"{way}.json").read_text()) for way in ("ours", "n-tuple"))
    # It searches a few ranks deeper where one query of the data set has more positives than another.
    alike = np.mean(
        [passages[: len(mine_.get(query, []))] == mine_.get(query, []) for query, passages in their.items()]
    )
    rival = min(("n-tuple", "n-tuple, faiss"), key=lambda way: best[way]["seconds"])
    results = {}
    for way in WAYS:
        name = "raytriever" if way == "ours" else f"sentence-transformers, {way}"
        results[f"{name}: seconds"] = reported(best[way]["seconds"])
        results[f"{name}: processor seconds"] = reported(best[way]["processor"])
        results[f"{name}: memory grown (MB)"] = reported(best[way]["grown"])
    for name, unit in (("seconds", "seconds"), ("processor", "processor seconds")):
        ratio = best[rival][name] / best["ours"][name]
        decides = name == "seconds"
        target = "at least 2, wanted 4" if decides else "reported"
        results[f"sentence-transformers' {unit} / raytriever's"] = End(ratio, target, not decides or ratio >= 2)
    ratio = best["triplet"]["seconds"] / best["ours"]["seconds"]
    results["the same, of its triplets"] = reported(ratio)
    peak = best["ours"]["peak"]
    results["raytriever: memory of the process at its peak (MB)"] = End(peak, "under 2000", peak < 2000)
    results["queries with the same negatives in the same order"] = at_least(alike, 0.999)
    return results


def main() -> None:
    """Run the libraries in processes, or run one of them."""
    own = parser(__doc__ or "")
    own.add_argument("--dataset", type=Path, default=SQUAD, metavar="PATH", help="in BEIR layout")
    own.add_argument("--queries", type=int, default=10**9, metavar="N", help="training queries (default: all)")
    own.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each way")
    own.add_argument("--scratch", type=Path, metavar="DIR", help="where embeddings are kept (default: the system's)")
    own.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    add_device(own)
    arguments = own.parse_args()
    check_device(arguments.device)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        sys.exit(f"retrieval_mine.py needs {' and '.join(missing)}: install them")
    if arguments.way:
        print(json.dumps(once(arguments, arguments.scratch)))
    else:
        report("mining", ends_of(arguments), arguments.json)


if __name__ == "__main__":
    main()
