"""The memory that losses, a guide and a search take on a GPU, counted on the sham device: none grows with all pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sham_device import CUDA, Counts, sham_device
from torch import Tensor
from torch.nn import functional

from raytriever.index.exact import top_k
from raytriever.losses import scores as panels
from raytriever.losses.batch import BatchIds
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import ALONE
from raytriever.losses.guide import GuideEmbeddings
from raytriever.losses.registry import build_loss
from raytriever.losses.relevance import gather_relevance

QUERIES, PASSAGES, WIDTH, PANEL = 1_024, 2_048, 8, 1 << 18
ALL_SCORES = QUERIES * PASSAGES * 4


def unit(rows: int, seed: int) -> Tensor:
    drawn = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))
    return functional.normalize(drawn, dim=1).to(CUDA)


def peak_of_a_step(counts: Counts, config: LossConfig, guide: GuideEmbeddings | None = None) -> int:
    """Return the most bytes that a loss and its gradient allocate at once."""
    rows = torch.arange(QUERIES)
    ids = BatchIds(rows, rows[:, None], torch.arange(PASSAGES))
    ids = replace(ids, relevance=gather_relevance(ids, ALONE, CUDA))
    loss = build_loss(config, unit_length=True).to(CUDA)
    inputs = [unit(QUERIES, 0).requires_grad_(), unit(PASSAGES, 1).requires_grad_()]
    before = counts.memory
    counts.peak = before
    loss(*inputs, ids, guide=guide).value.backward()
    return counts.peak - before


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("name", ["infonce", "lsepair", "mw"])
def test_a_loss_holds_one_panel_of_scores(name: str, sham: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "GPU_PANEL_BYTES", PANEL)
    peak_of_a_step(sham, LossConfig(name, 0.1))  # tables that do not depend on the batch are kept
    assert peak_of_a_step(sham, LossConfig(name, 0.1)) < ALL_SCORES / 3


@pytest.mark.slow
def test_a_guide_holds_one_panel_of_similarities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "GPU_PANEL_BYTES", PANEL)
    with sham_device() as counts:
        guide = GuideEmbeddings(unit(QUERIES, 2), unit(PASSAGES, 3))
        config = LossConfig("infonce", 0.1, guide="a", guide_margin=0.0)
        # Half of the pairs are masked, and each takes 16 bytes: more than the scores. A wide margin masks none.
        peak = peak_of_a_step(counts, config, replace(guide, passages=guide.passages * 0))
        assert peak < ALL_SCORES / 2


@pytest.mark.slow
def test_a_search_keeps_to_the_free_memory() -> None:
    rng = np.random.default_rng(0)
    documents, queries = (rng.standard_normal((count, 256)).astype(np.float32) for count in (2_000, 300))
    expected = top_k(queries, documents, 100, np.arange(2_000), device=torch.device("cpu"))
    with sham_device() as counts:
        counts.capacity = counts.memory + 16_000_000
        actual = top_k(queries, documents, 100, np.arange(2_000), device=CUDA)
    assert [array.tobytes() for array in actual] == [array.tobytes() for array in expected]
