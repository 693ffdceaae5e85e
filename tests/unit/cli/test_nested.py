"""User errors of `train --matryoshka-dims`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ("0", "--matryoshka-dims: '0' is invalid; give whole numbers from 1, separated by commas, as in 256,128,64"),
        ("16,x", "--matryoshka-dims: '16,x' is invalid; give whole numbers from 1"),
        ("8,16,4", "--matryoshka-dims: '8,16,4' is invalid; give each once, in order: 16,8,4"),
        ("64,16", "--matryoshka-dims: asks for 64 components, but embeddings have 32; give at most 32"),
    ],
)
def test_training_refuses(
    error_line: Callable[..., str], letters: Path, tiny_encoder: Path, dims: str, expected: str
) -> None:
    words = ["--dataset", letters, "--model", tiny_encoder, "--output", "run", "--matryoshka-dims", dims]
    assert expected in error_line("train", *words)
