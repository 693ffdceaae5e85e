"""The memory that losses and a guide take on a GPU: none grows with all pairs, and none is above the planned bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from batch_ids import BatchIds, build_loss
from torch import Tensor
from torch.nn import functional

from raytriever.losses import score_matrix as panels
from raytriever.losses.false_negative_mask import GuideEmbeddings
from raytriever.losses.loss_settings import LossConfig
from raytriever.training.memory.memory_of_states import WorkerTexts, batch_bytes

QUERIES, PASSAGES, DIM, PANEL = 1_024, 2_048, 8, 1 << 18
ALL_SCORES = QUERIES * PASSAGES * 4


def unit(rows: int, seed: int, cuda: torch.device) -> Tensor:
    sampled = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))
    return functional.normalize(sampled, dim=1).to(cuda)


def peak_of_a_step(config: LossConfig, cuda: torch.device, guide: GuideEmbeddings | None = None) -> int:
    """Return the most bytes that a loss and its gradient allocate at once, the second time: tables are kept."""
    rows = torch.arange(QUERIES)
    relevance = BatchIds(rows, rows[:, None], torch.arange(PASSAGES)).relevance(device=cuda, symmetric=config.symmetric)
    loss = build_loss(config, unit_length=True).to(cuda)
    peak = 0
    for _ in range(2):
        inputs = [unit(QUERIES, 0, cuda).requires_grad_(), unit(PASSAGES, 1, cuda).requires_grad_()]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss(*inputs, relevance, guide=guide).value.backward()
        peak = torch.cuda.max_memory_allocated() - before
    return peak


@pytest.mark.parametrize("name", ["infonce", "lsepair", "mw"])
def test_a_loss_holds_one_panel_of_scores(name: str, cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "GPU_PANEL_BYTES", PANEL)
    peak = peak_of_a_step(LossConfig(name, 0.1), cuda)
    assert peak < ALL_SCORES / 3
    assert peak <= batch_bytes(WorkerTexts(QUERIES, PASSAGES, 1, 32, DIM), "cuda") * 1.02


def test_a_guide_holds_one_panel_of_similarities(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "GPU_PANEL_BYTES", PANEL)
    guide = GuideEmbeddings(unit(QUERIES, 2, cuda), unit(PASSAGES, 3, cuda))
    config = LossConfig("infonce", 0.1, guide="a", guide_margin=0.0)
    # Half of the pairs are masked, and each takes 16 bytes: more than the scores. A wide margin masks none.
    peak = peak_of_a_step(config, cuda, replace(guide, passages=guide.passages * 0))
    assert peak < ALL_SCORES / 2
