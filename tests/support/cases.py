"""A zoo of model directories, and what each must show.

Every case is one directory, which `Case.write` writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from directories import (
    DIM,
    E5,
    INSTRUCTION,
    SWITCHES,
    as_release_1,
    as_release_2,
    cased,
    custom_module,
    dense,
    plain,
    routed,
    router_after_pooling,
    static_embedding,
    truncates_left,
    two_towers,
    two_towers_with_dense,
    written,
)  # fmt: skip
from sentence_transformers.sentence_transformer.modules import Normalize
from tiny_models import text_of
from torch import nn

# Numbers of words: 3 to 3,000 tokens and more, by tokenizer.
TEXTS = [text_of(words, seed=words) for words in (2, 9, 40, 90, 200, 420, 900, 2_000)]
LONG = 4_096
EVERY_MODE = tuple(SWITCHES)


@dataclass(frozen=True)
class Case:
    """One directory of the zoo.

    Args:
        name: name of the directory.
        write: writes it.
        refused: word of the one-line refusal, or empty where the directory must be read.
    """

    name: str
    write: Callable[[Path], None]
    refused: str = ""


CASES = [
    Case("bert-mean-normalize", written("bert", "mean", Normalize, max_length=512)),
    Case("bert-similarity-absent", written("bert", max_length=512)),
    Case("bert-dot", written("bert", similarity="dot", max_length=512)),
    Case("bert-euclidean", written("bert", similarity="euclidean"), refused="euclidean"),
    Case("bert-cls", written("bert", "cls", Normalize)),
    Case("bert-max", written("bert", "max")),
    Case("bert-mean-sqrt-len", written("bert", "mean_sqrt_len_tokens", similarity="dot")),
    Case("bert-weightedmean", written("bert", "weightedmean")),
    Case("bert-lasttoken", written("bert", "lasttoken", Normalize)),
    Case("bert-mean-then-cls", written("bert", ("mean", "cls"))),
    Case("bert-every-mode-dense", written("bert", EVERY_MODE, lambda: dense(6 * DIM, 24))),
    Case("bert-length-128", written("bert", max_length=128)),
    Case("bert-positions-300", written("bert", positions=300)),
    Case("bert-positions-2048", written("bert", positions=2048, max_length=2048)),
    Case("bert-length-by-side", written("bert", max_length=512, lengths={"query_length": 32, "document_length": 200})),
    Case("bert-left-end-kept", written("bert", max_length=64, edit=truncates_left)),
    Case("bert-padding", written("bert", "cls")),
    Case("bert-labse", written("bert", "cls", lambda: dense(DIM, DIM, nn.Tanh()), Normalize)),
    Case("bert-dense-residual", written("bert", "mean", lambda: dense(DIM, DIM, nn.Tanh(), use_residual=True))),
    Case("bert-dense-residual-wider", written("bert", "mean", lambda: dense(DIM, 48, nn.GELU(), use_residual=True))),
    Case(
        "bert-normalize-dense",
        written("bert", "mean", Normalize, lambda: dense(DIM, 24, nn.Tanh()), similarity="dot"),
    ),
    Case("bert-truncate-dim", written("bert", "mean", Normalize, truncate_dim=12)),
    Case("bert-truncate-dim-dot", written("bert", "mean", truncate_dim=20, similarity="dot")),
    Case("bert-default-prompt", written("bert", prompts={"web": "task: "}, default_prompt_name="web")),
    Case("bert-static", static_embedding, refused="StaticEmbedding"),
    Case("bert-custom-module", custom_module, refused="custom_code"),
    Case("minilm-release-2", written("bert", "mean", Normalize, max_length=512, edit=as_release_2())),
    Case(
        "release-2-switches",
        written("bert", ("cls", "max"), lambda: dense(2 * DIM, 24, nn.Tanh()), edit=as_release_2()),
    ),
    Case("release-2-tokenizer-args", written("bert", edit=as_release_2(128, tokenizer_args={"model_max_length": 64}))),
    Case("release-1-roberta", written("xlm-roberta", "mean", max_length=512, edit=as_release_1)),
    Case("release-2-lower-case", written("bert", edit=cased)),
    Case("xlm-roberta-e5", written("xlm-roberta", "mean", Normalize, prompts=E5, max_length=512)),
    Case(
        "xlm-roberta-passage-prompt",
        written("xlm-roberta", prompts={"query": "query: ", "passage": "passage: "}, max_length=512),
    ),
    Case("mpnet-length-384", written("mpnet", "mean", Normalize, max_length=384)),
    Case("mpnet-release-2", written("mpnet", "cls", max_length=512, edit=as_release_2(256))),
    Case("distilbert-tas-b", written("distilbert", "cls", similarity="dot")),
    Case("modernbert-gte", written("modernbert", "cls", positions=LONG, max_length=LONG, layers=3)),
    Case(
        "modernbert-nomic",
        written(
            "modernbert", positions=LONG, layers=3, prompts={"query": "search_query: ", "document": "search_document: "}
        ),
    ),
    Case("modernbert-lasttoken-left", written("modernbert", "lasttoken", padding_side="left")),
    Case("t5-sentence", written("t5", "mean", lambda: dense(DIM, 24, bias=False), Normalize, max_length=256)),
    Case(
        "t5-instructor",
        written(
            "t5", "mean", lambda: dense(DIM, DIM, bias=False), Normalize, prompts=E5, include=False, max_length=512
        ),
    ),
    Case("bert-prompt-not-pooled", written("bert", "cls", prompts=E5, include=False, max_length=512)),
    Case(
        "qwen3-prompt-not-pooled",
        written("qwen3", "weightedmean", prompts={"query": INSTRUCTION}, include=False, max_length=512),
    ),
    Case(
        "qwen2-gte",
        written("qwen2", "lasttoken", Normalize, prompts={"query": INSTRUCTION}, positions=LONG, max_length=LONG),
    ),
    Case(
        "qwen3-embedding",
        written("qwen3", "lasttoken", Normalize, prompts={"query": INSTRUCTION}, positions=LONG, max_length=LONG),
    ),
    Case("qwen3-no-end-token", written("qwen3", "lasttoken", end_token=False, max_length=512)),
    Case("qwen3-right-padding", written("qwen3", "lasttoken", Normalize, padding_side="right", max_length=512)),
    Case(
        "mistral-e5",
        written("mistral", "lasttoken", Normalize, prompts={"query": INSTRUCTION}, positions=LONG, max_length=LONG),
    ),
    Case("llama-last", written("llama", "lasttoken", positions=LONG, max_length=1024)),
    Case("llama-bidirectional", written("llama", "mean", Normalize, max_length=512, is_causal=False)),
    Case(
        "gemma3-embedding",
        written(
            "gemma3_text",
            "mean",
            lambda: dense(DIM, 64, seed=6, bias=False),
            lambda: dense(64, DIM, seed=7, bias=False),
            Normalize,
            prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
            use_bidirectional_attention=True,
            positions=2048,
            max_length=2048,
        ),
    ),
    Case("gemma3-mean-causal", written("gemma3_text", max_length=512)),
    Case("plain-bert", plain("bert", max_length=256)),
    Case("plain-qwen3-base", plain("qwen3", max_length=512)),
    Case("plain-qwen3-causal-lm", plain("qwen3", causal_lm=True, max_length=512)),
    Case("router-two-towers", two_towers()),
    Case("router-two-poolings", two_towers("mean"), refused="mean and cls"),
    Case("router-dense-dot", two_towers_with_dense),
    Case("router-shared-dense", routed(same_transformer=False, same_head=True)),
    Case("router-shared-transformer", routed(same_transformer=True)),
    Case("router-after-pooling", router_after_pooling),
]
