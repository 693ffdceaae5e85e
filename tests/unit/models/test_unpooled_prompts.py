"""Prompts that are not pooled (`include_prompt: false`), when texts of one batch have different prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_models import embed

from raytriever.data.columns import QueryPrompts
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import TextPrompts
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.losses.distributed import ALONE
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.embed_corpus import embed_corpus
from raytriever.retrieval.encoding.encode_texts import encode_queries, encode_texts
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training.training_data import TrainingData

pytestmark = pytest.mark.usefixtures("own_cache")

PROMPTS = {"rows-query": "Ask me this: ", "letters-query": "Ask: ", "letters-document": "Here it is: ", "query": "Q: "}
OWN = "One more instruction: "


@pytest.fixture(scope="module")
def folder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    retriever = load_retriever(ModelConfig(str(tiny_encoder), similarity="dot"))
    retriever.description = replace(retriever.description, pool_prompt=False, prompts=PROMPTS, query_prompt="Q: ")
    path = tmp_path_factory.mktemp("unpooled") / "model"
    path.mkdir()
    write_model(retriever, path)
    return path


@pytest.fixture(scope="module")
def retriever(folder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(folder)))


@pytest.fixture(scope="module")
def library(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of FlagEmbedding, every second one with its own prompt."""
    path = tmp_path_factory.mktemp("flag") / "rows.jsonl"
    lines = [
        {"query": f"what is {n:03d}", "pos": [f"{n:03d} is it"], "neg": []} | ({"prompt": OWN} if n % 2 else {})
        for n in range(30)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def expected(library: SentenceTransformer, prompts: list[str], texts: list[str]) -> np.ndarray:
    """Return the embeddings of sentence-transformers, text by text."""
    return np.stack([library.encode(text, prompt=prompt) for prompt, text in zip(prompts, texts, strict=True)])


def test_each_text_leaves_its_own_prompt_out(retriever: Retriever, library: SentenceTransformer) -> None:
    prompts = ["Ask: ", "", "Ask me this: ", OWN, "Q: "] * 3
    texts = [f"what is {'x' * n}" for n in range(15)]
    actual = encode_texts(retriever, texts, "query", prompt=prompts)
    np.testing.assert_allclose(actual, expected(library, prompts, texts), rtol=0, atol=2e-6)
    pooled = load_retriever(ModelConfig(str(retriever.tokenizer.name_or_path)))
    pooled.description = replace(pooled.description, pool_prompt=True)
    assert np.abs(encode_texts(pooled, texts, "query", prompt=prompts) - actual).max() > 1e-2


def test_a_corpus_and_its_queries(
    folder: Path, retriever: Retriever, library: SentenceTransformer, tiny_dataset: Path, rows: Path
) -> None:
    dataset = open_dataset(tiny_dataset, ["train"])
    actual = embed_corpus(ModelConfig(str(folder)), retriever, dataset).array()[:20]
    texts = list(dataset.passages())[:20]
    np.testing.assert_allclose(actual, expected(library, ["Here it is: "] * 20, texts), rtol=0, atol=2e-6)
    flag = open_dataset(rows, ["train"])
    actual = encode_queries(retriever, flag, range(30))
    prompts = [OWN if n % 2 else "Ask me this: " for n in range(30)]
    np.testing.assert_allclose(actual, expected(library, prompts, list(flag.queries.texts)), rtol=0, atol=2e-6)


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("packs", [False, True])
def test_a_training_batch_of_two_data_sets(
    folder: Path, library: SentenceTransformer, tiny_dataset: Path, rows: Path, packs: bool
) -> None:
    retriever = load_retriever(ModelConfig(str(folder)))
    retriever.packs = packs
    config = DataConfig(dataset=str(tiny_dataset), extra_datasets=str(rows))
    data = TrainingData.open(config.datasets, config, tokenization_of(retriever), 32, 0)
    source = data.train(None)
    texts = [*data.datasets[0].queries.texts, *data.datasets[1].queries.texts]
    first = len(data.datasets[0].queries)
    seen = set()
    for step in range(2):
        batch = source.batch(step, retriever, ALONE)
        with torch.no_grad():
            queries, _ = embed(retriever.eval(), batch.queries, batch.passages)
        positions = batch.relevance.queries.tolist()
        prompts = ["Ask: " if n < first else OWN if (n - first) % 2 else "Ask me this: " for n in positions]
        seen |= set(prompts)
        wanted = expected(library, prompts, [str(texts[n]) for n in positions])
        np.testing.assert_allclose(queries.numpy(), wanted, rtol=0, atol=2e-6)
        # The chunks of gradient caching keep the prompts of their rows.
        parts = source.batch(step, retriever, ALONE, chunk=60).queries
        assert len(parts.buckets) > 3
        with torch.no_grad():
            chunked = torch.cat([retriever.encode(part, "query") for part in parts.buckets])[parts.indices]
        np.testing.assert_allclose(chunked.numpy(), wanted, rtol=0, atol=2e-6)
    assert len(seen) == 3


def test_prompts_of_columns_in_a_row() -> None:
    one = TextPrompts(((3, "a"),), QueryPrompts(np.array([1]), ["own"]))
    two = TextPrompts(((2, "b"),), QueryPrompts(np.array([0]), ["other"]))
    chained = TextPrompts.chained([one, TextPrompts(((1, "c"),)), two])
    assert chained.of(np.arange(6)) == ["a", "own", "a", "c", "other", "b"]
    assert TextPrompts(((2, "a"), (2, "b"))).of(np.array([3, 0])) == ["b", "a"]
