"""Encoding a corpus: speed against sentence-transformers, loss by bf16 and small storage types, actors, memory.

Run: `python benchmarks/retrieval_encode.py [--json PATH] [--texts N] [--sections speed]`. Every scenario runs in a
process of its own (`--scenario`), because the peak of memory is that of a process. Compared implementations alternate
in one process of one thread, and the median of paired ratios of processor time counts. `--help` ends with the
environment of AVX2 alone.
`--device cuda` compares an encoder of random weights with its forward pass; it needs torch and transformers only."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ends import End, add_device, at_least, check_device, parser, report, reported, result_of

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
ROUNDS = 3
TRUTH = 0.6451  # nDCG@10 of MiniLM on SciFact in fp32, by sentence-transformers and pytrec_eval: ground_truth.py
POOL_TEXTS = 4_096
SMALL_STORE, DIM = 100 << 20, 2_048
QUERIES, K = 500, 10_000


def paragraphs(count: int) -> list[str]:
    """Return paragraphs of SQuAD, evenly spread."""
    from raytriever.data.prepare.open_dataset import open_dataset

    passages = open_dataset(DATA / "squad", []).passages()
    return [passages[index * len(passages) // count] for index in range(count)]


def speed(arguments: argparse.Namespace) -> dict[str, float]:
    """Compare our encoder with sentence-transformers' on the same texts, in fp32 and in the processor's precision."""
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    from raytriever.models.device_and_precision import choose_precision
    from raytriever.models.model_settings import ModelConfig
    from raytriever.models.resolve_model import resolve_model
    from raytriever.models.retriever import Retriever
    from raytriever.retrieval.encoding.encode_texts import encode_texts
    from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding

    torch.set_num_threads(1)
    texts, cpu = paragraphs(arguments.texts), torch.device("cpu")
    precisions = dict.fromkeys(["fp32", choose_precision(None, cpu), "int8"])
    ours = {precision: load_for_encoding(ModelConfig(), precision, cpu) for precision in precisions}
    theirs = SentenceTransformer(str(resolve_model("minilm")), device="cpu")

    def timed(encoder: Retriever | None, some: list[str]) -> tuple[Any, float]:
        began = time.process_time()
        embeddings = theirs.encode(some) if encoder is None else encode_texts(encoder, some, "passage")
        return embeddings, time.process_time() - began

    for encoder in (None, *ours.values()):
        timed(encoder, texts[:64])
    rates: dict[str, list[float]] = {name: [] for name in ("theirs", *ours)}
    cosines: dict[str, float] = dict.fromkeys(ours, 1.0)
    for turn in range(ROUNDS):
        some = texts[turn::ROUNDS]
        expected, seconds = timed(None, some)
        rates["theirs"].append(len(some) / seconds)
        for name, encoder in ours.items():
            embeddings, seconds = timed(encoder, some)
            rates[name].append(len(some) / seconds)
            cosines[name] = min(cosines[name], float(np.min((embeddings * expected).sum(1))))
    ratios = {name: median(np.divide(rates[name], rates["theirs"]).tolist()) for name in ours}
    return {
        **{f"{name} rate": median(values) for name, values in rates.items()},
        **{f"{name} ratio": ratio for name, ratio in ratios.items()},
        **{f"{name} cosine": cosine for name, cosine in cosines.items()},
    }


def loss(arguments: argparse.Namespace) -> dict[str, float]:
    """Return nDCG@10 on SciFact of bf16 embeddings by storage type, and the cosine of read and written ones."""
    import numpy as np
    import torch

    from raytriever.data.prepare.open_dataset import open_dataset
    from raytriever.evaluation.systems import evaluate_embeddings
    from raytriever.models.device_and_precision import choose_precision
    from raytriever.models.model_settings import ModelConfig
    from raytriever.retrieval.encoding.embed_corpus import embed_corpus
    from raytriever.retrieval.encoding.embedding_store import file_of, read_embeddings, stored_values
    from raytriever.retrieval.encoding.encode_texts import encode_texts
    from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding

    config = ModelConfig(passage_length=256, query_length=256)
    dataset = open_dataset(DATA / "scifact", ["test"])
    retriever = load_for_encoding(config, choose_precision(None, torch.device("cpu")), torch.device("cpu"))
    query_texts = [dataset.queries.texts[int(query)] for query in dataset.positives("test").queries]
    queries = encode_texts(retriever, query_texts, "query", "queries")
    documents = embed_corpus(config, retriever, dataset).array()
    figures: dict[str, float] = {}
    for dtype in ("fp32", "fp16", "int8"):
        with TemporaryDirectory() as folder:
            for kind, values in stored_values(documents, dtype).items():
                np.save(file_of(Path(folder, "0"), kind), values)
            kept = np.array(read_embeddings(Path(folder, "0")))
        figures[f"{dtype} ndcg"] = evaluate_embeddings(dataset, "test", queries, kept).metrics["ndcg_at_10"]
        figures[f"{dtype} cosine"] = float(((kept * documents).sum(1) / np.linalg.norm(kept, axis=1)).mean())
    return figures


def pool(arguments: argparse.Namespace) -> dict[str, float]:
    """Time this process and one actor with as many threads, from the end of the first shard to the end of the last."""
    import torch

    from raytriever.cluster.actor_pool import ActorPool
    from raytriever.cluster.ray_session import ray_session
    from raytriever.data.prepare.open_dataset import open_dataset
    from raytriever.models.device_and_precision import choose_precision
    from raytriever.models.model_settings import ModelConfig
    from raytriever.retrieval.encoding.embed_corpus import encode_store, plan_embeddings
    from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
    from raytriever.retrieval.encoding.shard_encoder import encode_in_process, tokenization_of
    from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter

    config, threads = ModelConfig(), os.cpu_count() or 1
    torch.set_num_threads(threads)
    precision = choose_precision(None, torch.device("cpu"))
    retriever = load_for_encoding(config, precision, torch.device("cpu"))
    dataset = open_dataset(DATA / "squad", [], tokenization=tokenization_of(retriever))
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32")
    plan = replace(plan, rows=min(plan.rows, arguments.texts, POOL_TEXTS), shard_rows=256)
    figures: dict[str, list[float]] = {"alone": [], "pool": [], "start": []}
    with TemporaryDirectory() as folder, ray_session(threads):
        for turn in range(ROUNDS):
            for name, run in {"alone": encode_in_process, "pool": ActorPool(1, 1, threads).encode}.items():
                work = StoreWriter(Path(folder) / f"{name}{turn}", plan)
                began = time.perf_counter()
                store = encode_store(work, config, retriever, dataset, run)
                ends = sorted(file.stat().st_mtime for file in store.path.glob("*/*.embeddings.npy"))
                figures[name].append((len(store) - plan.shard_rows) / (ends[-1] - ends[0]))
                if name == "pool":
                    figures["start"].append(time.perf_counter() - began - (ends[-1] - ends[0]))
        same = [
            {file.relative_to(index): file.read_bytes() for file in index.rglob("*.npy")}
            for index in (Path(folder) / "alone0", Path(folder) / "pool0")
        ]
    return {**{name: median(values) for name, values in figures.items()}, "same": float(same[0] == same[1])}


def wide(folder: Path, dim: int = DIM, layers: int = 0) -> Path:
    """Return an encoder of random weights; without layers it costs almost nothing and has wide embeddings."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(1_000))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=len(words),
            hidden_size=dim,
            num_hidden_layers=layers,
            num_attention_heads=dim // 32,
            intermediate_size=4 * dim if layers else 64,
        )
    ).save_pretrained(folder)
    return folder


def on_a_gpu(arguments: argparse.Namespace) -> dict[str, End]:
    """Compare encoding texts with the encoder's forward pass over batches that are on the GPU already."""
    import numpy as np
    import torch

    from raytriever.models.model_settings import ModelConfig
    from raytriever.models.packing import move
    from raytriever.retrieval.encoding.encode_texts import encode_texts
    from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding

    device, rng = torch.device("cuda", 0), np.random.default_rng(0)
    lengths = rng.integers(20, 250, arguments.texts)
    texts = [" ".join(map(str, rng.integers(0, 1_000, length))) for length in lengths]
    with TemporaryDirectory(dir=arguments.scratch) as folder:
        config = ModelConfig(str(wide(Path(folder), 384, 6)), passage_length=256)
        retriever = load_for_encoding(config, "bf16", device)
    inputs = retriever.token_ids(texts, "passage")
    make = (lambda some: retriever.pack(some, "passage")) if retriever.packs else retriever.pad
    ready = [
        move(make([inputs[row] for row in rows]), lambda tensor: tensor.to(device))
        for rows in retriever.batches(inputs, retriever.token_budget())
    ]

    def forward() -> None:
        with torch.inference_mode():
            for tokens in ready:
                retriever.encode(tokens, "passage")
        torch.cuda.synchronize()

    ways: dict[str, Callable[[], object]] = {
        "encoding": lambda: encode_texts(retriever, texts, "passage"),
        "forward": forward,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if turn:  # the first turn compiles and warms up
                seconds[name].append(time.perf_counter() - began)
    rate = {name: arguments.texts / median(took) for name, took in seconds.items()}
    ratio = rate["encoding"] / rate["forward"]
    return {
        "texts a second, with tokenising": reported(rate["encoding"]),
        "texts a second, forward only": reported(rate["forward"]),
        "encoding / forward only": reported(ratio),
    }


def generated(folder: Path, rows: int) -> Path:
    """Write a corpus of numbers, three per text."""
    folder.mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as stream:
        for number in range(rows):
            stream.write(json.dumps({"_id": str(number), "text": " ".join(str(number * k % 997) for k in (1, 3, 7))}))
            stream.write("\n")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "1"}\n')
    return folder


@contextmanager
def watching(name: str) -> Iterator[dict[str, float]]:
    """Yield the largest memory in MB of an actor whose process has this name; `memory` grows while it runs."""
    import psutil

    peak, over = {"memory": 0.0}, threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            there = [process.info for process in psutil.process_iter(["cmdline", "memory_info"])]
            actors = [info["memory_info"] for info in there if name in "".join(info["cmdline"] or ())]
            # What is mapped from files is the page cache's.
            peak["memory"] = max([peak["memory"], *((memory.rss - memory.shared) / 1e6 for memory in actors)])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def large(arguments: argparse.Namespace) -> dict[str, float]:
    """Encode and search a generated corpus with two actors, with a small object store and with the default one."""
    import numpy as np
    import psutil
    import ray

    from raytriever.cluster.actor_pool import ActorPool
    from raytriever.data.prepare.open_dataset import open_dataset
    from raytriever.models.model_settings import ModelConfig
    from raytriever.retrieval.encoding.embed_corpus import encode_store, plan_embeddings
    from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
    from raytriever.retrieval.encoding.shard_encoder import tokenization_of
    from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter

    cache = Path(os.environ["RAYTRIEVER_CACHE"])
    config = ModelConfig(str(wide(cache / "wide")))
    retriever = load_for_encoding(config, "fp32")
    dataset = open_dataset(generated(cache / "generated", arguments.rows), [], tokenization=tokenization_of(retriever))
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32")
    ties, process, figures, actors = np.arange(plan.rows), psutil.Process(), {}, ActorPool(2, 2)
    for kind, memory in {"small": {"object_store_memory": SMALL_STORE}, "usual": {}}.items():
        ray.init(address="local", num_cpus=4, log_to_driver=False, **memory)
        before = process.memory_info().rss
        with watching("MapBatches(PoolActor)") as peak:
            work = StoreWriter(cache / kind, plan)
            store = encode_store(work, config, retriever, dataset, actors.encode)
        figures[f"{kind} grown"], figures[f"{kind} actor"] = (process.memory_info().rss - before) / 1e6, peak["memory"]
        ends = sorted(file.stat().st_mtime for file in store.path.glob("*/*.embeddings.npy"))
        figures[f"{kind} speed"] = (len(store) - plan.shard_rows) / (ends[-1] - ends[0])
        queries = store.read(np.arange(QUERIES) * 7 % plan.rows)
        actors.search(store, queries[:1], K, ties)  # starts processes, compiles
        with watching("ray::PoolActor") as peak:
            began = time.perf_counter()
            actors.search(store, queries, K, ties)
            figures[f"{kind} search"], figures[f"{kind} searcher"] = time.perf_counter() - began, peak["memory"]
        summary = ray._private.internal_api.memory_summary(ray.get_runtime_context().gcs_address, stats_only=True)
        figures[f"{kind} spilled"] = float("Spilled" in summary)
        ray.shutdown()
        kept = [*store.path.rglob("*.npy"), *Path(str(dataset.location)).rglob("*.npy")]
        figures["gigabytes"] = sum(file.stat().st_size for file in kept) / 1e9
        shutil.rmtree(store.path)
    return figures


SCENARIOS = {"speed": speed, "loss": loss, "pool": pool, "large": large}


def in_a_process(scenario: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run a scenario in a process with its own cache."""
    words = ["--scenario", scenario, "--texts", str(arguments.texts), "--rows", str(arguments.rows)]
    return result_of([__file__, *words], arguments.scratch)


def ends_of(arguments: argparse.Namespace) -> dict[str, End]:
    """Return all results of encoding."""
    results: dict[str, End] = {}
    got = in_a_process("speed", arguments)
    name = f"{arguments.texts:,} paragraphs of SQuAD, one thread"
    results[f"{name}: sentence-transformers, texts a processor second"] = reported(got["theirs rate"])
    for precision, (ratio, cosine) in {"fp32": (1.3, 0.99999), "bf16": (3.0, 0.999), "int8": (2.2, 0.99)}.items():
        if f"{precision} rate" not in got:
            continue
        results[f"{name}, {precision}: texts a processor second"] = reported(got[f"{precision} rate"])
        for what, least in (("ratio", ratio), ("cosine", cosine)):
            value, title = got[f"{precision} {what}"], {"ratio": "speed", "cosine": "lowest cosine"}[what]
            results[f"{name}, {precision}: {title} to sentence-transformers'"] = at_least(value, least)
    if arguments.sections == "speed":
        return results
    got = in_a_process("loss", arguments)
    for dtype in ("fp32", "fp16", "int8"):
        away = got[f"{dtype} ndcg"] - TRUTH
        target, holds = ("within 0.002", abs(away) <= 0.002) if dtype == "fp32" else ("reported", True)
        results[f"SciFact: nDCG@10 kept as {dtype}, less {TRUTH}"] = End(away, target, holds)
        results[f"SciFact: mean cosine lost by {dtype}"] = reported(1 - got[f"{dtype} cosine"])
    got = in_a_process("pool", arguments)
    ratio = got["pool"] / got["alone"]
    results["an actor / this process, at as many threads"] = at_least(ratio, 0.9)
    results["an actor writes the bytes of this process"] = End(got["same"], "yes (1)", got["same"] == 1)
    results["a pool's start and end, in a session (s)"] = reported(got["start"])
    got = in_a_process("large", arguments)
    name = f"{got['gigabytes']:.1f} GB of tokens and embeddings, object store 100 MB"
    for what, ratio in {
        "encoding": got["small speed"] / got["usual speed"],
        f"searching {QUERIES} queries, k = {K:,}": got["usual search"] / got["small search"],
    }.items():
        results[f"{name}: speed of {what} / with the usual one"] = at_least(ratio, 0.5)
    results[f"{name}: encoding, rows a second"] = reported(got["small speed"])
    results[f"{name}: searching, seconds"] = reported(got["small search"])
    results[f"{name}: driver memory grown by encoding (MB)"] = End(
        got["small grown"], "under 300", got["small grown"] < 300
    )
    for who in ("actor", "searcher"):
        most = got[f"small {who}"]
        results[f"{name}: memory of one {who} (MB)"] = End(most, "under 1000", most < 1000)
    results[f"{name}: something was spilled to disk (1)"] = reported(got["small spilled"])
    return results


def main() -> None:
    """Run the scenarios in processes, or run one of them."""
    own = parser(__doc__ or "")
    own.add_argument("--texts", type=int, default=600, metavar="N", help="paragraphs of SQuAD (default: 600)")
    own.add_argument("--rows", type=int, default=250_000, metavar="N", help="of the generated corpus")
    own.add_argument("--scratch", type=Path, metavar="DIR", help="where caches are made (default: the system's)")
    own.add_argument("--sections", choices=("speed", "all"), default="all", help="speed alone takes 3 minutes")
    own.add_argument("--scenario", choices=SCENARIOS, help=argparse.SUPPRESS)
    add_device(own)
    arguments = own.parse_args()
    check_device(arguments.device)
    if arguments.device == "cuda":
        report("retrieval: encode, an encoder of MiniLM's shape", on_a_gpu(arguments), arguments.json)
    elif arguments.scenario:
        print(json.dumps(SCENARIOS[arguments.scenario](arguments)))
    else:
        report("retrieval: encode", ends_of(arguments), arguments.json)


if __name__ == "__main__":
    main()
