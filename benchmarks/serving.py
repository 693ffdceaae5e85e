"""Search in a program: milliseconds of `rt.Index.search` against sentence-transformers and FAISS, and changes.

Run: `python benchmarks/serving.py [--json PATH] [--before CHECKOUT] [--documents 10000 1000000]`.

1. 1 and 32 queries with the real encoder, over synthetic embeddings of its width, k = 5. The rival is
   `SentenceTransformer.encode` and `faiss.IndexFlatIP.search` in the same process, with the faster of its attention
   `sdpa` and `eager`; it returns positions, `rt.Index` ids, titles and texts. Both run alternately on one thread; the
   figures are the medians of the ratios in wall and in processor seconds.
2. 20 passages of 121 tokens are added to 100,000, and found, on all cores; the seconds hold encoding, the change and
   the search. So it is with a decision by `combined`, where BM25 has indexed the passages, of 60 drawn words each.
3. The first query of a fresh process whose code was never compiled, with embeddings in the cache. `--before` measures a
   checkout of an earlier version too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
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
from ends import End, parser, report
from raytriever.data.dataset import Documents, Queries, RetrievalDataset
from raytriever.encoding.encode import encode_texts
from raytriever.index.exact.search import cut
from raytriever.metrics.confidence import COMBINED, DEPTH, FEATURES, Confidence
from raytriever.metrics.intervals import Proportion
from raytriever.metrics.probability import PlattMap
from raytriever.models.resolution import resolve_model
from raytriever.search.calibration import AnswerThreshold, Calibration
from raytriever.search.exact import ExactIndex
from startup import write_dataset

ROOT = Path(__file__).parents[1]
MODEL, K, CORPUS, ADDED = "minilm", 5, 100_000, 20
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


def index_of(embeddings: ndarray, texts: list[str] | None = None, calibration: Calibration | None = None) -> rt.Index:
    """Return an exact index of synthetic embeddings with the real encoder."""
    numbers = range(len(embeddings))
    texts = texts or [f"text {at}" for at in numbers]
    documents = Documents([f"d{at}" for at in numbers], [""] * len(embeddings), texts)
    dataset = RetrievalDataset("synthetic", documents, Queries([], []), {})
    passages: dict[str, Any] = {"dataset": dataset, "blocks": cut(embeddings), "calibration": calibration}
    return rt.Index("exact", lambda: ExactIndex(retriever=rt.load_model(MODEL).retriever, **passages))


def drawn_texts(count: int) -> list[str]:
    """Return texts of 60 words; word n of 50,000 has a share of about 1/n."""
    drawn = (50_000 ** np.random.default_rng(2).random((count, 60))).astype(int)
    return [" ".join(f"word{number}" for number in row) for row in drawn.tolist()]


def calibration() -> Calibration:
    """Return a calibration that decides by `combined`."""
    share = Proportion(40, 60, 0.54, 0.77)
    weights = tuple(0.1 for _ in FEATURES)
    return Calibration(
        format=2,
        date="2026-11-27",
        dataset="synthetic",
        data="",
        corpus="",
        model="",
        chosen_on="dev",
        chosen_queries=60,
        checked_on="test",
        checked_queries=60,
        thresholds=[AnswerThreshold("f1", None, 0.0, share, share)],
        first=PlattMap(1.0, 0.0),
        later=PlattMap(1.0, 0.0),
        first_error=0.0,
        later_error=0.0,
        confidence=Confidence(COMBINED, DEPTH, 0.1, weights),
    )


def ratios(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Return the medians of the ratios in wall and in processor seconds, and the median of our milliseconds."""
    wall, processor, milliseconds = [], [], []
    for _ in range(repeats):
        began, used = perf_counter(), process_time()
        ours()
        middle, used_middle = perf_counter(), process_time()
        theirs()
        wall.append((middle - began) / (perf_counter() - middle))
        processor.append((used_middle - used) / (process_time() - used_middle))
        milliseconds.append(1000 * (middle - began))
    return median(wall), median(processor), median(milliseconds)


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
                began = process_time()
                of_rival(encoder)
                times[name] = process_time() - began
            fastest = encoders[min(times, key=lambda name: times[name])]
            wall, processor, milliseconds = ratios(
                lambda index=index, queries=queries: index.search(queries, top_k=K),  # type: ignore[misc]
                lambda fastest=fastest, of_rival=of_rival: of_rival(fastest),  # type: ignore[misc]
                repeats,
            )
            where = f"{count} quer{'ies' if count > 1 else 'y'}, {size:,} passages"
            ends[f"{where}: processor seconds / sentence-transformers' and FAISS's (x)"] = End(
                processor, "at most 1.0", processor <= 1
            )
            ends[f"{where}: wall seconds / theirs (x)"] = End(wall, "reported", True)
            ends[f"{where}: ms, one thread"] = End(milliseconds, "reported", True)


def add_passages(combined: bool, ends: dict[str, End]) -> None:
    """Measure the seconds until added passages are found."""
    embeddings = np.random.default_rng(1).standard_normal((CORPUS, 384), dtype=np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    index = index_of(embeddings, drawn_texts(CORPUS), calibration()) if combined else index_of(embeddings)
    index.search([PASSAGE.format("")])  # BM25 indexes the passages
    retriever, seconds, used, encoding = rt.load_model(MODEL).retriever, [], [], []
    for turn in range(9):
        passages = {f"new-{turn}-{at}": PASSAGE.format(f"{turn} {at}") for at in range(ADDED)}
        began, used_before = perf_counter(), process_time()
        index.add(passages)
        [[hit]] = index.search([PASSAGE.format(f"{turn} 3")], top_k=1)
        if hit.document_id not in passages:
            raise AssertionError(f"{hit.document_id} was found instead")
        seconds.append(perf_counter() - began)
        used.append(process_time() - used_before)
        began = perf_counter()
        encode_texts(retriever, list(passages.values()), "passage")
        encoding.append(perf_counter() - began)
    name = f"{ADDED} passages added to {CORPUS:,} and found{', with combined' * combined}"
    ends[f"{name}, seconds"] = End(median(seconds), "under 1", median(seconds) < 1)
    ends[f"{name}, processor seconds"] = End(median(used), "reported", True)
    ends[f"{name}, of these seconds to encode them"] = End(median(encoding), "reported", True)


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
    for combined in (False, True):
        add_passages(combined, ends)
    compare_searches(arguments.documents, ends)
    report("serving", ends, arguments.json)


if __name__ == "__main__":
    main()
