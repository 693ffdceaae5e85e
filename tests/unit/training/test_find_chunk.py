"""The chunk is what was asked for, refused where it is too large, and else what the memory allows, found once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from simulated_gpu import CUDA, simulated_gpu
from torch import nn

from raytriever.core.errors import ConfigError
from raytriever.losses import score_matrix as panels
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.models.encoder import set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import is_packed
from raytriever.models.retriever import load_retriever
from raytriever.training.loop import train
from raytriever.training.memory.memory_of_states import WorkerTexts, batch_bytes
from raytriever.training.parallel import chunk_size as module
from raytriever.training.parallel.chunk_size import FILE, ChunkChoice, activations, find_chunk, free_memory, trial
from raytriever.training.training_settings import TrainingConfig

CPU = torch.device("cpu")
LONGEST = 64  # tokens of a text of the tiny encoder
HERE = "model tiny 1, length 8, device cpu"


@pytest.fixture
def line(own_cache: Path) -> tuple[nn.Linear, list[int]]:
    return nn.Linear(1000, 1), []


def search(line: tuple[nn.Linear, list[int]], texts: int) -> int | None:
    layer, tried = line

    def encode(count: int) -> torch.Tensor:
        tried.append(count)
        return layer(torch.ones(count, 1000))

    return find_chunk(encode, list(layer.parameters()), texts, CPU, HERE)


def test_no_search_tries_more_than_a_chunk_that_was_halved(line: tuple[nn.Linear, list[int]], own_cache: Path) -> None:
    assert search(line, 40) is None
    assert line[1] == [2, 4, 40]
    own_cache.mkdir()
    (own_cache / FILE).write_text(json.dumps({HERE: 9, "another model": 1}))
    assert search(line, 40) == 9
    assert search(line, 8) is None


def test_starts_from_the_memory_that_is_free(
    line: tuple[nn.Linear, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda device: 100 * 4000)
    assert search(line, 1000) == 70
    assert line[1] == [2, 4, 70]


def test_a_damaged_memory_remembers_nothing(line: tuple[nn.Linear, list[int]], own_cache: Path) -> None:
    own_cache.mkdir()
    (own_cache / FILE).write_text('{"model tiny')
    assert search(line, 10) is None


def test_activations_are_what_is_kept() -> None:
    weight = torch.ones(1000, requires_grad=True)
    one = activations(lambda: torch.ones(2, 1000) * weight)
    assert activations(lambda: torch.ones(5, 1000) * weight) - one == 3 * 4000
    assert free_memory(CPU) > 0


def test_workers_agree_on_the_smallest(make_assignment, monkeypatch: pytest.MonkeyPatch) -> None:
    class Group(WorkerGroup):  # whose other worker found 24
        def all_reduce(self, value: torch.Tensor, op: str = "sum") -> torch.Tensor:
            assert op == "max"
            return value.clamp(min=-24)

    work, _ = make_assignment()
    for found, group, expected in ((None, Group(size=2), 24), (None, ALONE, None), (8, ALONE, 8)):
        monkeypatch.setattr(module, "find_chunk", lambda *_, found=found, **__: found)
        choice = ChunkChoice(TrainingConfig(batch_size=16), work.retriever, "fp32", CPU, group)
        assert choice.search(64) == expected


def test_nothing_fits_is_an_error_of_the_user(
    line: tuple[nn.Linear, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda device: 1)

    def encode(count: int) -> torch.Tensor:
        if count == 1:
            raise MemoryError
        return line[0](torch.ones(count, 1000))

    with pytest.raises(ConfigError, match="not even one text fits"):
        find_chunk(encode, list(line[0].parameters()), 8, CPU, HERE)


def test_a_real_encoder_is_tried_without_a_trace(
    tiny_encoder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    set_dropout(retriever, 0.1)
    retriever.train()
    parameters = [parameter for parameter in retriever.parameters() if parameter.requires_grad]
    encode = trial(retriever, 16, "fp32", CPU)
    per_text = (activations(lambda: encode(6)) - activations(lambda: encode(2))) // 4
    monkeypatch.setattr(module, "free_memory", lambda device: 10 * per_text)
    before = torch.get_rng_state()
    result = find_chunk(encode, parameters, 64, CPU, HERE)  # seven tenths of ten texts, but for rounding
    assert result in (6, 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in parameters)


@pytest.mark.parametrize(
    ("texts", "tokens", "expected"), [(None, None, None), (5, None, 5 * LONGEST), (48, 90, 90), (None, 70, 70)]
)
def test_what_is_asked_for_is_taken(
    make_assignment, texts: int | None, tokens: int | None, expected: int | None
) -> None:
    work, _ = make_assignment()
    settings = TrainingConfig(batch_size=16, grad_cache_chunk=texts, grad_cache_tokens=tokens)
    assert ChunkChoice(settings, work.retriever, "fp32", CPU, ALONE).first(48) == expected


def test_a_chunk_larger_than_the_share_is_refused_before_anything_is_done(make_assignment, tmp_path: Path) -> None:
    work, recorder = make_assignment(grad_cache_chunk=49)  # 16 queries with a positive and a negative each
    with pytest.raises(ConfigError, match=r"grad_cache_chunk: a chunk of 49 is more than the 48 texts"):
        train(work)
    assert not recorder.steps
    assert not work.folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_search_encodes_texts_as_training_does(make_assignment, own_cache: Path, precision: str) -> None:
    layouts: list[bool] = []
    with simulated_gpu():
        work, recorder = make_assignment(device=CUDA, precision=precision, total_steps=2)
        work.retriever.query.register_forward_pre_hook(lambda _, inputs: layouts.append(is_packed(inputs[0])))
        work.retriever.choose_packing(precision)
        ChunkChoice(work.training, work.retriever, precision, CUDA, ALONE).search(48)
        searched = set(layouts)
        layouts.clear()
        train(work)
    assert len(recorder.losses) == 2
    assert searched == set(layouts) == {precision == "bf16"}


def test_the_search_keeps_room_for_the_scores_of_a_batch(
    make_assignment, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "GPU_PANEL_BYTES", 8 << 20)
    batch, free = 2_048, 64 << 20
    monkeypatch.setattr(module, "free_memory", lambda device: free)
    with simulated_gpu():
        work, _ = make_assignment(device=CUDA, precision="fp32")
        chunk = ChunkChoice(TrainingConfig(batch_size=batch), work.retriever, "fp32", CUDA, ALONE).search(2 * batch)
        encode = trial(work.retriever, LONGEST, "fp32", CUDA)
        text_bytes = (activations(lambda: encode(6)) - activations(lambda: encode(2))) // 4
    description = work.retriever.description
    tokens = max(description.query_length, description.passage_length)
    reserve = batch_bytes(WorkerTexts(batch, batch, 1, tokens, work.retriever.dim), "cuda")
    assert reserve > 16 << 20
    assert 0 < chunk * text_bytes <= module.FRACTION * (free - reserve)
