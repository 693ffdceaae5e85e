"""Processes that die over a shard are counted, and the shard is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from encoding_case import Case

from raytriever.core.errors import ModelError
from raytriever.core.store.unfinished_pieces import Attempts
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter


def begun(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def interrupt(folder: Path) -> None:
    with Attempts(folder) as attempts:
        assert attempts.begin("7") == 1
        raise KeyboardInterrupt


def test_deaths_are_counted_and_errors_are_none(tmp_path: Path) -> None:
    for deaths in range(3):
        assert Attempts(tmp_path).begin("7") == deaths  # and dies
    attempts = Attempts(tmp_path)
    assert attempts.begin("7") == 3
    attempts.end("7")
    assert attempts.begin("7") == 0
    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path)
    assert begun(tmp_path) == []
    (tmp_path / "7.begun").write_text("")  # a disk that was full
    assert Attempts(tmp_path).begin("7") == 0


def test_a_shard_over_which_three_processes_died_is_named(case: Case) -> None:
    writer = StoreWriter(case.folder / "store", case.plan)
    writer.begin()
    work = writer.work
    (work / "1.begun").write_text("3")
    encoder = ShardEncoder(writer, lambda: case.retriever, str(case.dataset.location))
    words = (
        r"letters \(passage\), rows 49 to 96: 3 processes died while they loaded the model or encoded these texts; "
        r"free memory, lower batch_tokens, or remove the text that causes the failure; then run the same command again$"
    )
    with pytest.raises(ModelError, match=words):
        list(encoder.encode([1]))
    assert begun(work) == ["plan.json"]
    assert len(case.encode()) == 160  # tries again
    assert not work.exists()
