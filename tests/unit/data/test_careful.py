from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from raytriever.data.prepare.tokenisation import try_each

SUPPORT = Path(__file__).parents[2] / "support"


def test_only_the_texts_that_kill_or_fail_are_left_out(words_json: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(SUPPORT), *sys.path])
    from deadly import SKULL, STONE, Deadly

    texts = [f"text {n}" for n in range(9)]
    texts[2] += SKULL
    texts[7] += STONE
    rows, reasons = try_each(partial(Deadly(words_json).encode, prompt=""), texts)
    assert set(reasons) == {2, 7}
    assert reasons[2] == "kills the tokenizer's process (signal 9)"
    assert reasons[7] == "cannot be tokenised (BaseException: a panic, which is no Exception)"
    assert [row is None for row in rows] == [index in reasons for index in range(9)]
    assert all(np.array_equal(row, [1, 0]) for row in rows if row is not None)
