"""Buckets: embeddings and order equal those of single texts, and the cut is the cheapest."""

from __future__ import annotations

import gzip
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy import ndarray

from raytriever.models import packing
from raytriever.models.config import ModelConfig
from raytriever.models.packing import BUCKET_COST, Buckets, cut_points, fill_buckets, token_cost
from raytriever.models.retriever import load_retriever


def pad(rows: list[ndarray]) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    return {"input_ids": torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64)}


def make_buckets(lengths: list[int], most: int | None = None) -> Buckets:
    """Return buckets of texts with these lengths; text n consists of the token n + 1."""
    return fill_buckets([np.full(length, row + 1) for row, length in enumerate(lengths)], pad, most)


def cost(lengths: ndarray, cuts: list[int]) -> int:
    return sum(int(token_cost(part.max())) * len(part) + BUCKET_COST for part in np.split(lengths, cuts))


@pytest.mark.parametrize("count", [1, 15, 16, 40, 100])
def test_order_and_values_equal_those_of_single_texts(tiny_encoder: Path, count: int) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    rng = np.random.default_rng(count)
    texts = ["b" * int(n) for n in rng.integers(1, 60, count)]
    with torch.inference_mode():
        queries, passages = retriever(retriever.tokenize(texts, "query"), retriever.tokenize(texts[::-1], "passage"))
        alone = torch.cat([retriever.encode(retriever.pad(retriever.token_ids([t], "query")), "query") for t in texts])
    torch.testing.assert_close(queries, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(passages, alone.flip(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(60))
def test_no_other_cut_is_cheaper(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(1, 120, rng.integers(1, 11)) * rng.choice([1, 4]))
    monkeypatch.setattr(packing, "BUCKETS", int(rng.integers(1, 5)))
    monkeypatch.setattr(packing, "LEVELS", 1_000)  # every length is a level
    others = (cuts for more in range(packing.BUCKETS) for cuts in combinations(range(1, len(lengths)), more))
    cuts = cut_points(lengths)
    assert len(cuts) < packing.BUCKETS
    assert cost(lengths, cuts) == min(cost(lengths, list(other)) for other in others)


def test_many_distinct_lengths_have_a_nearly_cheapest_cut() -> None:
    lengths = np.sort(np.random.default_rng(0).integers(3, 8_192, 3_000))
    even = [len(part) for part in np.array_split(lengths, packing.BUCKETS)]
    assert cost(lengths, cut_points(lengths)) <= cost(lengths, np.cumsum(even)[:-1].tolist())


def test_texts_of_one_length_share_a_bucket_unless_a_split_saves_tokens() -> None:
    assert cut_points(np.array([7] * 1_000)) == []
    assert cut_points(np.array([3, 4, 5])) == []
    assert cut_points(np.array([3] * 100 + [300])) == [100]


@pytest.mark.parametrize("most", [None, 1, 50, 400])
def test_every_text_is_in_one_bucket_at_its_index(most: int | None) -> None:
    lengths = np.random.default_rng(1).integers(1, 90, 70).tolist()
    result = make_buckets(lengths, most)
    laid = torch.cat([part["input_ids"][:, 0] for part in result.buckets])[result.indices]
    assert laid.tolist() == list(range(1, 71))
    tokens = [int((part["input_ids"] > 0).sum()) for part in result.buckets]
    assert sum(tokens) == sum(lengths)
    if most:
        # One text at least; otherwise what a fair share of the part's texts takes, a text more where it is uneven.
        assert all(len(ids) == 1 or ids[:-1].numel() <= most for ids in (part["input_ids"] for part in result.buckets))


def test_equal_lengths_have_equal_cuts() -> None:
    lengths = np.random.default_rng(2).integers(1, 200, 300).tolist()
    one, other = make_buckets(lengths), make_buckets(lengths)
    assert torch.equal(one.indices, other.indices)
    for part, again in zip(one.buckets, other.buckets, strict=True):
        assert torch.equal(part["input_ids"], again["input_ids"])


@pytest.fixture(scope="module")
def squad_lengths(data_packs: Path) -> list[list[int]]:
    """Tokens of contents, queries and passages, of 2,560 of SQuAD's pairs."""
    retriever = load_retriever(ModelConfig("minilm"))
    texts = {}
    for name in ("queries", "corpus"):
        with gzip.open(data_packs / "squad" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts[name] = {
                row["_id"]: f"{row.get('title', '')} {row['text']}".strip() for row in map(json.loads, lines)
            }
    judged = (data_packs / "squad" / "qrels" / "train.tsv").read_text().splitlines()[1:]
    pairs = [judged[row].split("\t") for row in np.random.default_rng(0).permutation(len(judged))[:2_560]]
    return [
        [len(content) for content in retriever.contents([texts[name][pair[column]] for pair in pairs], side)]
        for column, (name, side) in enumerate((("queries", "query"), ("corpus", "passage")))
    ]


@pytest.mark.data
@pytest.mark.parametrize(("query_length", "passage_length"), [(64, 256), (32, 48), (32, 128)])
@pytest.mark.parametrize("batch", [64, 256])
def test_less_than_a_tenth_of_squad_is_padding(
    squad_lengths: list[list[int]], batch: int, query_length: int, passage_length: int
) -> None:
    tokens = slots = 0
    for lengths, most in zip(squad_lengths, (query_length, passage_length), strict=True):
        for start in range(0, len(lengths), batch):
            cut = [min(length + 2, most) for length in lengths[start : start + batch]]
            tokens += sum(cut)
            slots += sum(part["input_ids"].numel() for part in make_buckets(cut).buckets)
    assert tokens > 20_000
    assert 1 - tokens / slots < 0.1
