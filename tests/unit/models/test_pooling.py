"""Pooling, compared with loops over single texts."""

import pytest
import torch

from raytriever.models.pooling import MODES, pool

MASKS = {"right": [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], "left": [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]]}


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("left_out", [0, 1])
def test_pooling_uses_only_the_tokens_of_a_text(side: str, dtype: torch.dtype, left_out: int) -> None:
    mask = torch.tensor(MASKS[side])
    states = torch.randn(3, 4, 5, generator=torch.manual_seed(0)).to(dtype)
    own = [states[i][mask[i].bool()].float()[left_out:] for i in range(3)]
    weights = [torch.arange(1 + left_out, 1 + left_out + len(rows)).float()[:, None] for rows in own]
    expected = {
        "mean": torch.stack([rows.mean(0) for rows in own]),
        "cls": torch.stack([rows[0] for rows in own]),
        "last": torch.stack([rows[-1] for rows in own]),
        "max": torch.stack([rows.max(0).values for rows in own]),
        "mean_sqrt_len": torch.stack([rows.sum(0) / len(rows) ** 0.5 for rows in own]),
        "weightedmean": torch.stack([(rows * w).sum(0) / w.sum() for rows, w in zip(own, weights, strict=True)]),
    }
    assert expected.keys() == MODES.keys()
    for name, vectors in expected.items():
        for count in (left_out, torch.full((3,), left_out)):
            pooled = pool(states, mask, name, count)
            assert pooled.dtype == torch.float32
            torch.testing.assert_close(pooled, vectors)
    joined = pool(states, mask, "last+mean", left_out)
    torch.testing.assert_close(joined, torch.cat([expected["last"], expected["mean"]], 1))


def test_a_text_without_tokens_has_a_finite_vector() -> None:
    states = torch.randn(1, 2, 3)
    for name in MODES:
        assert pool(states, torch.tensor([[1, 1]]), name, 2).isfinite().all()
