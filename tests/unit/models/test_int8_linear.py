"""Linear layers of 8-bit integers: exact products, the layers around them, and what has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from directories import written
from numpy import ndarray
from torch import nn

from raytriever.encoding.corpus import plan_embeddings
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import ConfigError
from raytriever.integer_vectors import multiplies_bytes
from raytriever.models.config import ModelConfig
from raytriever.models.cpu.int8_linear import LARGEST, Int8FeedForward, Int8Linear
from raytriever.models.precision import choose_precision

CPU = torch.device("cpu")
TEXTS = ["a" * n for n in (1, 5, 30, 61, 2, 17)]
BYTES = [False, True] if multiplies_bytes() else [False]


def integers_of(rows: torch.Tensor) -> tuple[ndarray, ndarray]:
    """Return the integers of each row, as the definition has them, and the factors of the rows."""
    values = rows.numpy()
    largest = abs(values).max(1).astype(np.float32)
    factors = np.divide(np.float32(LARGEST), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(values * factors[:, None]).astype(np.int64), largest / np.float32(LARGEST)


def literal(states: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
    """Return the layer by products in int64."""
    left, factors = integers_of(states)
    weight = linear.weight.detach()
    scales = weight.abs().amax(1) / LARGEST
    right = (weight / scales.where(scales > 0, 1)[:, None]).round().numpy().astype(np.int64)
    sums = (left @ right.T).astype(np.float32)
    bias = np.float32(0) if linear.bias is None else linear.bias.detach().numpy()
    return torch.from_numpy((sums * scales.numpy()) * factors[:, None] + bias)


@pytest.mark.parametrize("as_bytes", BYTES)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "bias"),
    [(1, 8, 16, True), (50, 384, 48, True), (7, 21, 19, False), (97, 900, 16, True)],
)
def test_results_are_those_of_int64(rows: int, inputs: int, outputs: int, bias: bool, as_bytes: bool) -> None:
    torch.manual_seed(rows)
    linear, states = nn.Linear(inputs, outputs, bias), torch.randn(rows, inputs) * torch.logspace(-3, 3, rows)[:, None]
    torch.testing.assert_close(Int8Linear(linear, as_bytes)(states), literal(states, linear), rtol=0, atol=0)


@pytest.mark.parametrize("as_bytes", BYTES)
def test_sums_do_not_saturate(as_bytes: bool) -> None:
    linear = nn.Linear(512, 32)
    nn.init.constant_(linear.bias, 0)
    for sign in (1, -1):
        nn.init.constant_(linear.weight, sign * 127.0)
        states = torch.full((6, 512), 127.0)
        exact = torch.full((6, 32), sign * 512.0 * 127 * 127)
        torch.testing.assert_close(Int8Linear(linear, as_bytes)(states), exact, rtol=0, atol=0)


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


@pytest.mark.parametrize("as_bytes", BYTES)
def test_two_layers_with_a_gelu_are_three_steps(as_bytes: bool) -> None:
    torch.manual_seed(0)
    up, down, states = nn.Linear(64, 256), nn.Linear(256, 48), 3 * torch.randn(2, 53, 64)
    between = nn.functional.gelu(Int8Linear(up, as_bytes)(states))
    expected = Int8Linear(down, as_bytes)(between)
    results = Int8FeedForward(up, down, as_bytes)(states)
    # A GELU that differs in its last bit may change an integer by one.
    torch.testing.assert_close(results, expected, rtol=0, atol=2e-3)
    assert (results - expected).abs().mean() < 2e-5


def test_embeddings_are_close_to_fp32_and_independent_of_the_batch(tiny_encoder: Path) -> None:
    config = ModelConfig(str(tiny_encoder))
    exact = encode_texts(load_for_encoding(config, "fp32", CPU), TEXTS, "passage")
    retriever = load_for_encoding(config, "int8", CPU)
    assert retriever.summary().endswith("int8")
    embeddings = encode_texts(retriever, TEXTS, "passage")
    assert (embeddings * exact).sum(1).min() > 0.99
    assert not np.array_equal(embeddings, exact)
    backwards = encode_texts(retriever, TEXTS[::-1], "passage")[::-1]
    one_by_one = np.concatenate([encode_texts(retriever, [text], "passage") for text in TEXTS])
    assert np.array_equal(embeddings, backwards)
    assert np.array_equal(embeddings, one_by_one)


def test_threads_do_not_change_a_byte() -> None:
    torch.manual_seed(0)
    layer, states, threads = Int8Linear(nn.Linear(40, 32)), torch.randn(200, 40), torch.get_num_threads()
    alone = layer(states)
    try:
        torch.set_num_threads(3)
        assert torch.equal(layer(states), alone)
    finally:
        torch.set_num_threads(threads)


def test_embeddings_of_two_precisions_have_two_keys(tiny_encoder: Path, tiny_dataset: Path) -> None:
    from raytriever.data.prepare.open import open_dataset

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
