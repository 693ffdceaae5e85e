"""What is made of the marks that dying processes leave."""

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
    """160 documents in four shards, of which the second has a mark."""

    def __init__(self, model: Path, dataset: Path, folder: Path) -> None:
        self.config = ModelConfig(str(model))
        self.retriever: Retriever = load_retriever(self.config)
        self.dataset = open_dataset(dataset, [])
        plan = plan_embeddings(self.config, self.retriever, self.dataset, "passage", "fp32")
        self.work = StoreWriter(folder / "store", replace(plan, shard_rows=48))

    def left(self, deaths: list[int], examined: list[int], killers: dict[int, str]) -> None:
        self.work.begin()
        content = {"deaths": deaths, "examined": examined, "killers": killers}
        (self.work.path / "work" / "000001.json").write_text(json.dumps(content))

    def encode_store(self) -> EmbeddingStore:
        return encode_store(self.work, self.config, self.retriever, self.dataset)


@pytest.fixture
def case(tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    return Case(tiny_encoder, tiny_dataset, tmp_path)


def test_a_mark_tells_at_which_batches_processes_died(tmp_path: Path) -> None:
    for expected in ([], [2], [2, 2]):
        mark = CrashRecord.of(tmp_path, 7)
        assert mark.deaths == expected
        with mark.at(LOADING):
            mark.leave(0)
            mark.leave(2)
    # What ends by an exception was no death.
    mark = CrashRecord.of(tmp_path, 7)
    with pytest.raises(KeyboardInterrupt), mark.at(LOADING):
        raise KeyboardInterrupt
    assert CrashRecord.of(tmp_path, 7).deaths == [2, 2, 2]
    assert CrashRecord.of(tmp_path, 7).unexamined(3) == [2]
    assert CrashRecord.of(tmp_path, 7).unexamined(2) == []
    mark.remove()
    assert CrashRecord.of(tmp_path, 7).deaths == []


def test_rows_that_kill_are_left_out_and_told(case: Case) -> None:
    case.left([0, 0], [0], {5: REASON})
    store = case.encode_store()
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
    case.left([0, 0, 0], [0], {})
    with pytest.raises(ModelError, match="3 processes died over a batch of 48 texts, none of which does it") as caught:
        case.encode_store()
    assert "\n" not in str(caught.value)


def test_deaths_while_loading_end_in_one_line_unless_a_new_attempt_is_made(case: Case) -> None:
    from raytriever.encoding.shards import ShardEncoder

    case.left([LOADING] * 3, [], {})
    with pytest.raises(ModelError, match="3 processes died loading it"):
        ShardEncoder(case.work, lambda: case.retriever, str(case.dataset.place))(1)
    assert len(case.encode_store()) == 160
