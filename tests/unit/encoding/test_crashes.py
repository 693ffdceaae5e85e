"""Crash records of processes that die while they encode a shard."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.corpus import encode_store, plan_embeddings
from raytriever.encoding.crashes import LOADING, CrashRecord
from raytriever.encoding.store import EmbeddingStore
from raytriever.encoding.writer import StoreWriter
from raytriever.errors import ModelError
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever

REASON = "kills the encoder's process (signal 9)"


class Case:
    """A store of 160 documents in four shards, of which the second has a crash record."""

    def __init__(self, model: Path, dataset: Path, folder: Path) -> None:
        self.config = ModelConfig(str(model))
        self.retriever: Retriever = load_retriever(self.config)
        self.dataset = open_dataset(dataset, [])
        plan = plan_embeddings(self.config, self.retriever, self.dataset, "passage", "fp32")
        self.writer = StoreWriter(folder / "store", replace(plan, shard_rows=48))

    def write_record(self, deaths: list[int], examined: list[int], killers: dict[int, str]) -> None:
        self.writer.begin()
        content = {"deaths": deaths, "examined": examined, "killers": killers}
        (self.writer.path / "work" / "000001.json").write_text(json.dumps(content))

    def encode(self) -> EmbeddingStore:
        return encode_store(self.writer, self.config, self.retriever, self.dataset)


@pytest.fixture
def case(tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    return Case(tiny_encoder, tiny_dataset, tmp_path)


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
    case.write_record([0, 0], [0], {5: REASON})
    store = case.encode()
    assert store.meta["left_out"] == [53]
    [entry] = [json.loads(line) for line in (store.path / "quarantine.jsonl").read_text().splitlines()]
    assert entry == {
        "file": "letters (passage)",
        "row": 54,
        "reason": REASON,
        "raw": case.dataset.passage_text(53),
    }
    norms = np.linalg.norm(store.array(), axis=1)
    assert norms[53] == 0
    np.testing.assert_allclose(np.delete(norms, 53), 1, atol=1e-5)
    assert not (store.path / "work").exists()
    assert EmbeddingStore.open(store.path).meta == store.meta


def test_a_batch_that_kills_as_a_whole_ends_in_one_line(case: Case) -> None:
    case.write_record([0, 0, 0], [0], {})
    with pytest.raises(ModelError, match="3 processes died over a batch of 48 texts, but no single text") as caught:
        case.encode()
    assert "\n" not in str(caught.value)


def test_deaths_while_loading_end_in_one_line_until_the_next_attempt(case: Case) -> None:
    from raytriever.encoding.shards import ShardEncoder

    case.write_record([LOADING] * 3, [], {})
    with pytest.raises(ModelError, match="3 processes died while loading the model"):
        ShardEncoder(case.writer, lambda: case.retriever, str(case.dataset.location))(1)
    assert len(case.encode()) == 160
