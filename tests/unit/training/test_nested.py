"""Nested embeddings as they are trained: narrow ones retrieve, and cached gradients are those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.encode import encode_texts
from raytriever.evaluation.systems import evaluate_embeddings
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import ALONE
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.writer import write_model
from raytriever.training.loop import train
from raytriever.training.parallel.objective import Objective

Make = Callable[..., tuple]
NARROW = 4


def test_a_step_logs_every_width(make_assignment: Make) -> None:
    settings = LossConfig(temperature=0.05, matryoshka_dims="32,8")
    work, recorder = make_assignment(total_steps=2, loss=settings)
    # The encoder compares by cosine, so what is cut has length one.
    first = Objective(work.retriever, build_loss(settings, True), "fp32")
    expected = first(work.train.batch(0, work.retriever, ALONE), ALONE).value.item()
    train(work)
    logged = recorder.steps[1]
    assert logged["loss"] == pytest.approx(expected, rel=1e-4)
    assert logged["loss"] == pytest.approx(logged["loss_at_32"] + logged["loss_at_8"], rel=1e-5)
    assert 0 <= logged["batch_auc_at_8"] <= 1
    assert "batch_auc_at_32" not in logged


@pytest.mark.slow
def test_the_first_components_retrieve_better_where_they_were_trained_to(
    make_assignment: Make, tiny_dataset: Path, tmp_path: Path
) -> None:
    results = {}
    for dims in ("", "16,4"):
        work, _ = make_assignment(
            total_steps=150,
            eval_steps=150,
            folder=tmp_path / f"checkpoints-{dims}",
            loss=LossConfig("infonce", temperature=0.05, matryoshka_dims=dims),
            learning_rate=3e-3,
        )
        train(work)
        folder = tmp_path / f"model-{dims}"
        folder.mkdir()
        write_model(work.retriever.eval(), folder)
        for width in (32, NARROW):
            retriever = load_retriever(ModelConfig(str(folder), truncate_dim=width))
            dataset = open_dataset(tiny_dataset, ["test"])
            asked = dataset.positives("test").queries
            queries = encode_texts(retriever, [dataset.queries.texts[int(query)] for query in asked], "query")
            passages = encode_texts(retriever, dataset.passages(), "passage")
            results[dims, width] = evaluate_embeddings(dataset, "test", queries, passages).metrics["ndcg_at_10"]
    assert results["16,4", NARROW] > results["", NARROW] + 0.05
