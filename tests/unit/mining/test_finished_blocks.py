"""A mining that was stopped continues after the last finished block."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from beir import write_beir
from mining_data import EVERY, word_dataset

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import read_negatives
from raytriever.data.prepare.open import open_all_splits
from raytriever.mining import miner
from raytriever.mining.config import METHODS, MiningConfig
from raytriever.mining.finders import Embeddings
from raytriever.mining.miner import CandidateFilter, MinedBlock, mine
from raytriever.store.parts import Parts

Data = tuple[RetrievalDataset, Embeddings]


@pytest.fixture
def mined_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the first query of each block that is mined, in blocks of a few queries."""
    mined: list[int] = []
    mine_block = CandidateFilter._mine

    def record(self, finder, rows, first, end):  # type: ignore[no-untyped-def]
        mined.append(int(rows[0]))
        return mine_block(self, finder, rows, first, end)

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
    assert Parts(file / "blocks").read("dense-00000000", MinedBlock.load) is None


COMMAND = """
import os, signal, sys
from raytriever.cli.main import run
from raytriever.mining import miner

miner.BM25_QUERIES = 7
write_part, blocks = miner.Parts.write, int(sys.argv.pop(1))

def write(self, name, save):
    global blocks
    write_part(self, name, save)
    print("block", int(name[-8:]), flush=True)
    blocks -= 1
    if not blocks:
        os.kill(os.getpid(), signal.SIGKILL)

miner.Parts.write = write
sys.exit(run())
"""


@pytest.mark.slow
def test_a_killed_command_costs_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = word_dataset()[0]
    judged = dataset.judgements["train"]
    pairs = zip(judged.queries, judged.documents, strict=True)
    source = write_beir(tmp_path / "source", dataset.documents.texts, dataset.queries.texts, train=pairs)
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "negatives"

    def run(blocks: int, output: str, seed: int = 0) -> subprocess.CompletedProcess[str]:
        words = f"mine --dataset {source} --method bm25,random --seed {seed} --output {tmp_path / output}"
        command = [sys.executable, "-c", COMMAND, str(blocks), *words.split()]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    killed = run(4, "killed")
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout.split() == ["block", "0", "block", "7", "block", "14", "block", "21"]
    assert any(path.name.endswith("-blocks") for path in kept.iterdir())
    other = run(-1, "other", seed=1)
    assert other.stdout.count("block") == 7  # other settings: nothing of the first call is used
    resumed = run(-1, "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.split()[:4] == ["block", "28", "block", "35"]
    assert [path for path in kept.iterdir() if path.is_dir()] == []
    opened = open_all_splits(str(source))
    whole = mine(opened, "train", MiningConfig(method="bm25,random"))
    assert read_negatives(tmp_path / "killed", opened).digest == whole.table.digest
