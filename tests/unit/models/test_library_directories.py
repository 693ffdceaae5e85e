"""Directories written by sentence-transformers: raytriever encodes as the library does, also after saving again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from torch import nn

from raytriever.encoding.encode import encode_texts
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.writer import write_model

sys.path.append(str(Path(__file__).parents[2] / "support"))
from tiny_models import text_of, write_transformer

TEXTS = ["Kaelbra", text_of(8, 1), text_of(60, 2), text_of(300, 3)]
WIDTH = 32
Build = Callable[[Path], SentenceTransformer]


def transformer(folder: Path, architecture: str = "bert", seed: int = 0, **options: Any) -> Transformer:
    settings = {name: options.pop(name) for name in ("query_length", "document_length") if name in options}
    lower = {"do_lower_case": True} if options.pop("do_lower_case", False) else {}
    directory = write_transformer(folder / f"{architecture}{seed}", architecture, seed=seed, **options)
    return Transformer(str(directory), **settings, **lower)


def dense(seed: int, width: int = WIDTH, output: int = WIDTH, **options: Any) -> Dense:
    torch.manual_seed(seed)
    module = Dense(width, output, **options)
    nn.init.normal_(module.linear.weight, std=width**-0.5)
    if module.linear.bias is not None:
        nn.init.normal_(module.linear.bias)
    return module


def simple(pooling: Any = "mean", *after: Any, width: int = WIDTH, **options: Any) -> Build:
    """Return a builder of a transformer, a pooling, and other modules."""
    library = {name: options.pop(name) for name in ("prompts", "similarity_fn_name", "truncate_dim") if name in options}
    include = options.pop("include_prompt", True)

    def build(folder: Path) -> SentenceTransformer:
        modules = [transformer(folder, **options), Pooling(width, pooling, include_prompt=include), *after]
        return SentenceTransformer(modules=modules, device="cpu", **library)

    return build


def routed(same_transformer: bool, same_head: bool = False) -> Build:
    def build(folder: Path) -> SentenceTransformer:
        query = transformer(folder)
        document = query if same_transformer else transformer(folder, seed=1)
        heads = [dense(3), dense(3 if same_head else 4)]
        if same_head:
            heads[1] = heads[0]
        pooling = Pooling(WIDTH, "cls")
        router = Router.for_query_document([query, pooling, heads[0]], [document, pooling, heads[1]])
        return SentenceTransformer(modules=[router, Normalize()], device="cpu", prompts={"query": "query: "})

    return build


def router_after_pooling(folder: Path) -> SentenceTransformer:
    router = Router.for_query_document([dense(3), Normalize()], [dense(4)])
    shared = dense(5, output=12)
    return SentenceTransformer(modules=[transformer(folder), Pooling(WIDTH, "mean"), router, shared], device="cpu")


PROMPTS = {"query": "search_query: ", "document": "search_document: ", "task": "task: "}
MODELS: dict[str, Build] = {
    "mean": simple(),
    "normalised": simple("mean", Normalize()),
    "dot": simple("cls", similarity_fn_name="dot"),
    "dot, normalised, cut": simple("mean", Normalize(), similarity_fn_name="dot", truncate_dim=8),
    "cosine, cut": simple("mean", Normalize(), truncate_dim=8),
    "max": simple("max"),
    "mean_sqrt_len": simple("mean_sqrt_len_tokens", similarity_fn_name="dot"),
    "weightedmean, left": simple("weightedmean", padding_side="left"),
    "lasttoken, decoder": simple("lasttoken", architecture="qwen3"),
    "two poolings": simple(("cls", "mean")),
    "two poolings in another order": simple(("mean", "cls"), dense(1, 2 * WIDTH, 20)),
    "length of the tokenizer": simple(max_length=40),
    "lengths of sides": simple(query_length=12, document_length=50, max_length=40),
    "positions of RoBERTa": simple(architecture="xlm-roberta", positions=64, max_length=64),
    "T5": simple(architecture="t5", max_length=100),
    "prompts": simple("mean", prompts=PROMPTS),
    "prompts, not pooled": simple("mean", prompts=PROMPTS, include_prompt=False),
    "prompts, not pooled, left": simple("cls", prompts=PROMPTS, include_prompt=False, padding_side="left"),
    "prompts, weighted, not pooled": simple("weightedmean", prompts=PROMPTS, include_prompt=False),
    "dense": simple("mean", dense(1, output=20), Dropout(0.3), Normalize()),
    "dense, GELU, residual": simple("mean", dense(1, activation_function=nn.GELU(), use_residual=True)),
    "dense, projected residual": simple("mean", dense(1, output=16, use_residual=True, bias=False)),
    "dense in the middle": simple("mean", Normalize(), dense(1), Normalize(), dense(2, activation_function=None)),
    "lower case": simple(architecture="modernbert", do_lower_case=True),
    "two transformers": routed(same_transformer=False),
    "two transformers, one dense": routed(same_transformer=False, same_head=True),
    "one transformer, two dense": routed(same_transformer=True),
    "a router after pooling": router_after_pooling,
}


def encodings(model: SentenceTransformer | Retriever) -> ndarray:
    if isinstance(model, Retriever):
        return np.concatenate([encode_texts(model, TEXTS, side) for side in ("query", "passage")])
    # One text at a time: padding before a text of BERT would shift its positions in the library.
    return np.concatenate([model.encode_query(TEXTS, batch_size=1), model.encode_document(TEXTS, batch_size=1)])


def cosines(one: ndarray, other: ndarray) -> ndarray:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(1) / lengths


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("name", MODELS)
def test_a_directory_is_read_and_written_as_the_library_does(name: str, tmp_path: Path) -> None:
    MODELS[name](tmp_path).save_pretrained(str(tmp_path / "model"))
    library = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    expected = encodings(library)
    ours = load_retriever(ModelConfig(str(tmp_path / "model")))
    assert ours.description.similarity == library.similarity_fn_name
    assert ours.width == expected.shape[1]
    assert cosines(expected, encodings(ours)).min() > 0.99999
    if ours.description.similarity == "dot":  # the lengths count
        np.testing.assert_allclose(encodings(ours), expected, atol=2e-5)
    (tmp_path / "written").mkdir()
    write_model(ours, tmp_path / "written")
    again = SentenceTransformer(str(tmp_path / "written"), device="cpu")
    assert again.similarity_fn_name == library.similarity_fn_name
    assert again.prompts == library.prompts
    assert cosines(expected, encodings(again)).min() > 0.99999
    assert cosines(expected, encodings(load_retriever(ModelConfig(str(tmp_path / "written"))))).min() > 0.99999
