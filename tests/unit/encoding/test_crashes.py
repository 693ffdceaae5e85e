"""Crash records of processes that die while they encode a shard."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from encoding_case import Case

from raytriever.encoding.crashes import LOADING, CrashRecord
from raytriever.encoding.shards import ShardEncoder
from raytriever.encoding.store import EmbeddingStore
from raytriever.encoding.writer import StoreWriter
from raytriever.errors import ModelError

REASON = "kills the encoder's process (signal 9)"


def write_record(case: Case, deaths: list[int], examined: list[int], killers: dict[int, str]) -> StoreWriter:
    """Write a crash record of the second of the four shards."""
    writer = StoreWriter(case.folder / "store", case.plan)
    writer.begin()
    content = {"deaths": deaths, "examined": examined, "killers": killers}
    (writer.path / "work" / "000001.json").write_text(json.dumps(content))
    return writer


def test_a_record_names_the_batches_at_which_processes_died(tmp_path: Path) -> None:
    for expected in ([], [2], [2, 2]):
        record = CrashRecord.of(tmp_path, 7)
        assert record.deaths == expected
        with record.recording(LOADING):
            record.record([0])
            record.record([2])
    # An exception is no death.
    record = CrashRecord.of(tmp_path, 7)
    with pytest.raises(KeyboardInterrupt), record.recording(LOADING):
        raise KeyboardInterrupt
    assert CrashRecord.of(tmp_path, 7).deaths == [2, 2, 2]
    assert CrashRecord.of(tmp_path, 7).unexamined_batches(3) == [2]
    assert CrashRecord.of(tmp_path, 7).unexamined_batches(2) == []
    record.remove()
    assert CrashRecord.of(tmp_path, 7).deaths == []


def test_fatal_rows_are_quarantined(case: Case) -> None:
    write_record(case, [0, 0], [0], {5: REASON})
    store = case.encode()
    assert store.meta["left_out"] == [53]
    [entry] = [json.loads(line) for line in (store.path / "quarantine.jsonl").read_text().splitlines()]
    assert entry == {"file": "letters (passage)", "row": 54, "reason": REASON, "raw": case.dataset.passage_text(53)}
    norms = np.linalg.norm(store.array(), axis=1)
    assert norms[53] == 0
    np.testing.assert_allclose(np.delete(norms, 53), 1, atol=1e-5)
    assert not (store.path / "work").exists()
    assert EmbeddingStore.open(store.path).meta == store.meta


def test_deaths_without_a_fatal_text_end_in_one_line(case: Case) -> None:
    write_record(case, [0, 0, 0], [0], {})
    with pytest.raises(ModelError, match="3 processes died over a batch of 48 texts, but no single text") as caught:
        case.encode()
    assert "\n" not in str(caught.value)
    # Those while loading count until the next attempt.
    writer = write_record(case, [LOADING] * 3, [], {})
    with pytest.raises(ModelError, match="3 processes died while loading the model"):
        ShardEncoder(writer, lambda: case.retriever, str(case.dataset.location))(1)
    assert len(case.encode()) == 160
