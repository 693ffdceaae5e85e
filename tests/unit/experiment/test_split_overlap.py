"""Test queries among the training queries: many are an error, a few are logged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raytriever.config import Config, Curriculum
from raytriever.data.config import DataConfig
from raytriever.errors import DataError
from raytriever.experiment.opening import open_run
from raytriever.models.config import ModelConfig


def with_repeated(tiny_dataset: Path, folder: Path, count: int) -> Path:
    """The data set with further test queries, whose texts are those of training queries in other case."""
    shutil.copytree(tiny_dataset, folder)
    lines = (folder / "queries.jsonl").read_text().splitlines()[:count]
    with (folder / "queries.jsonl").open("a") as queries, (folder / "qrels" / "test.tsv").open("a") as judgements:
        for i, line in enumerate(lines):
            queries.write(line.replace(f'"q{i}"', f'"again{i}"').replace("what is", "What  IS") + "\n")
            judgements.write(f"again{i}\td{i}\t1\n")
    return folder


def opened(tiny_encoder: Path, dataset: Path, **data: bool) -> list[str]:
    lines: list[str] = []
    config = Config(data=DataConfig(str(dataset), **data), model=ModelConfig(str(tiny_encoder)))  # type: ignore[arg-type]
    open_run(Curriculum(config), lines.append)
    return [line for line in lines if "training queries too" in line]


def test_many_overlapping_queries_are_refused_unless_allowed(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    dataset = with_repeated(tiny_dataset, tmp_path / "set", 8)
    with pytest.raises(DataError, match=r"set: 8 of 40 queries of split 'test' \(20.0%\) .*; leave these queries out"):
        opened(tiny_encoder, dataset)
    line = (
        "set: 8 of 40 queries of split 'test' (20.0%) are training queries too (same text but for case and white space)"
    )
    assert opened(tiny_encoder, dataset, allow_split_overlap=True) == [line]


def test_a_few_overlapping_queries_are_logged(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    [line] = opened(tiny_encoder, with_repeated(tiny_dataset, tmp_path / "set", 1))
    assert line.startswith("set: 1 of 33 queries of split 'test' (3.0%) are training queries too")
    assert opened(tiny_encoder, tiny_dataset) == []
