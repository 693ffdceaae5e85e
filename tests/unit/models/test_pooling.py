"""Pooling, compared with loops over single texts."""

import pytest
import torch

from raytriever.models.encoder import POOLING

MASKS = {"right": [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], "left": [[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]]}


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_uses_only_the_tokens_of_a_text(side: str, dtype: torch.dtype) -> None:
    mask = torch.tensor(MASKS[side])
    states = torch.randn(3, 4, 5, generator=torch.manual_seed(0)).to(dtype)
    own = [states[i][mask[i].bool()].float() for i in range(3)]
    expected = {
        "mean": torch.stack([rows.mean(0) for rows in own]),
        "cls": torch.stack([rows[0] for rows in own]),
        "last": torch.stack([rows[-1] for rows in own]),
    }
    for name, pool in POOLING.items():
        pooled = pool(states, mask)
        assert pooled.dtype == torch.float32
        torch.testing.assert_close(pooled, expected[name])
