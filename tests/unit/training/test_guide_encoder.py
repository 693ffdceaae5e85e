"""A guide in training: its own reading of the texts, gradient caching, a frozen state, and refusals."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import train_until
from safetensors.torch import load_file, save_file

from raytriever.core.errors import ModelError, StorageError
from raytriever.data.combine_datasets import combine
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.losses.build_loss import build_loss
from raytriever.losses.distributed import ALONE
from raytriever.losses.false_negative_mask import MASKED, MOST_MASKED, GuideEmbeddings
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import read_prompts
from raytriever.models.retriever import load_retriever
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training import guide_encoder as guides
from raytriever.training.guide_encoder import Guide, GuideTexts, MaskingWatch
from raytriever.training.loop import train
from raytriever.training.parallel.objective import Objective

Make = Callable[..., tuple]
CPU = torch.device("cpu")


def guided(folder: Path, loss: str = "mw") -> LossConfig:
    return LossConfig(loss, temperature=0.1, guide=str(folder), guide_margin=0.01)


@pytest.fixture(params=["start model", "another encoder"])
def guide_folder(request: pytest.FixtureRequest, tiny_encoder: Path, other_encoder: Path) -> Path:
    return tiny_encoder if request.param == "start model" else other_encoder


@pytest.mark.fast_every(9)
def test_the_guide_reads_the_texts_of_a_batch_in_its_own_way(
    make_assignment: Make, guide_folder: Path, tiny_encoder: Path, tiny_dataset: Path
) -> None:
    settings = guided(guide_folder)
    work, _ = make_assignment(loss=settings, guide=guide_folder)
    batch, dataset = work.train.batch(0, work.retriever, ALONE), open_dataset(tiny_dataset, ["train"])
    texts = {
        "query": [dataset.queries.texts[row] for row in batch.relevance.queries.tolist()],
        "passage": [dataset.passage_text(row) for row in batch.relevance.passages.tolist()],
    }
    guide, trained = (load_retriever(ModelConfig(str(folder))) for folder in (guide_folder, tiny_encoder))
    assert (guide.description.query_prompt == "") == (guide_folder == tiny_encoder)
    of_guide = [torch.from_numpy(encode_texts(guide, texts[side], side)) for side in texts]
    embeddings = [torch.from_numpy(encode_texts(trained, texts[side], side)) for side in texts]
    loss = build_loss(settings, True)
    expected = loss(*embeddings, batch.relevance, guide=GuideEmbeddings(*of_guide))
    output = Objective(work.retriever.eval(), loss, "fp32", guide=work.guide.encode)(batch, ALONE)
    assert output.value.item() == pytest.approx(expected.value.item(), rel=1e-5)
    assert 0 < output.statistics[MASKED].item() == expected.statistics[MASKED].item() < 1
    assert not torch.equal(
        output.value, build_loss(LossConfig("mw", temperature=0.1))(*embeddings, batch.relevance).value
    )


@pytest.mark.parametrize("name", ["mw", "infonce-symmetric"])
def test_cached_gradients_are_those_of_the_whole_batch(
    make_assignment: Make, other_encoder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = guided(other_encoder, name)
    work, _ = make_assignment(loss=settings, guide=other_encoder)
    results = []
    for chunk, budget, chunks in ((None, 1_000, 1), (None, 40, 8), (40, 1_000, 8), (90, 40, 8)):
        monkeypatch.setitem(guides.TOKEN_BUDGET, "cpu", budget)
        batch = work.train.batch(0, work.retriever, ALONE, settings.symmetric, chunk)
        loss = build_loss(settings, True)
        objective = Objective(work.retriever, loss, "fp32", guide=work.guide.encode)
        assert len(batch.guide[0][0].buckets) == chunks
        objective.zero_grad()
        output = objective(batch, ALONE)
        output.value.backward()
        results.append([output.value.detach(), *(p.grad.clone() for p in objective.parameters() if p.grad is not None)])
        assert not any("guide" in key for key, _ in objective.named_parameters())
    for whole, *others in zip(*results, strict=True):
        for other in others:
            torch.testing.assert_close(other, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_training_leaves_the_guide_as_it_was_and_resumes_with_it_alone(
    make_assignment: Make, tiny_encoder: Path, other_encoder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "guide"))

    def run(name: str, stop: int | None = None) -> list[float]:
        work, recorder = make_assignment(
            total_steps=4, loss=guided(folder), guide=folder, folder=tmp_path / name, checkpoint_steps=1
        )
        if stop is not None:
            train_until(work, lambda step, metrics: step == stop)
            return []
        before = [parameter.clone() for parameter in work.guide.retriever.parameters()]
        train(work)
        assert all(map(torch.equal, before, work.guide.retriever.parameters()))
        assert all(0 <= recorder.steps[step][MASKED] < 1 for step in (3, 4))
        return recorder.losses

    whole = run("whole")
    run("parts", stop=3)
    assert run("parts") == whole[-2:]
    weights = load_file(folder / "model.safetensors")
    save_file({name: value * 1.01 for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(StorageError, match=r"was made with guide '[0-9a-f]{16}', but this run has '[0-9a-f]{16}'"):
        run("whole")


def test_texts_of_several_data_sets_are_read_by_position(
    tiny_dataset: Path, other_encoder: Path, tmp_path: Path
) -> None:
    second = Path(shutil.copytree(tiny_dataset, tmp_path / "second"))
    guide = load_retriever(
        ModelConfig(str(other_encoder), dataset_prompts=read_prompts({"second": {"query": "second: "}}))
    )
    datasets = [open_dataset(path, ["train"], tokenization=tokenization_of(guide)) for path in (tiny_dataset, second)]
    datasets[0] = dataclasses.replace(datasets[0], tokens=None)
    passes = GuideTexts(guide, combine(datasets)).passes(np.array([165, 3, 160]), np.array([1, 163]))
    expected = [
        guide.batch_of(guide.contents([item], side, prompt), side, prompt)
        for side, prompt, item in (
            ("query", "second: ", datasets[1].queries.texts[5]),
            ("query", "find: ", datasets[0].queries.texts[3]),
            ("query", "second: ", datasets[1].queries.texts[0]),
            ("passage", "", datasets[0].passage_text(1)),
            ("passage", "", datasets[1].passage_text(3)),
        )
    ]
    rows = [
        row[mask.bool()].tolist()
        for texts, _ in passes
        for bucket in [torch.cat([b["input_ids"] for b in texts.buckets])[texts.indices]]
        for row, mask in zip(
            bucket, torch.cat([b["attention_mask"] for b in texts.buckets])[texts.indices], strict=True
        )
    ]
    assert rows == [item.buckets[0]["input_ids"][0].tolist() for item in expected]


def test_an_unsuited_guide_is_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^guide \S+/missing: no such directory"):
        Guide.load(str(tmp_path / "missing"), "fp32", CPU)
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "spoilt"))
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"].fill_(torch.inf)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"^guide \S+/spoilt: the embedding of a query holds NaN or infinity"):
        Guide.load(str(folder), "fp32", CPU).check()


def test_a_query_without_negatives_is_logged_once() -> None:
    lines: list[str] = []
    watch = MaskingWatch(lines.append)
    for step, most in enumerate((0.5, 0.96, 1.0), 1):
        watch.update(step, {MASKED: 0.125, MOST_MASKED: most})
    watch.update(4, {"loss": 1.0})
    (line,) = lines
    assert line.startswith("Step 2: the guide masks 96% of the negatives of a query (12.5% of all).")
