"""Encoding, exact search and mining, against the forward pass alone and products with `torch.topk` on resident data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy import ndarray

from ends import End
from on_gpu.measuring import peak_gb, seconds_of
from on_gpu.models import contents, words_of, write_model
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.encoding.encode import TOKEN_BUDGET, batches, encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.index.exact.search import top_k
from raytriever.mining.config import MiningConfig
from raytriever.mining.miner import MiningResult, mine
from raytriever.mining.scorers import Embeddings
from raytriever.models.config import ModelConfig
from raytriever.models.packing import move

RATE, SEARCH = 0.85, 1.5


@dataclass(frozen=True)
class Size:
    """Sizes of the measurements.

    Args:
        shapes: of the encoders, with the number of texts that each encodes.
        longest: tokens of a text, at most.
        documents: of the search.
        queries: of the search.
        width: of the embeddings.
        k: numbers of documents that a search returns.
        depth: documents of a query that mining chooses its negatives from.
    """

    shapes: dict[str, int]
    longest: int
    documents: int
    queries: int
    width: int
    k: tuple[int, ...]
    depth: int


SIZES = {
    "full": Size({"minilm": 200_000, "xlm-r-large": 24_000}, 256, 1_000_000, 10_000, 384, (10, 100, 1_000), 100),
    "tiny": Size({"tiny": 50}, 16, 300, 20, 16, (5,), 20),
}


def measure(device: torch.device, size: str) -> dict[str, End]:
    """Return the figures of encoding, search and mining."""
    sizes = SIZES[size]
    ends: dict[str, End] = {}
    with TemporaryDirectory() as scratch:
        for shape, texts in sizes.shapes.items():
            directory = write_model(Path(scratch), shape, device)
            ends |= encoding(directory, shape, texts, sizes.longest, device)
    return ends | search(sizes, device) | mining(sizes, device)


def encoding(directory: Path, shape: str, count: int, longest: int, device: torch.device) -> dict[str, End]:
    """Compare encoding texts, tokenizer and copies included, with the forward pass of batches on the device."""
    retriever = load_for_encoding(ModelConfig(str(directory), passage_length=longest), "bf16", device)
    tokens = contents(count, longest, seed=0)
    texts = [words_of(one) for one in tokens]
    encode_texts(retriever, texts[: max(1, count // 20)], "passage")
    seconds = seconds_of(lambda: encode_texts(retriever, texts, "passage"), device, repeats=1)
    inputs = retriever.assemble(tokens, "passage")
    rows = batches([len(ids) for ids in inputs], TOKEN_BUDGET[device.type])
    # A tenth of the batches, spread over the lengths, with the same number of tokens a text.
    some = rows[:: max(1, len(rows) // 10)]
    ids = [[inputs[row] for row in part] for part in some]
    parts = [retriever.pack(texts, "passage") if retriever.packs else retriever.pad(texts) for texts in ids]
    resident = [move(part, lambda tensor: tensor.to(device)) for part in parts]

    def forward() -> None:
        with torch.inference_mode():
            for batch in resident:
                retriever.encode(batch, "passage")

    texts_a_second = count / seconds
    bare = sum(map(len, some)) / seconds_of(forward, device, repeats=3)
    share = texts_a_second / bare
    is_measured = device.type == "cuda"
    return {
        f"{shape}: encode, texts a second": End(texts_a_second, "reported", True),
        f"{shape}: forward pass alone, texts a second": End(bare, "reported", True),
        f"{shape}: encode / forward pass alone (x)": End(
            share, f"at least {RATE}" if is_measured else "reported", share >= RATE or not is_measured
        ),
    }


def search(sizes: Size, device: torch.device) -> dict[str, End]:
    """Compare exact search, upload included and not, with products and `torch.topk` on resident data."""
    documents, queries = (
        _unit(count, sizes.width, seed) for seed, count in enumerate((sizes.documents, sizes.queries))
    )
    ties = np.arange(sizes.documents)
    resident = torch.from_numpy(documents).to(device, torch.bfloat16)
    left = torch.from_numpy(queries).to(device, torch.bfloat16)
    ends: dict[str, End] = {}
    for k in sizes.k:

        def plain(k: int = k) -> list[torch.Tensor]:
            return [torch.topk(rows @ resident.T, k).indices for rows in left.split(1_024)]

        def ours(k: int = k) -> tuple[ndarray, ndarray]:
            return top_k(queries, documents, k, ties, device=device)

        bare, seconds = seconds_of(plain, device, repeats=3), seconds_of(ours, device, repeats=2)
        is_measured = device.type == "cuda"
        name = f"search {sizes.queries:,} x {sizes.documents:,} x {sizes.width}, k = {k}"
        ends[f"{name}: mm and topk in bf16, resident (s)"] = End(bare, "reported", True)
        ends[f"{name}: raytriever, exact, upload included (s)"] = End(seconds, "reported", True)
        ends[f"{name}: raytriever / mm and topk (x)"] = End(
            seconds / bare,
            f"at most {SEARCH}" if is_measured else "reported",
            seconds / bare <= SEARCH or not is_measured,
        )
        ends[f"{name}: memory (GB)"] = End(peak_gb(ours, device), "reported", True)
        exact = _is_exact(queries, documents, ours()[1])
        ends[f"{name}: rankings of 50 queries are those of float64"] = End(float(exact), "1", exact)
    return ends


def mining(sizes: Size, device: torch.device) -> dict[str, End]:
    """Compare mining of five hard negatives a query with the search that it contains."""
    documents, queries = (
        _unit(count, sizes.width, seed) for seed, count in enumerate((sizes.documents, sizes.queries))
    )
    rows = np.arange(sizes.queries)
    texts = [f"text {number}" for number in range(sizes.documents)]
    dataset = RetrievalDataset(
        "random",
        Documents([str(number) for number in range(sizes.documents)], [""] * sizes.documents, texts),
        Queries([f"q{row}" for row in rows], [f"question {row}" for row in rows]),
        {"train": Judgements(rows, rows, np.ones(len(rows), np.int64))},
    )
    config = MiningConfig(method="dense", num_negatives=5, range_max=sizes.depth)
    embeddings, ties = Embeddings.of(queries, documents), np.arange(sizes.documents)

    def negatives() -> MiningResult:
        return mine(dataset, "train", config, embeddings=embeddings)

    seconds = seconds_of(negatives, device, repeats=1)
    bare = seconds_of(lambda: top_k(queries, documents, sizes.depth + 1, ties, device=device), device, repeats=1)
    name = f"mine {sizes.queries:,} queries in {sizes.documents:,} documents, depth {sizes.depth}"
    return {
        f"{name} (s)": End(seconds, "reported", True),
        f"{name}: mining / search alone (x)": End(seconds / bare, "reported", True),
    }


def _unit(count: int, width: int, seed: int) -> ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _is_exact(queries: ndarray, documents: ndarray, ranking: ndarray) -> bool:
    some = np.arange(0, len(queries), max(1, len(queries) // 50))
    products = (queries[some].astype(np.float64) @ documents.T.astype(np.float64)).astype(np.float32)
    order = np.argsort(-products, axis=1, kind="stable")[:, : ranking.shape[1]]
    return bool((order == ranking[some]).mean() > 0.9999)  # a float64 sum may round the other way in its last bit
