"""The benchmark of size: its generated data set has a known shape, and memory and growth are measured."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from raytriever.data.prepare.open import open_dataset
from raytriever.mining.bm25 import Bm25Index

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("at_size.corpus")
    monkeypatch.setattr(module, "VOCABULARY", 20_000)
    monkeypatch.setattr(module, "_BLOCK", 700)
    return module


def test_the_generated_data_set(corpus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = corpus.write(tmp_path / "one", 2000)
    corpus.write(tmp_path / "two", 2000)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    dataset = open_dataset(str(tmp_path / "one"), ["train", "dev"])
    assert len(dataset.documents) == 2000
    assert (sizes.train, sizes.dev) == (114, 20)
    assert (len(dataset.positives("train")), len(dataset.positives("dev"))) == (114, 20)
    lengths = [len(text.split()) for text in dataset.documents.texts]
    assert np.mean(lengths) == pytest.approx(56, rel=0.05)
    positives = dataset.positives("train")
    _, ranked = Bm25Index.of(dataset.documents).search(
        [dataset.queries.texts[query] for query in positives.queries], 10
    )
    hits = np.mean([positives.of(row)[0] in ranked[row] for row in range(len(positives))])
    assert 0.5 < hits < 1  # of 2,000 passages, 10 at random would hit 0.005


def test_exponents_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    size = importlib.import_module("size")
    usage = {"seconds": 1.0, "driver_resident": 1.0, "workers_anonymous": 1.0, "workers_resident": 1.0, "disk": 1.0}
    figures = {
        1000: usage | {"processor_seconds": 2.0, "driver_anonymous": 1e9},
        10_000: usage | {"processor_seconds": 40.0, "driver_anonymous": 4e9},
    }
    ends = size.ends_of("encode", figures)
    figures[1000]["lost"] = 0.5
    assert size.ends_of("encode", figures)["encode, 1,000: killed after half of its time, lost (share)"].value == 0.25
    growth = ends["encode, 1,000 to 10,000: exponent of time"]
    assert growth.value == pytest.approx(1.301, abs=0.001)
    assert not growth.holds
    assert [ends[f"encode, {documents}: driver, anonymous (GB)"].holds for documents in ("1,000", "10,000")] == [
        True,
        False,
    ]
    assert ends["encode, 10,000: seconds"].holds
