"""Data of the gap study: the searched queries, the held-out passages, and the sets behind each curve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray
from synthetic import control

from gap import BEAMS, RECALL, GapEmbeddings, embed, measure_index
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.index.approximate.build import DocumentVectors, build_index
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.measure import OperatingPoint, at_recall, measure
from raytriever.index.exact import top_k
from raytriever.models.config import ModelConfig

SHOWN = IndexConfig(index="roargraph")  # the same graph every time


def comparable(points: list[OperatingPoint]) -> list[tuple[int, float, float]]:
    return [(point.effort, point.recall, point.candidates) for point in points]


@pytest.mark.slow
def test_queries_and_held_out_passages_are_not_exchanged() -> None:
    drawn = control(1_200, 25, width=24, rank=8, common=4, own=2)
    data = GapEmbeddings(drawn.documents, drawn.unshifted, drawn.shifted, drawn.training)
    result = measure_index(data, SHOWN, 0)
    index = build_index(DocumentVectors.of(drawn.documents), SHOWN, drawn.training, 0, 1)

    def exact(queries: ndarray, k: int) -> ndarray:
        return top_k(queries, drawn.documents, k, np.arange(1_200))[1]

    least = [measure(index, queries, exact(queries, 10), 10).recall for queries in (drawn.shifted, drawn.unshifted)]
    assert max(least) > RECALL > min(least)  # so 0.95 alone would compare two different recalls
    for point, queries in ((result.queries, drawn.shifted), (result.held_out, drawn.unshifted)):
        assert comparable([point]) == comparable([at_recall(index, queries, exact(queries, 10), max(least))])
    assert result.queries.recall == result.held_out.recall
    asked = [measure(index, drawn.shifted, exact(drawn.shifted, 10), effort, timed=False) for effort in BEAMS]
    assert comparable(result.curve) == comparable(asked)
    assert result.ratio == result.queries.candidates / result.held_out.candidates


def test_held_out_passages_are_not_indexed_and_training_queries_are_those_of_train(
    tiny_dataset: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("gap.QUERIES", 9)
    data, _ = embed(str(tiny_encoder), str(tiny_dataset), "test")
    dataset = open_dataset(tiny_dataset, ["train", "test"])
    retriever = load_for_encoding(ModelConfig(str(tiny_encoder)), "fp32")
    passages = encode_texts(retriever, dataset.passages(), "passage")

    def rows(vectors: ndarray, among: ndarray) -> list[int]:
        apart = np.abs(vectors[:, None] - among[None]).max(2)
        assert apart.min(1).max() < 1e-5
        return apart.argmin(1).tolist()

    def texts(split: str) -> list[str]:
        return [dataset.queries.texts[int(query)] for query in dataset.positives(split).queries]

    documents, held_out = rows(data.documents, passages), rows(data.held_out, passages)
    assert len(held_out) == 9
    assert sorted(documents + held_out) == list(range(160))
    assert rows(data.training, encode_texts(retriever, texts("train"), "query")) == list(range(96))
    asked = rows(data.queries, encode_texts(retriever, texts("test"), "query"))
    assert len(set(asked)) == 9
