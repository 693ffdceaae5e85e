"""The faster layers on a CPU agree with the layers that they replace."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raytriever.encoding import loading
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import ATTENTION, PackedLinear, load_for_encoding, speed_up
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.models.retriever import Retriever, load_retriever

sys.path.append(str(Path(__file__).parents[2] / "support"))
from directories import written
from tiny_models import text_of

TEXTS = ["a" * n for n in (1, 5, 5, 30, 61)]


@pytest.fixture
def retriever(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder)))


def test_fp32_agrees_up_to_rounding(retriever: Retriever) -> None:
    plain = encode_texts(retriever, TEXTS, "passage")
    assert any(isinstance(module, PackedLinear) for module in speed_up(retriever).modules())
    assert not any(type(module) is nn.Linear for module in retriever.query.backbone.encoder.modules())
    np.testing.assert_allclose(encode_texts(retriever, TEXTS, "passage"), plain, atol=1e-6)


@pytest.fixture(params=[False, True], ids=["vectors", "matrix units"])
def _processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the attention of either kind of processor with bf16; without bf16, torch's is kept."""
    monkeypatch.setattr(loading, "has_matrix_units", lambda: request.param)


@pytest.mark.usefixtures("_processor")
def test_bf16_is_as_close_to_fp32_as_before(retriever: Retriever) -> None:
    exact = encode_texts(retriever, TEXTS, "passage")
    retriever.to(torch.bfloat16)
    plain = encode_texts(retriever, TEXTS, "passage")
    speed_up(retriever)
    has_bf16 = choose_precision(None, torch.device("cpu")) == "bf16"
    assert retriever.query.backbone.config._attn_implementation == (ATTENTION if has_bf16 else "sdpa")
    fast = encode_texts(retriever, TEXTS, "passage")
    away, away_before = (1 - (result * exact).sum(1) for result in (fast, plain))
    assert away.max() < 2 * away_before.max()
    assert away.max() < 1e-3


@pytest.mark.usefixtures("_processor")
def test_padding_is_not_attended_to(retriever: Retriever) -> None:
    speed_up(retriever.to(torch.bfloat16))
    one_by_one = np.concatenate([encode_texts(retriever, [text], "passage") for text in TEXTS])
    np.testing.assert_allclose(encode_texts(retriever, TEXTS, "passage"), one_by_one, atol=2e-2)
    assert abs(one_by_one[0] - one_by_one[3]).max() > 5e-2  # so that the tolerance tells texts apart


@pytest.mark.usefixtures("_processor")
def test_local_attention_stays_local(tmp_path: Path) -> None:
    written("modernbert", "mean", positions=256, max_length=256)(tmp_path / "model")
    config, texts = ModelConfig(str(tmp_path / "model")), [text_of(60, seed=seed) for seed in range(3)]
    exact = load_retriever(config)
    wide = load_retriever(config)
    for layer in wide.query.backbone.layers:
        layer.attention_type = "full_attention"
    fast = encode_texts(load_for_encoding(config, "bf16", torch.device("cpu")), texts, "passage")
    away, away_without_a_window = (
        abs(fast - encode_texts(retriever, texts, "passage")).max() for retriever in (exact, wide)
    )
    assert away < 0.2 * away_without_a_window
