"""Tiny transformers of twelve architectures with their own tokenizers, and texts for them.

The weights are drawn with a larger spread than transformers draws them, so that attention is not uniform and texts have
very different embeddings. A wrong pooling, length, prompt or padding therefore changes an embedding a lot. The content
of a text drifts from its beginning to its end, so a text that is cut at another length has another embedding."""

from __future__ import annotations

import random
import shutil
import string
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

_SYLLABLES = ("ka", "lo", "mi", "ru", "ten", "sha", "vor", "el", "qui", "os", "bra", "und", "zi", "pe", "ha", "nol")
WORDS = [a + b + c for a in _SYLLABLES[:8] for b in _SYLLABLES[4:12] for c in ("", *_SYLLABLES[10:])][:400]


def embed(retriever: Any, queries: Any, passages: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embeddings of both sides of a batch, each of buckets, differentiable."""
    embeddings = [
        torch.cat([retriever.encode(bucket, side) for bucket in texts.buckets])[texts.indices]
        for texts, side in retriever.passes(queries, passages)
    ]
    return torch.cat(embeddings).split([len(queries.indices), len(passages.indices)])


def text_of(words: int, seed: int = 0) -> str:
    """Return a text of so many words; which words are frequent changes along the text."""
    rng = random.Random(f"{words} {seed}")
    first = rng.randrange(len(WORDS))
    step = len(WORDS) * rng.uniform(0.6, 1.4) / max(words, 60)
    chosen = [WORDS[int(first + index * step + rng.gauss(0, 12)) % len(WORDS)] for index in range(words)]
    return " ".join(word.capitalize() if rng.random() < 0.1 else word for word in chosen)


class Kind(NamedTuple):
    """One architecture.

    Args:
        model: class of transformers.
        config: its configuration for (vocabulary, special token ids, positions, dimension, layers).
        tokenizer: algorithm of the tokenizer: wordpiece, unigram or bpe.
        special: special tokens in the order of their ids, by their role in transformers.
        template: special tokens around a text; the decoders' end token is added on request.
        end: end token of a decoder, or None for an encoder.
        unused_positions: positions that precede the first token, as in RoBERTa.
    """

    model: str
    config: Callable[[int, dict[str, int], int, int, int], dict[str, Any]]
    tokenizer: str
    special: dict[str, str]
    template: str
    end: str | None = None
    unused_positions: int = 0


def _encoder(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    sizes = {"hidden_size": dim, "num_hidden_layers": layers, "num_attention_heads": 2}
    ids = {f"{role}_token_id": special[role] for role in special if role in ("pad", "bos", "eos", "cls", "sep")}
    return {
        **sizes,
        **ids,
        "vocab_size": vocabulary,
        "intermediate_size": 2 * dim,
        "max_position_embeddings": positions,
    }


def _modernbert(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    # Every other layer attends to the whole text, the others to 8 tokens on each side.
    kinds = ["full_attention" if layer % 2 == 0 else "sliding_attention" for layer in range(layers)]
    return {
        **_encoder(vocabulary, special, positions, dim, layers),
        "bos_token_id": special["cls"],
        "eos_token_id": special["sep"],
        "layer_types": kinds,
        "local_attention": 16,
    }


def _distilbert(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    sizes = {"dim": dim, "n_layers": layers, "n_heads": 2, "hidden_dim": 2 * dim}
    return {**sizes, "vocab_size": vocabulary, "pad_token_id": special["pad"], "max_position_embeddings": positions}


def _t5(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    sizes = {"d_model": dim, "num_layers": layers, "num_heads": 2, "d_kv": dim // 2, "d_ff": 2 * dim}
    return {
        **sizes,
        "vocab_size": vocabulary,
        "pad_token_id": special["pad"],
        "eos_token_id": special["eos"],
        "decoder_start_token_id": special["pad"],
    }


def _decoder(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    grouped = {"num_key_value_heads": 1, "head_dim": dim // 2, "use_cache": False}
    return {**_encoder(vocabulary, special, positions, dim, layers), **grouped}


def _qwen2(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    config = _decoder(vocabulary, special, positions, dim, layers)
    return {name: value for name, value in config.items() if name != "head_dim"}  # Qwen2 has dimension / heads


def _mistral(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    return {**_decoder(vocabulary, special, positions, dim, layers), "sliding_window": 16}


def _gemma3(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    kinds = ["sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(layers)]
    return {
        **_decoder(vocabulary, special, positions, dim, layers),
        "layer_types": kinds,
        "sliding_window": 16,
        "query_pre_attn_scalar": dim // 2,
    }


def _gpt2(vocabulary: int, special: dict[str, int], positions: int, dim: int, layers: int) -> dict[str, Any]:
    sizes = {"n_embd": dim, "n_layer": layers, "n_head": 2, "n_positions": positions}
    return {**sizes, "vocab_size": vocabulary, "bos_token_id": special["eos"], "eos_token_id": special["eos"]}


_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROBERTA = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
_QWEN = {"pad": "<|endoftext|>", "eos": "<|im_end|>"}
_LLAMA = {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}
_GEMMA = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>"}
KINDS = {
    "bert": Kind("Bert", _encoder, "wordpiece", _BERT, "[CLS] $A [SEP]"),
    "xlm-roberta": Kind("XLMRoberta", _encoder, "unigram", _ROBERTA, "<s> $A </s>", unused_positions=2),
    "mpnet": Kind("MPNet", _encoder, "wordpiece", _ROBERTA, "<s> $A </s>", unused_positions=2),
    "modernbert": Kind("ModernBert", _modernbert, "bpe", _BERT, "[CLS] $A [SEP]"),
    "distilbert": Kind("DistilBert", _distilbert, "wordpiece", _BERT, "[CLS] $A [SEP]"),
    "t5": Kind("T5Encoder", _t5, "unigram", {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, "$A </s>"),
    "qwen2": Kind("Qwen2", _qwen2, "bpe", _QWEN, "$A", "<|endoftext|>"),
    "qwen3": Kind("Qwen3", _decoder, "bpe", _QWEN, "$A", "<|endoftext|>"),
    "mistral": Kind("Mistral", _mistral, "bpe", _LLAMA, "<s> $A", "</s>"),
    "llama": Kind("Llama", _decoder, "bpe", _LLAMA, "<s> $A", "</s>"),
    "gpt2": Kind("GPT2", _gpt2, "bpe", _QWEN, "$A", "<|endoftext|>"),
    "gemma3_text": Kind("Gemma3Text", _gemma3, "bpe", _GEMMA, "<bos> $A", "<eos>"),
}
ARCHITECTURES = tuple(KINDS)
DECODERS = tuple(name for name, kind in KINDS.items() if kind.end)


def write_transformer(
    directory: Path,
    architecture: str,
    *,
    end_token: bool = True,
    max_length: int | None = None,
    padding_side: str | None = None,
    positions: int = 512,
    dim: int = 32,
    layers: int = 2,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Write a transformers checkpoint with random weights and a tokenizer; return its directory.

    Args:
        directory: directory that is created.
        architecture: one of `ARCHITECTURES`.
        end_token: the tokenizer of a decoder adds the end token.
        max_length: `model_max_length` of the tokenizer; none is stored by default.
        padding_side: side of the padding; by default left for decoders.
        positions: longest input of the model.
        dim: components of a token's state, a multiple of 4.
        layers: number of layers.
        seed: decides the weights.
        config: further settings of the model's configuration.
    """
    import transformers

    kind = KINDS[architecture]
    tokenizer = tokenizer_of(kind, end_token, max_length, padding_side)
    special = {role: tokenizer.convert_tokens_to_ids(token) for role, token in kind.special.items()}
    settings = kind.config(len(tokenizer), special, positions + kind.unused_positions, dim, layers) | config
    config_class = getattr(transformers, f"{kind.model.removesuffix('Encoder')}Config")
    model = getattr(transformers, f"{kind.model}Model")(config_class(**settings))
    draw_weights(model, seed)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def write_cross_encoder(encoder: Path, folder: Path, spread: float = 2.0, **settings: Any) -> Path:
    """Write a cross-encoder of one score, with random weights and the sizes and tokenizer of a BERT; return it.

    Args:
        spread: of the weights of the head.
        settings: entries of its `config.json`.
    """
    from transformers import BertConfig, BertForSequenceClassification

    shutil.copytree(encoder, folder)
    config = BertConfig.from_pretrained(encoder, num_labels=1)
    for name, value in settings.items():
        setattr(config, name, value)
    torch.manual_seed(1)
    model = BertForSequenceClassification(config)
    nn.init.normal_(model.classifier.weight, std=spread)
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int) -> None:
    """Draw all weights of a model with a spread that makes the embeddings of different texts very different."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: torch.Tensor, spread: float) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator) * spread

    words = model.get_input_embeddings()  # type: ignore[operator]
    positions = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for parameter in model.parameters():
        if parameter is words.weight:
            parameter.copy_(draw(parameter, 2.0))
        elif id(parameter) in positions:
            parameter.copy_(draw(parameter, 0.5))
        elif parameter.ndim > 1:
            parameter.copy_(draw(parameter, 1.5 / parameter.shape[1] ** 0.5))
        else:
            parameter.add_(draw(parameter, 0.1))


@cache
def _trained(algorithm: str, special: tuple[str, ...]) -> str:
    """Return a tokenizer that is trained on words of `WORDS`, as JSON."""
    corpus = [text_of(60, seed) for seed in range(60)] + ["query: passage: search_query: search_document: task"] * 9
    alphabet = list(string.ascii_letters + string.digits + string.punctuation)
    size = 400
    if algorithm == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=next(token for token in special if "unk" in token.lower())))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
        )
    elif algorithm == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=size,
            special_tokens=list(special),
            unk_token="<unk>",
            initial_alphabet=alphabet,
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size + 200,
            special_tokens=list(special),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    tokenizer.train_from_iterator(corpus, trainer)
    return str(tokenizer.to_str())


def tokenizer_of(
    kind: Kind, end_token: bool = True, max_length: int | None = None, padding_side: str | None = None
) -> Any:
    """Return a tokenizer of transformers."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(_trained(kind.tokenizer, tuple(kind.special.values())))
    template = f"{kind.template} {kind.end}" if kind.end and end_token else kind.template
    around = [(token, tokenizer.token_to_id(token)) for token in template.split() if token != "$A"]
    if around:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=around)
    names = {f"{role}_token": token for role, token in kind.special.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side=padding_side or ("left" if kind.end else "right"),
        **names,
        **({} if max_length is None else {"model_max_length": max_length}),
    )
