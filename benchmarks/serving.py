"""Search in a program: milliseconds of `rt.Index.search` against sentence-transformers and FAISS, and changes.

Run: `python benchmarks/serving.py [--json PATH] [--before CHECKOUT] [--documents 10000 1000000]`.

1. 1 and 32 queries with the real encoder, over synthetic embeddings of its dimension, k = 5. The rival is
   `SentenceTransformer.encode` and `faiss.IndexFlatIP.search` in the same process, with the faster of its attention
   `sdpa` and `eager`; it returns positions, `rt.Index` ids, titles and texts. Both run alternately on one thread; the
   figures are the medians of the ratios in wall and in processor seconds.
2. 20 passages of 121 tokens are added to a data set of 20,000 short ones, and found by an index that is built again,
   on all cores; the seconds hold reading the data set, encoding the 20, the index and the search.
3. The first query of a fresh process whose code was never compiled, with embeddings in the cache. `--before` measures a
   checkout of an earlier version too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import faiss
import numpy as np
import torch
from numpy import ndarray

import raytriever as rt
from ends import End, at_most, parser, report, reported
from raytriever.data.dataset import Documents, Queries, RetrievalDataset
from raytriever.models.resolve_model import resolve_model
from raytriever.retrieval.search.exact_search import ExactIndex
from retrieval_search import ratios, timed
from startup import write_dataset

ROOT = Path(__file__).parents[1]
MODEL, K, CORPUS, ADDED = "minilm", 5, 20_000, 20
QUERY = "does the use of statins in older adults lower the risk of dementia, study {}"
PASSAGE = "Passage {} of the trial. " + "Patients were assigned to groups by age, and followed for four years. " * 8
FIRST = f"""
from time import perf_counter
import raytriever as rt
if __name__ == "__main__":
    index = rt.build_index("{MODEL}", "pairs")
    began = perf_counter()
    index.search(["what follows 7"])
    print(1000 * (perf_counter() - began))
"""


def index_of(embeddings: ndarray) -> rt.Index:
    """Return an exact index of synthetic embeddings with the real encoder."""
    numbers = range(len(embeddings))
    documents = Documents([f"d{at}" for at in numbers], [""] * len(embeddings), [f"text {at}" for at in numbers])
    dataset = RetrievalDataset("synthetic", documents, Queries([], []), {})
    return rt.Index(
        "exact", ExactIndex(dataset=dataset, retriever=rt.load_model(MODEL).retriever, embeddings=embeddings)
    )


def rivals() -> dict[str, Any]:
    """Return the encoder of sentence-transformers with each attention."""
    from sentence_transformers import SentenceTransformer

    folder = str(resolve_model(MODEL, None))
    return {
        name: SentenceTransformer(folder, device="cpu", model_kwargs={"attn_implementation": name})
        for name in ("sdpa", "eager")
    }


def compare_searches(sizes: list[int], ends: dict[str, End]) -> None:
    """Compare searches of all sizes, and of 1 and 32 queries."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    encoders, rng = rivals(), np.random.default_rng(0)
    for size in sizes:
        embeddings = rng.standard_normal((size, 384), dtype=np.float32)
        embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
        index, flat = index_of(embeddings), faiss.IndexFlatIP(384)
        flat.add(embeddings)
        for count in (1, 32):
            queries = [QUERY.format(number) for number in range(count)]
            repeats = 5 if size * count > 10**7 else 15

            def of_rival(encoder: Any, queries: list[str] = queries, flat: Any = flat) -> None:
                flat.search(encoder.encode(queries, batch_size=len(queries), show_progress_bar=False), K)

            times = {}
            for name, encoder in encoders.items():
                of_rival(encoder)
                times[name] = timed(lambda encoder=encoder, of_rival=of_rival: of_rival(encoder))[1]  # type: ignore[misc]
            fastest = encoders[min(times, key=lambda name: times[name])]
            wall, processor, turns = ratios(
                lambda index=index, queries=queries: index.search(queries, top_k=K),  # type: ignore[misc]
                lambda fastest=fastest, of_rival=of_rival: of_rival(fastest),  # type: ignore[misc]
                repeats,
            )
            where = f"{count} quer{'ies' if count > 1 else 'y'}, {size:,} passages"
            ends[f"{where}: processor seconds / sentence-transformers' and FAISS's (x)"] = at_most(processor, 1.0)
            ends[f"{where}: wall seconds / theirs (x)"] = reported(wall)
            ends[f"{where}: ms, one thread"] = reported(median(1000 * seconds for seconds, _ in turns))


def swap_index(ends: dict[str, End]) -> None:
    """Measure the seconds until added passages are found by an index that is built again."""
    model, seconds, used = rt.load_model(MODEL), [], []
    with TemporaryDirectory() as temporary:
        corpus = Path(temporary, "corpus.jsonl")
        with corpus.open("w") as stream:
            stream.writelines(json.dumps({"_id": f"d{at}", "text": f"text {at}"}) + "\n" for at in range(CORPUS))
        rt.build_index(model, temporary)
        for turn in range(5):
            passages = {f"new-{turn}-{at}": PASSAGE.format(f"{turn} {at}") for at in range(ADDED)}
            with corpus.open("a") as stream:
                stream.writelines(json.dumps({"_id": name, "text": text}) + "\n" for name, text in passages.items())
            began, used_before = perf_counter(), process_time()
            [[hit]] = rt.build_index(model, temporary).search([PASSAGE.format(f"{turn} 3")], top_k=1)
            if hit.document_id not in passages:
                raise AssertionError(f"{hit.document_id} was found instead")
            seconds.append(perf_counter() - began)
            used.append(process_time() - used_before)
    name = f"{ADDED} passages added to {CORPUS:,}, built again and found"
    ends[f"{name}, seconds"] = reported(median(seconds))
    ends[f"{name}, processor seconds"] = reported(median(used))


def first_query(checkout: Path, compiled: bool) -> float:
    """Return the milliseconds of the first query of a process.

    Args:
        checkout: version of the package.
        compiled: whether an earlier process has compiled the code on this machine.
    """
    with TemporaryDirectory() as temporary:
        write_dataset(Path(temporary, "pairs"))
        Path(temporary, "first.py").write_text(FIRST)
        places = {"PYTHONPATH": str(checkout / "platform"), "RAYTRIEVER_CACHE": f"{temporary}/cache"}
        times = []
        for turn in range(3):
            code = f"{temporary}/numba-{0 if compiled else turn}"
            environment = {**os.environ, **places, "NUMBA_CACHE_DIR": code, "OMP_NUM_THREADS": "1"}
            output = subprocess.run(
                [sys.executable, "first.py"], cwd=temporary, env=environment, capture_output=True, text=True, check=True
            )
            times.append(float(output.stdout.split()[-1]))
    return median(times[1:])  # the first process encodes the passages


def main() -> None:
    """Measure everything, and report it."""
    flags = parser(__doc__ or "")
    flags.add_argument("--before", type=Path, metavar="CHECKOUT", help="an earlier version, for the first query")
    flags.add_argument("--documents", type=int, nargs="+", default=[10_000, 1_000_000], metavar="N")
    arguments = flags.parse_args()
    ends: dict[str, End] = {}
    for name, checkout in (("", ROOT), (" of the version before", arguments.before)):
        for compiled in (False, True) if checkout else ():
            code = "code in numba's cache" if compiled else "nothing compiled"
            value = first_query(checkout, compiled)
            target = "reported" if name else "under 300"
            ends[f"first query{name}, {code}, ms"] = End(value, target, bool(name) or value < 300)
    swap_index(ends)
    compare_searches(arguments.documents, ends)
    report("serving", ends, arguments.json)


if __name__ == "__main__":
    main()
