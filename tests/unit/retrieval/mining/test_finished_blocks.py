"""A mining that was stopped continues after the last finished block."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from mining_data import EVERY

from raytriever.core.store.unfinished_pieces import Pieces
from raytriever.data.dataset import RetrievalDataset
from raytriever.retrieval.mining import miner
from raytriever.retrieval.mining.candidate_search import Embeddings
from raytriever.retrieval.mining.miner import CandidateFilter, MinedBlock, mine
from raytriever.retrieval.mining.mining_settings import METHODS

Data = tuple[RetrievalDataset, Embeddings]


@pytest.fixture
def mined_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the first query of each block that is mined, in blocks of a few queries."""
    mined: list[int] = []
    mine_block = CandidateFilter._mine

    def record(self, ann_index, rows, first, end):  # type: ignore[no-untyped-def]
        mined.append(int(rows[0]))
        return mine_block(self, ann_index, rows, first, end)

    monkeypatch.setattr(miner, "BLOCK", 60)
    monkeypatch.setattr(miner, "BM25_QUERIES", 5)
    monkeypatch.setattr(CandidateFilter, "_mine", record)
    return mined


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("settings", [{}, {"relative_margin": 0.3}])
def test_finished_blocks_are_not_mined_again(
    word_data: Data, mined_blocks: list[int], tmp_path: Path, settings: dict[str, float]
) -> None:
    config = replace(EVERY, **settings)
    whole = mine(word_data[0], "train", config, embeddings=word_data[1], seed=4)
    every = mined_blocks.copy()
    folder = tmp_path / "blocks"
    mine(word_data[0], "train", config, embeddings=word_data[1], seed=4, finished=folder)
    files = sorted(folder.iterdir())
    assert len(files) == len(every)
    assert {file.name.partition("-0")[0] for file in files} == set(METHODS)
    bm25, dense = (sorted(folder.glob(f"{method}-*")) for method in ("bm25", "dense"))
    shutil.rmtree(dense[2])
    damaged = folder / "bm25-00000005" / "block.npz"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    mined_blocks.clear()
    again = mine(word_data[0], "train", config, embeddings=word_data[1], seed=4, finished=folder)
    assert again.table.digest == whole.table.digest
    assert again.counts == whole.counts
    assert len(mined_blocks) == len(bm25) - 1 + len(dense) - 2  # a killed command leaves no gap
    mined_blocks.clear()
    last = mine(word_data[0], "train", config, embeddings=word_data[1], seed=4, finished=folder)
    assert last.table.digest == whole.table.digest
    assert mined_blocks == []


def test_mining_goes_on_where_no_block_can_be_written(
    word_data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    mined = mine(word_data[0], "train", EVERY, embeddings=word_data[1], finished=file / "blocks")
    assert capsys.readouterr().err.count("if a mining is stopped, it starts again, because") == 1
    assert mined.table.digest == mine(word_data[0], "train", EVERY, embeddings=word_data[1]).table.digest
    assert Pieces(file / "blocks").read("dense-00000000", MinedBlock.load) is None
