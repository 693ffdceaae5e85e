"""Linear layers of 8-bit integers: exact products, one scale for each token, and models that have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from directories import written
from torch import nn

from raytriever.core.errors import ConfigError
from raytriever.models.device_and_precision import choose_precision
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.embed_corpus import plan_embeddings
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import LARGEST_STATE, LARGEST_WEIGHT, Int8Linear, load_for_encoding

CPU = torch.device("cpu")
TEXTS = ["a" * n for n in (1, 5, 30, 61, 2, 17)]


def integers_of(rows: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    factors = rows.abs().amax(1, keepdim=True) / largest
    return (rows / factors).round().long(), factors


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "bias"),
    [(1, 8, 16, True), (50, 384, 48, True), (7, 21, 19, False), (97, 900, 1, True)],
)
def test_results_are_those_of_int64(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    torch.manual_seed(rows)
    linear, states = nn.Linear(inputs, outputs, bias), torch.randn(rows, inputs) * torch.logspace(-3, 3, rows)[:, None]
    (left, factors), (right, scales) = (
        integers_of(states, LARGEST_STATE),
        integers_of(linear.weight.detach(), LARGEST_WEIGHT),
    )
    exact = (left @ right.T).float() * scales.T * factors
    if linear.bias is not None:
        exact += linear.bias.detach()
    torch.testing.assert_close(Int8Linear(linear)(states), exact, rtol=0, atol=0)


def test_sums_do_not_saturate() -> None:
    """AVX2 adds pairs of products in 16 bits."""
    linear = nn.Linear(512, 32, bias=False)
    for sign in (1, -1):
        nn.init.constant_(linear.weight, sign * LARGEST_WEIGHT)
        states = torch.full((6, 512), float(LARGEST_STATE))
        exact = torch.full((6, 32), sign * 512.0 * LARGEST_STATE * LARGEST_WEIGHT)
        torch.testing.assert_close(Int8Linear(linear)(states), exact, rtol=0, atol=0)


def test_zeros_and_values_that_are_not_finite() -> None:
    linear = nn.Linear(16, 16)
    with torch.no_grad():
        linear.weight[0] = 0
    states = torch.randn(4, 16)
    states[1], states[2, 3], states[3, 5] = 0, torch.nan, torch.inf
    results = Int8Linear(linear)(states)
    assert torch.equal(results[1], linear.bias)
    assert torch.equal(results[0, 0], linear.bias[0])
    assert results[2].isnan().all()
    assert not results[3].isfinite().any()
    with torch.no_grad():
        linear.weight[3, 3] = torch.nan
    assert Int8Linear(linear)(states)[0, 3].isnan()


def test_a_token_does_not_depend_on_the_others_of_its_batch() -> None:
    torch.manual_seed(0)
    layer, states = Int8Linear(nn.Linear(40, 32)), torch.randn(5, 20, 40)
    together = layer(states)
    assert all(torch.equal(layer(states[:, token]), together[:, token]) for token in range(20))


def test_embeddings_are_close_to_fp32_next_to_any_other_texts(tiny_encoder: Path) -> None:
    config = ModelConfig(str(tiny_encoder))
    exact = encode_texts(load_for_encoding(config, "fp32", CPU), TEXTS, "passage")
    retriever = load_for_encoding(config, "int8", CPU)
    assert retriever.summary().endswith("int8")
    embeddings = encode_texts(retriever, TEXTS, "passage")
    assert (embeddings * exact).sum(1).min() > 0.99
    assert not np.array_equal(embeddings, exact)
    # The attention, in fp32, may sum in another order, and a last bit may change an integer.
    one_by_one = np.concatenate([encode_texts(retriever, [text], "passage") for text in TEXTS])
    np.testing.assert_allclose(one_by_one, embeddings, atol=1e-3)


def test_embeddings_of_two_precisions_have_two_keys(tiny_encoder: Path, tiny_dataset: Path) -> None:
    from raytriever.data.prepare.open_dataset import open_dataset

    config, dataset = ModelConfig(str(tiny_encoder)), open_dataset(tiny_dataset, [])
    plans = [
        plan_embeddings(config, load_for_encoding(config, precision, CPU), dataset, "passage", "fp32")
        for precision in ("fp32", "int8")
    ]
    assert plans[1].precision == "int8"
    assert plans[0].key != plans[1].key
    assert plans[0].encoder != plans[1].encoder


def test_decoders_and_gpus_are_refused_in_one_line(tmp_path: Path) -> None:
    written("qwen3", "lasttoken")(tmp_path)
    with pytest.raises(ConfigError, match="a model of type qwen3 has no int8 layers"):
        load_for_encoding(ModelConfig(str(tmp_path)), "int8", CPU)
    with pytest.raises(ConfigError, match="int8 encodes on a CPU only"):
        choose_precision("int8", torch.device("cuda"))
