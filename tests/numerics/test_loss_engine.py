"""The engine: nothing of the score matrix's size when it streams, the same numbers as when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from batch_ids import BatchIds, build_loss
from processes import run_python
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raytriever.losses import score_matrix as panels
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES

QUERIES, HARD, DIM = 256, 5, 16


class Largest(TorchDispatchMode):
    """The storage of the largest tensor that any operation returns, in elements."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                stored = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.elements = max(self.elements, stored)
        return out


def run(name: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(QUERIES, DIM, generator=generator).requires_grad_()
    passages = torch.randn(QUERIES * (1 + HARD), DIM, generator=generator).requires_grad_()
    positives = torch.stack([torch.arange(QUERIES), torch.arange(QUERIES) + QUERIES], 1)
    ids = BatchIds(torch.arange(QUERIES), positives, torch.arange(len(passages)))
    # Few cells, so that MW's grid is small compared with the matrix: it does not grow with the batch.
    config = LossConfig(loss=name, temperature=5.0, distribution_weight=0.1)
    value = build_loss(config)(queries, passages, ids).value
    value.backward()
    return [value.detach(), queries.grad, passages.grad]


@pytest.mark.fast_every(5)
@pytest.mark.parametrize("name", [*LOSS_NAMES, "mw+infonce"])
def test_streaming_never_holds_the_score_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = QUERIES * QUERIES * (1 + HARD)
    with Largest() as whole:
        expected = run(name)
    assert whole.elements >= scores
    monkeypatch.setattr(panels, "PANEL_BYTES", 10 * 4 * QUERIES * (1 + HARD))
    with Largest() as streamed:
        out = run(name)
    assert streamed.elements <= scores // 6
    for ours, other in zip(out, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=2e-5, atol=2e-6)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_autocast_does_not_reach_the_scores(name: str) -> None:
    expected = run(name)
    with torch.autocast("cpu", torch.bfloat16):
        for ours, other in zip(run(name), expected, strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)


# In a process of its own: the checks must be in place before the losses are imported, and only there.
CHECKED = """
import sys
from pathlib import Path
from jaxtyping import install_import_hook
root = Path(sys.argv[1])
modules = [".".join(p.relative_to(root).with_suffix("").parts) for p in (root / "raytriever/losses").rglob("*.py")]
# What numba compiles has no annotations and may not be wrapped.
modules.remove("raytriever.losses.mw.cpu_kernel")
install_import_hook(modules, "beartype.beartype")
sys.path.append(sys.argv[2])
from examples import example
from batch_ids import build_loss
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES
for name in LOSS_NAMES:
    made = example(0)
    loss = build_loss(LossConfig(loss=name, temperature=0.5, distribution_weight=0.1))
    loss(made.queries, made.passages, made.ids).value.backward()
try:
    loss(made.queries[:2], made.passages, made.ids)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_annotated_shapes_hold() -> None:
    here = Path(__file__).parent
    root = here.parent.parent / "platform"
    done = run_python("-c", CHECKED, root, here.parent / "support", cwd=here)
    assert done.stdout.split() == ["LossInputError"]
