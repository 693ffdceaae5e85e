"""One training step equals that of sentence-transformers on the same batch: loss, and gradient of every parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from batch_ids import BatchIds, build_loss
from directories import DIM, INSTRUCTION, dense, two_towers, written
from gradients import distance
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.util import cos_sim, dot_score
from tiny_models import text_of
from torch import Tensor, nn

from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.batch_loader import Batch
from raytriever.training.parallel.objective import Objective

PAIRS, TEMPERATURE = 12, 0.05
QUERIES = [text_of(3 + number, seed=number) for number in range(PAIRS)]
POSITIVES = [text_of(20 + 5 * number, seed=100 + number) for number in range(PAIRS)]
NEGATIVES = [text_of(70 - 4 * number, seed=200 + number) for number in range(PAIRS)]
WRITERS: dict[str, Callable[[Path], None]] = {
    "encoder": written("bert", "mean", prompts={"query": "query: "}, max_length=64),
    "encoder, dot product": written("distilbert", "cls", similarity="dot", max_length=64),
    "decoder, last pooling": written("qwen3", "lasttoken", Normalize, prompts={"query": INSTRUCTION}, max_length=128),
    "Dense head": written(
        "t5",
        "mean",
        lambda: dense(DIM, 24, nn.Tanh()),
        lambda: dense(24, 16, seed=6, bias=False),
        Normalize,
        max_length=128,
    ),
    "two towers": two_towers(),
}
# T5 has a position bias, so its texts cannot be packed.
CASES = [(name, packs) for packs in (False, True) for name in WRITERS if not packs or name != "Dense head"]


Texts = tuple[list[str], list[str], list[str]]  # queries, positives and negatives
SHORT = QUERIES, POSITIVES, NEGATIVES


def by_library(folder: Path, texts: Texts = SHORT) -> tuple[float, list[Tensor]]:
    """Return loss and gradients of the library's loss, the gradients of each tower in the order of its modules."""
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    similarity = {"cosine": cos_sim, "dot": dot_score}[model.similarity_fn_name]
    features = [
        model.preprocess(text, prompt=model.prompts[task], task=task)
        for text, task in zip(texts, ("query", "document", "document"), strict=True)
    ]
    for feature, task in zip(features, ("query", "document", "document"), strict=True):
        feature["task"] = task
    loss = MultipleNegativesRankingLoss(model.eval(), scale=1 / TEMPERATURE, similarity_fct=similarity)
    value = loss(features, None)
    value.backward()
    return value.item(), gradients_of(model)


def by_raytriever(folder: Path, chunk: int | None, packs: bool, texts: Texts = SHORT) -> tuple[float, list[Tensor]]:
    """Return loss and gradients of a step, with or without gradient caching, of packed or padded texts."""
    queries, positives, negatives = texts
    retriever = load_retriever(ModelConfig(str(folder)))
    retriever.packs = packs
    loss = build_loss(LossConfig("infonce", temperature=TEMPERATURE), retriever.description.similarity == "cosine")
    documents = torch.arange(2 * len(queries))
    ids = BatchIds(torch.arange(len(queries)), documents[: len(queries), None], documents)
    sides = retriever.tokenize(queries, "query", chunk), retriever.tokenize(positives + negatives, "passage", chunk)
    output = Objective(retriever, loss, "fp32")(Batch(*sides, ids, chunk), ALONE)
    output.value.backward()
    return output.value.item(), gradients_of(retriever)


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Return the gradients of all parameters but those of BERT's pooler, which no embedding uses."""
    used = [parameter for name, parameter in model.named_parameters() if "pooler" not in name]
    return [torch.zeros_like(item) if item.grad is None else item.grad for item in used]


@pytest.mark.fast_every(15)
@pytest.mark.parametrize("chunk", [None, 80, 10_000], ids=["whole batch", "80 tokens", "one chunk"])
@pytest.mark.parametrize(("name", "packs"), CASES)
def test_loss_and_gradients_equal_those_of_the_library(
    name: str, packs: bool, chunk: int | None, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    WRITERS[name](folder)
    loss, gradients = by_raytriever(folder, chunk, packs)
    library_loss, library_gradients = by_library(folder)
    assert library_loss > 0.1
    assert loss == pytest.approx(library_loss, rel=1e-5)
    assert distance(gradients, library_gradients) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2_048, pytest.param(8_192, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize(("architecture", "pooling"), [("modernbert", "cls"), ("qwen3", "lasttoken")])
@pytest.mark.parametrize("packs", [False, True], ids=["padded", "packed"])
def test_gradients_of_long_texts_equal_those_of_the_library(
    architecture: str, pooling: str, tokens: int, packs: bool, tmp_path: Path
) -> None:
    """A negative text is as short as a word, so that buckets and chunks of very different lengths are added up."""
    folder = tmp_path / "model"
    written(architecture, pooling, positions=tokens, max_length=tokens)(folder)
    texts = [text_of(9, 1), text_of(30, 2)], [text_of(tokens, 3), text_of(50, 4)], [text_of(tokens // 3, 5), "a"]
    loss, gradients = by_raytriever(folder, 1, packs, texts)
    library_loss, library_gradients = by_library(folder, texts)
    assert loss == pytest.approx(library_loss, rel=1e-4)
    assert distance(gradients, library_gradients) < 1e-4
