"""Indexes with valid digests whose content does not fit: each ends in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from indexes import write_index
from raytriever.core.errors import StorageError
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.retrieval.index.approximate.build_index import build_index
from raytriever.retrieval.index.approximate.index_settings import IndexConfig
from raytriever.retrieval.index.approximate.stored_index import read_index


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An HNSW index of 60 documents of dimension 8."""
    rows = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    write_index(tmp_path / "made", build_index(rows, IndexConfig(index="hnsw"), None, 0, 1), "hnsw", {})
    return tmp_path / "made"


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "rows": (
        lambda p: np.save(p / "embeddings.npy", np.zeros((59, 8), np.float32)),
        "has the shape 59 x 8, expected 60",
    ),
    "type": (
        lambda p: np.save(p / "embeddings.npy", np.zeros((60, 8))),
        "holds values of type '<f8', expected float32",
    ),
    "ties": (lambda p: np.save(p / "ties.npy", np.full(60, -1)), "ties.npy: holds positions outside of a corpus of 60"),
    "objects": (
        lambda p: np.save(p / "ties.npy", np.array([{}] * 60, dtype=object), allow_pickle=True),
        r"holds values of type '\|O', expected int64",
    ),
}


def seal(folder: Path, to: Path, change: Callable[[Path], None], **meta: object) -> Path:
    with committed_directory(to, {**read_manifest(folder)["meta"], **meta}) as aside:
        shutil.copytree(folder, aside, dirs_exist_ok=True, ignore=lambda *_: ["manifest.json"])
        change(aside)
    return to


@pytest.mark.parametrize("name", CHANGES)
def test_arrays_that_do_not_fit_end_in_one_line(made: Path, tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    with pytest.raises(StorageError, match=rf"{message}.*; build the index again$"):
        read_index(seal(made, tmp_path / "index", change))


def test_an_ann_index_of_other_embeddings_ends_in_one_line(made: Path, tmp_path: Path) -> None:
    def shorten(folder: Path) -> None:
        for name in ("embeddings", "ties"):
            np.save(folder / f"{name}.npy", np.load(folder / f"{name}.npy")[:40] % 40)

    with pytest.raises(
        StorageError, match=r"ANN index.*: holds 60 vectors of dimension 8, expected 40 of dimension 8; build the"
    ):
        read_index(seal(made, tmp_path / "index", shorten, rows=40))


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"rows": "many"}, "'rows' is a text, expected a whole number"),
        ({"search_size": None}, "'search size' is null, expected a whole number"),
        ({"index": ["hnsw"]}, "is not an index"),
    ],
)
def test_a_manifest_of_another_form_ends_in_one_line(
    made: Path, tmp_path: Path, meta: dict[str, object], message: str
) -> None:
    with pytest.raises(StorageError, match=message):
        read_index(seal(made, tmp_path / "index", lambda folder: None, **meta))
