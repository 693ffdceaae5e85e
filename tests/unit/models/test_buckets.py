"""Bucketed texts are encoded as each would be alone, and in order."""

from pathlib import Path

import numpy as np
import pytest
import torch

from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever


@pytest.mark.parametrize("count", [1, 15, 16, 40, 100])
def test_order_and_values_are_those_of_single_texts(tiny_encoder: Path, count: int) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    rng = np.random.default_rng(count)
    texts = ["b" * int(n) for n in rng.integers(1, 60, count)]
    with torch.inference_mode():
        queries, passages = retriever(retriever.tokenize(texts, "query"), retriever.tokenize(texts[::-1], "passage"))
        alone = torch.cat([retriever.encode(retriever.pad(retriever.token_ids([t], "query")), "query") for t in texts])
    torch.testing.assert_close(queries, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(passages, alone.flip(0), atol=1e-5, rtol=0)


def test_padding_falls_to_a_fraction(tiny_encoder: Path) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    texts = ["c" * n for n in range(1, 61)]
    own = sum(map(len, retriever.token_ids(texts, "query")))
    parts = retriever.tokenize(texts, "query").parts
    assert len(parts) == 3
    assert sum(part["input_ids"].numel() for part in parts) < 1.4 * own
    assert retriever.pad(retriever.token_ids(texts, "query"))["input_ids"].numel() > 1.8 * own
