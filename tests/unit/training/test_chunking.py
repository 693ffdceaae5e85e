"""The chunk is what was asked for, refused where it is too large, and else what the memory allows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from raytriever.errors import ConfigError
from raytriever.losses import scores as panels
from raytriever.losses.distributed import ALONE
from raytriever.models.packing import is_packed
from raytriever.training.batch import ChunkSizes
from raytriever.training.config import TrainingConfig
from raytriever.training.loop import train
from raytriever.training.memory.arithmetic import WorkerTexts, batch_bytes
from raytriever.training.parallel import chunk_size as find_chunk
from raytriever.training.parallel.chunk_size import ChunkChoice

sys.path.append(str(Path(__file__).parents[2] / "support"))
from sham_device import CUDA, sham_device

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, None), (5, ChunkSizes(sequences=5)), (48, ChunkSizes(sequences=48))]
)
def test_what_is_asked_for_is_taken(make_assignment, asked: int | None, expected: ChunkSizes | None) -> None:
    work, _ = make_assignment()
    settings = TrainingConfig(batch_size=16, grad_cache_chunk=asked)
    assert ChunkChoice(settings, work.retriever, "fp32", CPU, ALONE).first(48) == expected


def test_a_chunk_larger_than_the_share_is_refused_before_anything_is_done(make_assignment, tmp_path: Path) -> None:
    work, recorder = make_assignment(grad_cache_chunk=49)  # 16 queries with a positive and a negative each
    with pytest.raises(ConfigError, match=r"--grad-cache-chunk: a chunk of 49 is more than the 48 texts"):
        train(work)
    assert not recorder.steps
    assert not work.folder.exists()


@pytest.mark.parametrize(("free", "cached"), [(10**9, False), (3 * 10**6, True)])
def test_what_is_searched_for_fits_into_what_is_free(
    make_assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, cached: bool
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    monkeypatch.setattr(find_chunk, "free_memory", lambda device: free)
    work, _ = make_assignment()
    work.retriever.train()
    result = ChunkChoice(TrainingConfig(batch_size=16), work.retriever, "fp32", CPU, ALONE).search(48)
    assert (result is not None and 1 <= result < 48) if cached else result is None
    other = ChunkChoice(TrainingConfig(batch_size=16, strategy="zero2"), work.retriever, "bf16", CPU, ALONE).search(48)
    assert other is None or other >= 1
    assert len((tmp_path / find_chunk.FILE).read_text().splitlines()) > 2  # each is remembered for itself


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_search_encodes_texts_as_training_does(
    make_assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    layouts: list[bool] = []
    with sham_device():
        work, recorder = make_assignment(device=CUDA, precision=precision, total_steps=2)
        work.retriever.query.register_forward_pre_hook(lambda _, inputs: layouts.append(is_packed(inputs[0])))
        work.retriever.choose_packing(precision)
        ChunkChoice(work.training, work.retriever, precision, CUDA, ALONE).search(48)
        searched = set(layouts)
        layouts.clear()
        train(work)  # the search is remembered
    assert len(recorder.losses) == 2
    assert searched == set(layouts) == {precision == "bf16"}


def test_the_search_keeps_room_for_the_scores_of_a_batch(
    make_assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(panels, "GPU_PANEL_BYTES", 8 << 20)
    batch, memory = 2_048, 64 << 20
    with sham_device(memory) as counts:
        work, _ = make_assignment(device=CUDA, precision="fp32")
        free = memory - counts.memory
        chunk = ChunkChoice(TrainingConfig(batch_size=batch), work.retriever, "fp32", CUDA, ALONE).search(2 * batch)
    [(stored, _, text_bytes)] = json.loads((tmp_path / "cache" / find_chunk.FILE).read_text()).values()
    assert chunk == stored
    description = work.retriever.description
    tokens = max(description.query_length, description.passage_length)
    reserve = batch_bytes(WorkerTexts(batch, batch, 1, tokens, work.retriever.width), "cuda")
    assert reserve > 16 << 20
    assert 0 < chunk * text_bytes <= find_chunk.SHARE * (free - reserve)
