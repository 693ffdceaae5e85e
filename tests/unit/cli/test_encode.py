"""`encode` from the command line, in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raytriever.cli.main import run
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore


def test_a_store_is_written_and_reused(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(letters), "--model", str(tiny_encoder), "--precision", "fp32", "--output"]
    assert run("encode", [*words, "own"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "160 embeddings of dimension 32, fp32, 0.0 MB"
    assert "letters: 160 texts by" in err
    assert run("encode", [*words, "small", "--dtype", "int8", "--side", "query"]) == 0
    own, small = (EmbeddingStore.open(work / name) for name in ("own", "small"))
    assert (own.plan.side, small.plan.side, small.plan.dtype) == ("passage", "query", "int8")
    np.testing.assert_allclose(np.linalg.norm(small.array(), axis=1), 1, atol=1e-2)
    stamp = (work / "own" / "manifest.json").stat().st_mtime_ns
    assert run("encode", [*words, "own"]) == 0
    assert (work / "own" / "manifest.json").stat().st_mtime_ns == stamp
