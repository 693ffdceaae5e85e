"""Directories of sentence-transformers whose routers share modules, and Dropout: read and written as the library does.

`test_round_trips` reads the other directories.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from directories import WIDTH, dense, transformer
from numpy import ndarray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from tiny_models import text_of
from torch import nn

from raytriever.encoding.encode import encode_texts
from raytriever.models import files
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.writer import write_model

TEXTS = ["Kaelbra", text_of(8, 1), text_of(60, 2)]
Build = Callable[[Path], list[nn.Module]]


def routed(same_transformer: bool, same_head: bool = False) -> Build:
    def build(folder: Path) -> list[nn.Module]:
        query = transformer(folder, "bert")
        document = query if same_transformer else transformer(folder, "bert", seed=1)
        heads = [dense(WIDTH, WIDTH, seed=3), dense(WIDTH, WIDTH, seed=4)]
        if same_head:
            heads[1] = heads[0]
        pooling = Pooling(WIDTH, "cls")
        return [Router.for_query_document([query, pooling, heads[0]], [document, pooling, heads[1]]), Normalize()]

    return build


def router_after_pooling(folder: Path) -> list[nn.Module]:
    router = Router.for_query_document(
        [dense(WIDTH, WIDTH, seed=3), Normalize()], [Dropout(0.3), dense(WIDTH, WIDTH, seed=4)]
    )
    return [transformer(folder, "bert"), Pooling(WIDTH, "mean"), router, dense(WIDTH, 12)]


MODELS: dict[str, Build] = {
    "two transformers, one dense": routed(same_transformer=False, same_head=True),
    "one transformer, two dense": routed(same_transformer=True),
    "a router after pooling": router_after_pooling,
}


def encodings(model: SentenceTransformer | Retriever) -> ndarray:
    if isinstance(model, Retriever):
        return np.concatenate([encode_texts(model, TEXTS, side) for side in ("query", "passage")])
    return np.concatenate([model.encode_query(TEXTS), model.encode_document(TEXTS)])


def cosines(one: ndarray, other: ndarray) -> ndarray:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(1) / lengths


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = routed(same_transformer=False, same_head=True)(tmp_path / "source")
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "model"))
    read: list[str] = []
    read_json = files.read_json

    def recorded(file: Path, *arguments: Any, **others: Any) -> Any:
        read.append(file.relative_to(tmp_path / "model").as_posix())
        return read_json(file, *arguments, **others)

    monkeypatch.setattr(files, "read_json", recorded)
    load_retriever(ModelConfig(str(tmp_path / "model")))
    assert {"modules.json", "router_config.json", "config_sentence_transformers.json"} <= set(read)
    assert len(read) == len(set(read))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_directory_is_read_and_written_as_the_library_does(name: str, tmp_path: Path) -> None:
    modules = MODELS[name](tmp_path / "source")
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "model"))
    library = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    expected = encodings(library)
    ours = load_retriever(ModelConfig(str(tmp_path / "model")))
    assert cosines(expected, encodings(ours)).min() > 0.99999
    (tmp_path / "written").mkdir()
    write_model(ours, tmp_path / "written")
    again = SentenceTransformer(str(tmp_path / "written"), device="cpu")
    assert cosines(expected, encodings(again)).min() > 0.99999
    assert cosines(expected, encodings(load_retriever(ModelConfig(str(tmp_path / "written"))))).min() > 0.99999
