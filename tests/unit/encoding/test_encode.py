"""Encoding keeps the order of the texts; batches follow the token budget."""

from pathlib import Path

import numpy as np
import pytest
import torch

from raytriever.encoding import encode as module
from raytriever.encoding.encode import encode_texts
from raytriever.errors import ModelError
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever


def test_order_and_values_do_not_depend_on_batches(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    rng = np.random.default_rng(1)
    texts = ["a" * int(n) for n in rng.integers(0, 80, 150)]
    one_by_one = np.concatenate([encode_texts(retriever, [text], "passage") for text in texts])
    monkeypatch.setattr(module, "WINDOW", 40)
    monkeypatch.setitem(module.TOKEN_BUDGET, "cpu", 200)
    np.testing.assert_allclose(encode_texts(retriever, texts, "passage"), one_by_one, atol=1e-5)


def test_a_budget_smaller_than_one_text_still_encodes_it() -> None:
    assert module.batches([5, 9, 2], budget=4) == [[1], [0], [2]]


def test_broken_weights_are_refused(tiny_encoder: Path) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    with torch.no_grad():
        next(retriever.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        encode_texts(retriever, ["a"], "query")
