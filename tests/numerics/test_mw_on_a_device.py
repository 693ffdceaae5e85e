"""Losses as they train on a GPU: when the host waits for a simulated one, and the panels of a real one."""

from __future__ import annotations

import pytest
import torch
from batch_ids import build_loss
from examples import Example, example
from simulated_gpu import CUDA, Counts, values

from raytriever.losses import score_matrix as panels
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES


def unit(seed: int, **sizes: int) -> Example:
    sample = example(seed, **sizes)
    queries, passages = (torch.nn.functional.normalize(x.detach().float()) for x in (sample.queries, sample.passages))
    return Example(queries, passages, sample.ids)


def step(sample: Example, config: LossConfig, counts: Counts, unit_length: bool = True) -> list[torch.Tensor]:
    """The loss and its gradients by queries and passages; counts of the second step, without what is made once."""
    relevance = sample.ids.relevance(device=CUDA, symmetric=config.symmetric)
    loss = build_loss(config, unit_length).to(CUDA)
    for _ in range(2):
        inputs = [x.to(CUDA).requires_grad_() for x in (sample.queries, sample.passages)]
        counts.reset()
        value = loss(*inputs, relevance).value
        value.backward()
    return [values(x).double() for x in (value, *(item.grad for item in inputs))]


ONE_WAIT = ["to the host losses/loss.py"]


def waits(counts: Counts) -> list[str]:
    """Return the places in the losses at which the host waited for the device."""
    return [line.split(":")[0] for line in counts.syncs.elements() if "losses/" in line]


def test_embeddings_of_length_one_make_the_host_wait_for_nothing(simulated: Counts) -> None:
    sample = unit(1, batch=24, hard=5, positives=2, dim=32)
    for name in LOSS_NAMES:
        step(sample, LossConfig(name, 0.01), simulated)
        assert not waits(simulated), name
    step(sample, LossConfig("mw", 0.01, learn_temperature=True), simulated)
    assert waits(simulated) == ONE_WAIT


@pytest.mark.fast_every(5)
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_other_embeddings_make_the_host_wait_once_for_all_dims(name: str, simulated: Counts) -> None:
    batch = example(2, batch=20, hard=3, positives=3, dim=8)
    sample = Example(batch.queries.detach().float(), batch.passages.detach().float(), batch.ids)
    temperature = 0.01 if name == "triplet" else 0.1
    for config in (LossConfig(name, temperature), LossConfig(name, temperature, matryoshka_dims="4,2")):
        step(sample, config, simulated, unit_length=False)
        assert waits(simulated) == ONE_WAIT


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_an_embedding_that_is_not_finite_shows_in_the_loss(
    name: str, side: int, wrong: float, simulated: Counts
) -> None:
    sample = unit(2, batch=24, hard=5, positives=2, dim=32)
    (sample.queries, sample.passages)[side][7, 3] = wrong
    assert not bool(torch.isfinite(step(sample, LossConfig(name, 0.01), simulated)[0]))


@pytest.mark.parametrize(
    ("rows", "candidates", "height"), [(8_192, 49_152, 4_096), (64, 384, 64), (9_000, 1 << 22, 64)]
)
def test_panels_fit_the_tiles_of_a_gpu(rows: int, candidates: int, height: int) -> None:
    assert panels.panel_height(rows, 4 * candidates, "cuda") == height
