"""Every annotated shape of the losses holds at every call, forward and backward."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: the checks must be in place before the losses are imported, and only there.
CHECKED = """
import sys
from pathlib import Path
from jaxtyping import install_import_hook
root = Path(sys.argv[1])
modules = [".".join(p.relative_to(root).with_suffix("").parts) for p in (root / "raytriever/losses").rglob("*.py")]
# What numba compiles has no annotations and may not be wrapped.
modules.remove("raytriever.losses.mw.compiled")
install_import_hook(modules, "beartype.beartype")
sys.path.append(sys.argv[2])
from examples import example
from batch_ids import build_loss
from raytriever.losses.config import LossConfig
from raytriever.losses.table import LOSS_NAMES
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
    done = subprocess.run(
        [sys.executable, "-c", CHECKED, str(root), str(here.parent / "support")],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["LossInputError"]
