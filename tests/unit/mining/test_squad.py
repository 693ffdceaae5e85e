"""`--drop-answers` on the answers of SQuAD."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from raytriever.cli.main import run
from raytriever.data.negatives import read_negatives
from raytriever.data.prepare.open import open_dataset


def contains(passage: str, answer: str) -> bool:
    """Return true if an ASCII passage contains an answer as whole words, by a regular expression."""
    answer, passage = (" ".join(text.lower().split()) for text in (answer, passage))
    before = "(?<![a-z0-9])" * answer[0].isalnum()
    behind = "(?![a-z0-9])" * answer[-1].isalnum()
    return re.search(before + re.escape(answer) + behind, passage) is not None


@pytest.mark.data
@pytest.mark.slow
def test_only_passages_with_an_answer_are_removed(
    data_packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    squad, words = data_packs / "squad", ["--split", "dev", "--num-negatives", "10", "--range-max", "10"]
    assert run("mine", ["--dataset", str(squad), *words, "--output", str(tmp_path / "all")]) == 0
    assert run("mine", ["--dataset", str(squad), *words, "--drop-answers", "--output", str(tmp_path / "some")]) == 0
    assert "holds an answer" in capsys.readouterr().out
    dataset = open_dataset(squad, ["dev"])
    assert dataset.answers is not None
    every, some = (read_negatives(tmp_path / name, dataset) for name in ("all", "some"))
    size = len(dataset.documents)
    remaining = set((some.queries * size + some.documents).tolist())
    assert 1.02 * len(some) < len(every)
    looked_at = gone = 0
    passages = dataset.passages()
    texts = {int(document): passages[int(document)] for document in np.unique(every.documents)}
    for query, document in zip(every.queries.tolist(), every.documents.tolist(), strict=True):
        answers, passage = dataset.answers.of(query), texts[document]
        if passage.isascii() and all(answer.isascii() for answer in answers):
            holds = any(contains(passage, answer) for answer in answers)
            assert (query * size + document in remaining) is not holds, (answers, passage)
            looked_at, gone = looked_at + 1, gone + holds
    assert looked_at > 10_000
    assert gone > 1_000
