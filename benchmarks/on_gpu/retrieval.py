"""Encoding, exact search and mining, against the forward pass alone and products with `torch.topk` on resident data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

from ends import End, reported
from on_gpu.measuring import Cases, Figures, at_least, at_most, peak_gb, seconds_of
from on_gpu.models import contents, words_of, write_model
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import move
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.index.exact_top_k import Corpus, top_k
from raytriever.retrieval.index.rank_keys import TieOrder
from raytriever.retrieval.mining.candidate_search import ArrayEmbeddings, Embeddings
from raytriever.retrieval.mining.miner import MiningResult, mine
from raytriever.retrieval.mining.mining_settings import MiningConfig

# Least fraction of the rate of the forward pass, by shape.
RATES = {"minilm": 0.6, "xlm-r-large": 0.9}


@dataclass(frozen=True, eq=False)
class Size:
    """Sizes of the measurements.

    Args:
        shapes: of the encoders, with the number of texts that each encodes.
        longest: tokens of a text, at most.
        documents: of the search.
        queries: of the search.
        dim: of the embeddings.
        k: numbers of documents that a search returns, and the most time of each, in that of products and `torch.topk`.
        depth: documents of a query that mining chooses its negatives from.
    """

    shapes: dict[str, int]
    longest: int
    documents: int
    queries: int
    dim: int
    k: dict[int, float]
    depth: int


SIZES = {
    "full": Size({"minilm": 200_000, "xlm-r-large": 24_000}, 256, 1_000_000, 10_000, 384, {10: 1.5, 1_000: 2}, 100),
    "short": Size({"minilm": 60_000, "xlm-r-large": 6_000}, 256, 1_000_000, 10_000, 384, {10: 1.5, 1_000: 2}, 100),
    "tiny": Size({"tiny": 50}, 16, 300, 20, 16, {5: 1.5}, 20),
}


def cases(device: torch.device, size: str, scratch: Path) -> Cases:
    """Yield encoding of each shape, search and mining."""
    sizes = SIZES[size]
    for shape, texts in sizes.shapes.items():
        yield f"encode-{shape}", encoding(scratch, shape, texts, sizes.longest, device)
    yield "search", search(sizes, device)
    yield "mine", mining(sizes, device)


def encoding(scratch: Path, shape: str, count: int, longest: int, device: torch.device) -> Figures:
    """Compare encoding texts, tokenizer and copies included, with the forward pass of batches on the device."""
    directory = write_model(scratch, shape, device)
    retriever = load_for_encoding(ModelConfig(str(directory), passage_length=longest), "bf16", device)
    tokens = contents(count, longest, seed=0)
    texts = [words_of(token) for token in tokens]
    encode_texts(retriever, texts[: max(1, count // 20)], "passage")
    began = time.perf_counter()
    encode_texts(retriever, texts, "passage")
    texts_a_second = count / (time.perf_counter() - began)
    yield f"{shape}: encode, texts a second", reported(texts_a_second)
    began = time.perf_counter()
    retriever.contents(texts, "passage")
    yield f"{shape}: tokenising alone, texts a second", reported(count / (time.perf_counter() - began))
    inputs = retriever.assemble(tokens, "passage")
    rows = retriever.batches(inputs, retriever.token_budget())
    # A tenth of the batches, spread over the lengths, with the same number of tokens a text.
    some = rows[:: max(1, len(rows) // 10)]
    ids = [[inputs[row] for row in part] for part in some]
    parts = [retriever.pack(texts, "passage") if retriever.packs else retriever.pad(texts) for texts in ids]
    resident = [move(part, lambda tensor: tensor.to(device)) for part in parts]

    def forward() -> None:
        with torch.inference_mode():
            for batch in resident:
                retriever.encode(batch, "passage")

    bare = sum(map(len, some)) / seconds_of(forward, device, repeats=3)
    yield f"{shape}: forward pass alone, texts a second", reported(bare)
    fraction = texts_a_second / bare
    yield f"{shape}: encode / forward pass alone (x)", at_least(fraction, RATES.get(shape, 0), device)


def search(sizes: Size, device: torch.device) -> Figures:
    """Compare exact search in documents on the device, and upload included, with products and `torch.topk`."""
    documents, queries = vectors(sizes)
    ties = np.arange(sizes.documents)
    right = torch.from_numpy(documents).to(device, torch.bfloat16)
    left = torch.from_numpy(queries).to(device, torch.bfloat16)
    corpus = resident(documents, device)
    for k, most in sizes.k.items():

        def plain(k: int = k) -> list[torch.Tensor]:
            return [torch.topk(rows @ right.T, k).indices for rows in left.split(1_024)]

        def ours(k: int = k) -> tuple[ndarray, ndarray]:
            return corpus.top_k(queries, k)

        name = f"search {sizes.queries:,} x {sizes.documents:,} x {sizes.dim}, k = {k}"
        bare, seconds = seconds_of(plain, device, repeats=3), seconds_of(ours, device, repeats=3)
        yield f"{name}: mm and topk in bf16 (s)", reported(bare)
        yield f"{name}: raytriever, exact (s)", reported(seconds)
        yield f"{name}: raytriever / mm and topk (x)", at_most(seconds / bare, most, device)
        yield f"{name}: memory (GB)", reported(peak_gb(ours, device))
        exact = _is_exact(queries, documents, ours()[1])
        yield f"{name}: rankings of 50 queries are those of float64", End(float(exact), "1", exact)
    k = min(sizes.k)
    whole = seconds_of(lambda: top_k(queries, documents, k, ties, device=device), device, repeats=1)
    yield f"search, k = {k}: raytriever, upload included (s)", reported(whole)


def resident(documents: ndarray, device: torch.device) -> Corpus:
    """Return a corpus that its first search copies to the device."""
    return Corpus(lambda: [(0, documents)], TieOrder.of(np.arange(len(documents))), device)


def mining(sizes: Size, device: torch.device) -> Figures:
    """Compare mining of five hard negatives a query with the search that it contains."""
    documents, queries = vectors(sizes)
    rows = np.arange(sizes.queries)
    texts = [f"text {number}" for number in range(sizes.documents)]
    dataset = RetrievalDataset(
        "random",
        Documents([str(number) for number in range(sizes.documents)], [""] * sizes.documents, texts),
        Queries([f"q{row}" for row in rows], [f"question {row}" for row in rows]),
        {"train": Judgements(rows, rows, np.ones(len(rows), np.int64))},
    )
    config = MiningConfig(method="dense", num_negatives=5, range_max=sizes.depth)
    embeddings, ties = Embeddings(queries, ArrayEmbeddings(documents)), np.arange(sizes.documents)

    def negatives() -> MiningResult:
        return mine(dataset, "train", config, embeddings=embeddings)

    seconds = seconds_of(negatives, device, repeats=1)
    bare = seconds_of(lambda: top_k(queries, documents, sizes.depth + 1, ties, device=device), device, repeats=1)
    name = f"mine {sizes.queries:,} queries in {sizes.documents:,} documents, depth {sizes.depth}"
    yield f"{name} (s)", reported(seconds)
    yield f"{name}: mining / search alone (x)", reported(seconds / bare)


@cache
def vectors(sizes: Size) -> tuple[ndarray, ndarray]:
    """Return unit vectors of documents and queries, made once for all cases."""
    return _unit(sizes.documents, sizes.dim, 0), _unit(sizes.queries, sizes.dim, 1)


def _unit(count: int, dim: int, seed: int) -> ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _is_exact(queries: ndarray, documents: ndarray, ranking: ndarray) -> bool:
    some = np.arange(0, len(queries), max(1, len(queries) // 50))
    products = (queries[some].astype(np.float64) @ documents.T.astype(np.float64)).astype(np.float32)
    order = np.argsort(-products, axis=1, kind="stable")[:, : ranking.shape[1]]
    return bool((order == ranking[some]).mean() > 0.9999)  # a float64 sum may round the other way in its last bit
