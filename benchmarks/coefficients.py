"""Coefficients of `raytriever plan`: what a word, a document, a product or a byte takes in each stage.

Run: `python benchmarks/coefficients.py [--documents 40000] [--write]`. The stages' own functions run on generated
passages (`at_size/corpus.py`) and on numbers as ids. Times are processor seconds of all threads and processes, so that
other work on the machine changes them little; `--write` stores them in the package. Memory is what Python and numpy
allocate. The coefficients of metadata are those of `scale_simulation.py`, what a graph of many documents takes besides
products is that of `size.py`, and those of a GPU are those of `gpu_estimate.py`, from the newest result of each.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import tempfile
import tracemalloc
from argparse import Namespace
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from math import log2
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from at_size.corpus import write
from at_size.encoder import WIDTH as ENCODER_WIDTH
from at_size.encoder import write_encoder
from ends import machine, parser
from page import RESULTS, newest
from raytriever.data.formats.chunks import read_chunks
from raytriever.data.formats.recognise import recognise
from raytriever.data.prepare.assemble import assemble
from raytriever.data.prepare.pipeline import Request, in_this_process, prepare
from raytriever.data.prepare.prepared import read_prepared
from raytriever.data.prepare.shards import WORK, ShardReport, ShardWriter, make_folders
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.data.sources import Source
from raytriever.index.approximate.faiss_finders import Hnsw, Ivf, default_code_bytes
from raytriever.index.exact.search import TieOrder, tie_order, top_k
from raytriever.mining.analyser import ENGLISH_ANALYSER
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.postings import BLOCK, Postings, PostingsBlock, merge
from raytriever.models.tokenisation import content_tokenizer_json, load_tokenizer
from raytriever.planning.stages import code_scores, list_scores
from raytriever.planning.workload import FILE, Measurement

WIDTH, QUERIES, K = 384, 1_000, 1_000
IDS = 2_000_000
SHARDS = 100  # of ids
ROUTE = (100_000, 1_000_000)  # documents
GPU = ("minilm, batch 8,192, packed", "xlm-r-large, batch 1,024, packed")


class Meter:
    """Processor seconds and the largest allocation of a block of code."""

    seconds: float
    peak: float


@contextmanager
def measured(memory: bool = False) -> Any:
    """Measure a block: the processor time of this process and of those that it waited for, or its largest allocation.

    Counting allocations makes code slower, so a block is measured once for each.
    """
    meter = Meter()
    if memory:
        tracemalloc.start()
    begin = _processor_seconds()
    yield meter
    meter.seconds = _processor_seconds() - begin
    if memory:
        meter.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def resident_bytes() -> float:
    """Return the resident memory of this process that no file backs."""
    import psutil

    memory = psutil.Process().memory_info()
    return float(memory.rss - memory.shared)


def texts(documents: int, folder: Path) -> dict[str, float]:
    """Measure preparation and BM25 on generated passages."""
    write(folder / "source", documents)
    write_encoder(folder / "encoder")
    source = Source.open(str(folder / "source"))
    plan = recognise(source, None)
    tokenisation = Tokenisation(content_tokenizer_json(load_tokenizer(folder / "encoder")))
    part = next(index for index, each in enumerate(plan.parts) if each.where.endswith("corpus.jsonl"))
    size = (folder / "source" / "corpus.jsonl").stat().st_size
    with measured() as reading:
        [chunk] = list(read_chunks(plan.parts[part], part, 2 * size))
    (folder / "shards").mkdir()
    make_folders(folder / "shards")
    writer = ShardWriter(plan.parts, folder / "shards", tokenisation)
    with measured() as writing:
        writer.write(chunk, folder / "shards")
    (folder / "again").mkdir()
    make_folders(folder / "again")
    with measured(memory=True) as holding:
        ShardWriter(plan.parts, folder / "again", tokenisation).write(chunk, folder / "again")
    dataset = read_prepared(prepare(Request(str(folder / "source")), in_this_process, folder / "prepared"))
    passages = list(dataset.passages())
    words = sum(text.count(" ") + 1 for text in passages)
    letters = sum(len(text.encode()) for text in passages)
    return {
        "text.bytes_per_word": letters / words,
        "prepare.read_seconds_per_byte": reading.seconds / size,
        "prepare.shard_seconds_per_word": writing.seconds / words,
        "prepare.shard_bytes_per_byte": holding.peak / size,
        **bm25(passages, words, [dataset.queries.texts[row] for row in range(min(QUERIES, len(dataset.queries)))]),
    }


def bm25(passages: list[str], words: int, queries: list[str]) -> dict[str, float]:
    """Measure blocks, merging and ranking of BM25."""
    PostingsBlock.of(passages[:100])  # compiles
    with measured() as blocks_time:
        blocks = [PostingsBlock.of(passages[start : start + BLOCK]) for start in range(0, len(passages), BLOCK)]
    one = passages[:5_000]
    with measured(memory=True) as block_memory:
        PostingsBlock.of(one)
    one_words = sum(text.count(" ") + 1 for text in one)
    merge(lambda: blocks[:1], _allocate)  # compiles
    with measured() as merging:
        postings = merge(lambda: blocks, _allocate)
    count = len(postings.documents)
    vocabulary = postings.vocabulary
    with measured(memory=True) as names:
        copied = {str(term): number for number, term in enumerate("".join([*term]) for term in vocabulary)}
    quarter = len(passages) // 4  # whose ranking leaves out what a query takes in any corpus
    ranking = [_ranking_seconds(some, queries) for some in (Postings.of(passages[:quarter]), postings)]
    return {
        "bm25.block_seconds_per_word": blocks_time.seconds / words,
        "bm25.block_bytes_per_word": block_memory.peak / one_words,
        "bm25.postings_per_word": count / words,
        "bm25.merge_seconds_per_posting": merging.seconds / count,
        # A term, its number, and its entries of counts, starts, ends and rarities.
        "bm25.bytes_per_term": names.peak / len(copied) + 8 + 8 + 8 + 4,
        "bm25.search_seconds_per_pair": (ranking[1] - ranking[0]) / (len(queries) * (len(passages) - quarter)),
    }


def _ranking_seconds(postings: Postings, queries: list[str]) -> float:
    """Return the seconds of ranking 10 documents for each query, after a first time that compiles."""
    index = Bm25Index.__new__(Bm25Index)
    index._postings, index._analyser = postings, ENGLISH_ANALYSER
    index.search(queries, 10)
    with measured() as ranking:
        index.search(queries, 10)
    return float(ranking.seconds)


def _allocate(name: str, length: int, dtype: Any) -> Any:
    return np.empty(length, dtype)


def ids(documents: int, folder: Path) -> dict[str, float]:
    """Measure what the driver does with the ids of a corpus: numbers in random order, and keys that are random."""
    names = [str(number) for number in np.random.default_rng(0).permutation(documents)]
    tie_order(names[:100])
    with measured() as ordering:
        TieOrder.of(tie_order(iter(names)))
    del names
    (folder / "ids").mkdir()
    make_folders(folder / "ids")
    reports = [_write_keys(folder / "ids", number, documents // SHARDS) for number in range(SHARDS)]
    with measured() as assembling:
        assemble(folder / "ids", reports)
    (folder / "ids" / "judgements").rmdir()
    with measured(memory=True) as positions:
        assemble(folder / "ids", reports)
    return {
        "prepare.assemble_seconds_per_comparison": assembling.seconds / (documents * log2(documents)),
        "prepare.assemble_bytes_per_document": positions.peak / documents,
        "search.ids_seconds_per_comparison": ordering.seconds / (documents * log2(documents)),
    }


def _write_keys(folder: Path, number: int, rows: int) -> ShardReport:
    """Write the keys of a shard of documents, and of one query, as a preparation does."""
    report = ShardReport(0, number, rows)
    rng = np.random.default_rng(number)
    for side, size in (("documents", rows), ("queries", 1)):
        keys, contents = (rng.integers(0, 2**64, (size, 2), dtype=np.uint64) for _ in range(2))
        np.savez(
            folder / WORK / f"{report.stem}.{side}.npz",
            keys=keys,
            contents=contents,
            rows=np.arange(size),
            repeated=0,
        )
    return report


def vectors(documents: int) -> dict[str, float]:
    """Measure exact search and indexes on random unit vectors."""
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((documents, WIDTH), dtype=np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    ties = np.arange(documents)
    top_k(embeddings[:QUERIES], embeddings, K, ties)  # compiles
    quarter = documents // 4
    seconds = []
    for size in (quarter, documents):  # their difference leaves out what a query takes at any size
        with measured() as searching:
            top_k(embeddings[:QUERIES], embeddings[:size], K, ties[:size])
        seconds.append(searching.seconds)
    rows = documents // 16
    with measured() as building:
        Hnsw.empty(WIDTH, 32, 200, 0).add(embeddings[:rows], 1)
    lists = int(4 * rows**0.5)
    with measured() as clustering:
        Ivf.trained(embeddings[:rows], lists, None, 0, 1).add(embeddings[:rows], 1)
    narrow = np.ascontiguousarray(embeddings[: 2 * rows, :128])
    with measured() as without_codes:
        Ivf.trained(narrow, lists, None, 0, 1).add(narrow, 1)
    code_bytes = default_code_bytes(narrow.shape[1])
    with measured() as with_codes:
        Ivf.trained(narrow, lists, code_bytes, 0, 1).add(narrow, 1)
    return {
        "search.seconds_per_product": (seconds[1] - seconds[0]) / (QUERIES * (documents - quarter) * WIDTH),
        "hnsw.build_seconds_per_product": building.seconds / (rows * WIDTH * log2(rows)),
        "ivfpq.list_seconds_per_flop": clustering.seconds / (2 * list_scores(rows, lists) * WIDTH),
        "ivfpq.code_seconds_per_score": (with_codes.seconds - without_codes.seconds)
        / code_scores(len(narrow), code_bytes),
    }


def arithmetic() -> dict[str, float]:
    """Measure the encoder in bf16 or fp32, whichever the processor prefers, forward, and forward and backward."""
    import torch
    from transformers import AutoConfig

    from raytriever.encoding.encode import encode_texts
    from raytriever.encoding.loading import load_for_encoding
    from raytriever.models.config import ModelConfig
    from raytriever.models.encoder import Encoder
    from raytriever.models.precision import autocast, choose_precision
    from raytriever.models.resolution import resolve_model
    from raytriever.training.memory.simulation import text_encoder_of
    from raytriever.training.monitoring import Encoding

    cpu = torch.device("cpu")
    torch.set_num_threads(1)
    precision = choose_precision(None, cpu)
    retriever = load_for_encoding(ModelConfig(), precision, cpu)
    passages = [" ".join(["a passage of plain words about things that people know"] * 8)] * 128
    contents = retriever.contents(passages, "passage", "")
    lengths = torch.tensor([len(tokens) for tokens in retriever.assemble(contents, "passage")])
    encode_texts(retriever, passages[:8], "passage")
    with measured() as encoding:
        encode_texts(retriever, passages, "passage")
    config = AutoConfig.from_pretrained(resolve_model("minilm"), trust_remote_code=False)
    trained = Encoder(text_encoder_of(config), "mean", normalise=True)
    work = Encoding.of(trained.backbone)
    ids = torch.randint(5, 1000, (16, 96))
    tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def step() -> None:
        with autocast(precision, cpu):
            embeddings = trained(tokens)
        embeddings.float().square().sum().backward()

    step()
    with measured() as training:
        for _ in range(4):
            step()
    forward, both = work.flops(lengths) / 3, 4 * work.flops(torch.full((16,), 96))
    return {
        "encode.core_seconds_per_flop": encoding.seconds / forward,
        "train.core_seconds_per_flop": training.seconds / both,
    }


def digests(folder: Path) -> dict[str, float]:
    """Measure the comparison of a file with its digest."""
    file = folder / "bytes"
    file.write_bytes(bytes(1 << 28))
    with measured() as hashing, open(file, "rb") as stream:
        hashlib.file_digest(stream, "sha256")
    return {"digest.seconds_per_byte": hashing.seconds / (1 << 28)}


def of_results(own: Mapping[str, float]) -> list[Measurement]:
    """Return the coefficients that other benchmarks have measured or computed, from their newest results.

    Args:
        own: coefficients of this benchmark.
    """
    results = newest(RESULTS)
    day, simulation = results["scale"]
    ends = {name: end["value"] for name, end in simulation["ends"].items()}
    metadata = {
        "encode.driver_seconds_per_shard": ends["encode: driver, seconds of a shard"],
        "encode.driver_seconds_per_task": ends["encode: driver of Ray Data, seconds of a task"],
        "encode.driver_bytes_per_shard": ends["encode: driver, bytes of a shard"],
        "search.ids_bytes_per_document": ends["search: ordering ids, bytes of an id"],
        "search.merge_seconds_per_key": ends["search: merging, seconds of a key"],
    }
    sized, route = results["size"]
    hnsw = {documents: route["ends"][f"hnsw, {documents:,}: processor seconds"]["value"] for documents in ROUTE}
    few, many = (documents * log2(documents) for documents in ROUTE)
    comparison = (hnsw[ROUTE[1]] - hnsw[ROUTE[0]]) / (many - few)  # without what an index takes at any size
    products = ENCODER_WIDTH * own["hnsw.build_seconds_per_product"]
    graph = {"hnsw.build_seconds_per_visit": comparison - products}
    estimated, estimate = results["gpu-estimate"]
    shares = {name: end["value"] for name, end in estimate["ends"].items()}
    gpu = {
        f"gpu.{work}_share_{size}": shares[f"{case}: useful share of 790 TFLOP/s"]
        for work, cases in (("train", GPU), ("encode", ("minilm, encoding", "xlm-r-large, encoding")))
        for size, case in zip(("small", "large"), cases, strict=True)
    }
    # An H200: 4.3 TB/s were measured there. A score is written once and read once, in float32.
    gpu |= {"gpu.bytes_per_second": 4.3e12, "gpu.search_bytes_per_score": 8.0}
    return [
        Measurement("measured", simulation["machine"], day, "python benchmarks/scale_simulation.py", metadata),
        Measurement("measured", route["machine"], sized, "python benchmarks/size.py", graph),
        Measurement("computed", estimate["machine"], estimated, "python benchmarks/gpu_estimate.py", gpu),
    ]


def own(options: Namespace) -> Measurement:
    """Measure the coefficients of this benchmark."""
    values = {"process.bytes": resident_bytes()}
    with tempfile.TemporaryDirectory() as folder:
        for measure in (
            lambda: texts(options.documents, Path(folder)),
            lambda: ids(IDS, Path(folder)),
            lambda: vectors(4 * options.documents),
            arithmetic,
            lambda: digests(Path(folder)),
        ):
            values |= measure()
            print(f"{process_time():,.0f} s of the processor", file=sys.stderr, flush=True)
    return Measurement("measured", machine(), str(date.today()), "python benchmarks/coefficients.py", values)


def main() -> None:
    """Measure, print, and write if asked."""
    arguments = parser((__doc__ or "").splitlines()[0])
    arguments.add_argument("--documents", type=int, default=40_000, metavar="N", help="generated passages")
    arguments.add_argument("--write", action="store_true", help="store the coefficients in the package")
    options = arguments.parse_args()
    measured_here = own(options)
    groups = [asdict(each) for each in (measured_here, *of_results(measured_here.values))]
    text = json.dumps(groups, indent=1) + "\n"
    print(text)
    if options.write:
        FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
