"""Mining: hard negatives of SQuAD's training queries beside sentence-transformers' `mine_hard_negatives`.

Run: `python benchmarks/retrieval_mine.py [--json PATH] [--dataset DIR] [--queries N] [--repeats 3]`. Ten negatives for
each of 87,000 queries against 21,000 paragraphs, at most 95 % of the positive's score; embeddings are given: bags of
words weighed by rarity, projected at random to 384 components, of length one. Both get them for nothing, in memory:
sentence-transformers from an object in a model's place, which answers with them and compares by a plain dot product.
It is asked for its n-tuples, which it makes fastest (its own default, triplets, is told beside), by torch and by faiss.

Each run is a process of its own, the ways taking turns; told are the fastest of each, processor seconds too, and the
memory a process had at its peak beyond what it held before. Both answer from texts and ids to a table in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy import ndarray

from ends import End, parser, report

SQUAD = Path(os.environ.get("RAYTRIEVER_DATA", "../shared/data")) / "squad"
WIDTH, NEGATIVES, MARGIN = 384, 10, 0.05
WAYS = ("ours", "n-tuple", "n-tuple, faiss", "triplet")


def opened(arguments: argparse.Namespace) -> Any:
    """The data set, with as many of its training queries as are asked for."""
    from dataclasses import replace

    from raytriever.data.prepare.open import open_dataset

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
    counts = [len(each) for each in tokens.ids]
    flat = np.concatenate([np.array(each, np.int64) for each in tokens.ids])
    shape = (len(texts), len(tokens.vocab))
    bags = csr_matrix((np.ones(len(flat), np.float32), flat, np.cumsum([0, *counts])), shape)
    rarity = np.log(len(texts) / (1 + np.bincount(flat, minlength=shape[1]))).astype(np.float32)
    directions = np.random.default_rng(0).standard_normal((shape[1], WIDTH)).astype(np.float32)
    found = bags.sqrt() @ (rarity[:, None] * directions) + 1e-3 * directions[0]
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    np.save(folder / "documents.npy", found[: len(dataset.documents)])
    np.save(folder / "queries.npy", found[len(dataset.documents) :])


def ours(dataset: Any, queries: ndarray, documents: ndarray) -> Any:
    """Mine with raytriever."""
    from raytriever.mining.config import MiningConfig
    from raytriever.mining.miner import mine
    from raytriever.mining.scorers import Embeddings

    config = MiningConfig(method="dense", num_negatives=NEGATIVES, relative_margin=MARGIN)
    return mine(dataset, "train", config, embeddings=Embeddings.of(queries, documents))


def theirs(dataset: Any, queries: ndarray, documents: ndarray, way: str) -> Any:
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
    place = {text: row for row, text in reversed(list(enumerate(texts)))}
    of = {text: row for row, text in reversed(list(enumerate(passages)))}
    model = SimpleNamespace(
        device=torch.device("cpu"),
        similarity=dot_score,
        similarity_pairwise=pairwise_dot_score,
        get_embedding_dimension=lambda: WIDTH,
        encode_query=lambda asked, **_: queries[[place[text] for text in asked]],
        encode_document=lambda asked, **_: documents[[of[text] for text in asked]],
    )
    began = time.perf_counter(), time.process_time()
    found = mine_hard_negatives(
        pairs,
        model,
        corpus=passages,
        relative_margin=MARGIN,
        num_negatives=NEGATIVES,
        output_format=way.split(",")[0],
        use_faiss="faiss" in way,
        verbose=False,
    )
    return found, time.perf_counter() - began[0], time.process_time() - began[1]


def once(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One run of one way, in this process."""
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
        found: dict[str, list[str]] = {}
        for query, document in zip(mined.table.queries.tolist(), mined.table.documents.tolist(), strict=True):
            if first[texts[query]] == query:
                found.setdefault(texts[query], []).append(passages[document])
    else:
        answer, *took = theirs(dataset, queries, documents, arguments.way)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        columns = [answer[f"negative_{n + 1}"] for n in range(NEGATIVES)] if arguments.way != "triplet" else []
        found = dict(zip(answer["query"], map(list, zip(*columns, strict=True)), strict=True)) if columns else {}
    (folder / f"{arguments.way}.json").write_text(json.dumps(found))
    return {"seconds": took[0], "processor": took[1], "grown": (peak - before) / 1e3, "peak": peak / 1e3}


def in_a_process(way: str, arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One run of one way."""
    words = ["--dataset", str(arguments.dataset), "--queries", str(arguments.queries), "--scratch", str(folder)]
    found = subprocess.run(
        [sys.executable, __file__, *words, "--way", way], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return dict(json.loads(found.stdout.splitlines()[-1]))


def ends_of(arguments: argparse.Namespace) -> dict[str, End]:
    """All measured ends of mining."""
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
    # They look a few ranks further where one query of the data set has more positives than another.
    alike = np.mean(
        [passages[: len(mine_.get(query, []))] == mine_.get(query, []) for query, passages in their.items()]
    )
    rival = min(("n-tuple", "n-tuple, faiss"), key=lambda way: best[way]["seconds"])
    found = {}
    for way in WAYS:
        name = "raytriever" if way == "ours" else f"sentence-transformers, {way}"
        found[f"{name}: seconds"] = End(best[way]["seconds"], "reported", True)
        found[f"{name}: processor seconds"] = End(best[way]["processor"], "reported", True)
        found[f"{name}: memory grown (MB)"] = End(best[way]["grown"], "reported", True)
    for name, unit in (("seconds", "seconds"), ("processor", "processor seconds")):
        ratio = best[rival][name] / best["ours"][name]
        decides = name == "seconds"
        target = "at least 2, wanted 4" if decides else "reported"
        found[f"sentence-transformers' {unit} / raytriever's"] = End(ratio, target, not decides or ratio >= 2)
    ratio = best["triplet"]["seconds"] / best["ours"]["seconds"]
    found["the same, of its triplets"] = End(ratio, "reported", True)
    peak = best["ours"]["peak"]
    found["raytriever: memory of the process at its peak (MB)"] = End(peak, "under 2000", peak < 2000)
    found["queries with the same negatives in the same order"] = End(alike, "at least 0.999", bool(alike >= 0.999))
    return found


def main() -> None:
    """Measure in processes, or be one of them."""
    own = parser(__doc__ or "")
    own.add_argument("--dataset", type=Path, default=SQUAD, metavar="PATH", help="in BEIR layout")
    own.add_argument("--queries", type=int, default=10**9, metavar="N", help="training queries (default: all)")
    own.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each way")
    own.add_argument("--scratch", type=Path, metavar="DIR", help="where embeddings are kept (default: the system's)")
    own.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = own.parse_args()
    if arguments.way:
        print(json.dumps(once(arguments, arguments.scratch)))
    else:
        report("mining", ends_of(arguments), arguments.json)


if __name__ == "__main__":
    main()
