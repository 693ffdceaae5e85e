"""MW as it trains on a GPU: unit length, bf16 operands and the kernel, on a sham device; its launches and waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from examples import Example, example
from reference_losses import reference_loss
from sham_device import CUDA, Counts, values

from raytriever.losses import scores as panels
from raytriever.losses.batch import BatchIds
from raytriever.losses.config import LOSS_NAMES, LossConfig
from raytriever.losses.distributed import ALONE
from raytriever.losses.registry import build_loss
from raytriever.losses.relevance import gather_relevance

TAU = 0.0078125  # a power of two, so that embeddings divided by it are rounded as they are


def unit(seed: int, **sizes: int) -> Example:
    sample = example(seed, **sizes)
    queries, passages = (torch.nn.functional.normalize(x.detach().float()) for x in (sample.queries, sample.passages))
    return Example(queries, passages, sample.ids)


def step(sample: Example, config: LossConfig, counts: Counts, unit_length: bool = True) -> list[torch.Tensor]:
    """The loss and its gradients by queries and passages; counts of the second step, without what is made once."""
    relevance = gather_relevance(sample.ids, ALONE, CUDA, both_ways=config.both_ways)
    loss = build_loss(config, unit_length).to(CUDA)
    for _ in range(2):
        inputs = [x.to(CUDA).requires_grad_() for x in (sample.queries, sample.passages)]
        counts.reset()
        value = loss(*inputs, replace(sample.ids, relevance=relevance)).value
        value.backward()
    return [values(x).double() for x in (value, *(one.grad for one in inputs))]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_kernel_gives_the_loss_in_float64(precision: str, sham: Counts) -> None:
    sample = unit(0, batch=24, hard=5, positives=2, width=32)
    config = LossConfig("mw", TAU, loss_precision=precision)
    ours = step(sample, config, sham)
    rounded = [x.bfloat16() if precision == "bf16" else x for x in (sample.queries, sample.passages)]
    inputs = [x.double().requires_grad_() for x in rounded]
    value = reference_loss(config, *inputs, sample.ids)
    exact = [value.detach(), *torch.autograd.grad(value, inputs)]
    # The panel, and the excluded pairs, whose derivatives nobody reads.
    assert [name for name in sham.operators.elements() if name.startswith("walk")] == [
        f"walk_{'bfloat16' if precision == 'bf16' else 'float32'}_shared",
        "walk_float32_shared",
    ]
    torch.testing.assert_close(ours[0], exact[0], rtol=2e-6, atol=0)
    for one, other in zip(ours[1:], exact[1:], strict=True):
        tolerance = 2.0**-8 if precision == "bf16" else 1e-5
        assert float((one - other).abs().max() / other.abs().max()) < tolerance


ONE_WAIT = ["to the host losses/loss.py"]


def waits(counts: Counts) -> list[str]:
    """Return the places in the losses at which the host waited for the device."""
    return [line.split(":")[0] for line in counts.syncs.elements() if "losses/" in line]


def test_embeddings_of_length_one_make_the_host_wait_for_nothing(sham: Counts) -> None:
    sample = unit(1, batch=24, hard=5, positives=2, width=32)
    for name in LOSS_NAMES:
        step(sample, LossConfig(name, 0.01), sham)
        assert not waits(sham), name
    step(sample, LossConfig("mw", 0.01, learn_temperature=True), sham)
    assert waits(sham) == ONE_WAIT


@pytest.mark.fast_every(5)
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_other_embeddings_make_the_host_wait_once_for_all_widths(name: str, sham: Counts) -> None:
    batch = example(2, batch=20, hard=3, positives=3, width=8)
    sample = Example(batch.queries.detach().float(), batch.passages.detach().float(), batch.ids)
    temperature = 0.01 if name == "triplet" else 0.1
    for config in (LossConfig(name, temperature), LossConfig(name, temperature, matryoshka_dims="4,2")):
        step(sample, config, sham, unit_length=False)
        assert waits(sham) == ONE_WAIT


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_an_embedding_that_is_not_finite_shows_in_the_loss(name: str, side: int, wrong: float, sham: Counts) -> None:
    sample = unit(2, batch=24, hard=5, positives=2, width=32)
    (sample.queries, sample.passages)[side][7, 3] = wrong
    assert not bool(torch.isfinite(step(sample, LossConfig(name, 0.01), sham)[0]))


def test_panels_of_bf16_add_to_the_gradient_in_place(sham: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    sample, config = unit(3, batch=24, hard=5, positives=2, width=32), LossConfig("mw", TAU, loss_precision="bf16")
    whole = step(sample, config, sham)
    monkeypatch.setattr(panels, "GPU_PANEL_BYTES", 10 * 4 * len(sample.passages))
    cut = step(sample, config, sham)
    assert sham.operators["addmm"] == 2  # of three panels, the first of which writes
    for one, other in zip(cut, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
    monkeypatch.setattr(panels, "_adds_to_float32", lambda device: False)
    for one, other in zip(step(sample, config, sham), cut, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 * float(other.abs().max()))


@pytest.mark.parametrize(
    ("rows", "candidates", "height"), [(8_192, 49_152, 4_096), (64, 384, 64), (9_000, 1 << 22, 64)]
)
def test_panels_fit_the_tiles_of_a_gpu(rows: int, candidates: int, height: int) -> None:
    assert panels.panel_height(rows, 4 * candidates, "cuda") == height


def test_a_step_has_few_launches(sham: Counts) -> None:
    """As `--loss-precision bf16 --similarity cosine` trains with one positive a query and no document twice."""
    drawn, documents = unit(4, batch=64, hard=5, positives=1, width=32), torch.arange(384)
    sample = Example(drawn.queries, drawn.passages, BatchIds(torch.arange(64), documents[:64, None], documents))
    step(sample, LossConfig("mw", 0.01, loss_precision="bf16"), sham)
    launches = sum(number for line, number in sham.launches.items() if line.startswith("losses/"))
    assert launches == 59, sham.table(200)
