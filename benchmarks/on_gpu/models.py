"""Encoders with random weights in the shapes of MiniLM, XLM-R-Base and XLM-R-Large, and texts of random tokens.

The directories are written by transformers and read by raytriever and sentence-transformers as any other directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

VOCABULARY = 30_000
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


@dataclass(frozen=True)
class Shape:
    """Sizes of an encoder.

    Args:
        dim: of the states.
        layers: number of layers.
        heads: of the attention.
        inner: dimension of the feed-forward network.
        vocabulary: number of token embeddings.
    """

    dim: int
    layers: int
    heads: int
    inner: int
    vocabulary: int = VOCABULARY


SHAPES = {
    "minilm": Shape(384, 6, 12, 1536, 30_522),
    "xlm-r-base": Shape(768, 12, 12, 3072, 250_002),
    "xlm-r-large": Shape(1024, 24, 16, 4096, 250_002),
    "tiny": Shape(32, 2, 2, 64),
}


def write_model(folder: Path, name: str, device: torch.device) -> Path:
    """Write an encoder of a shape with random weights and a tokenizer of words, and return its directory."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    shape, directory = SHAPES[name], folder / name
    words = [*_SPECIAL, *(f"w{number}" for number in range(VOCABULARY - len(_SPECIAL)))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=512,
    ).save_pretrained(directory)
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        max_position_embeddings=514,
        type_vocab_size=1,
    )
    with torch.device(device):
        model = XLMRobertaModel(config, add_pooling_layer=False)
    model.cpu().save_pretrained(directory)
    return directory


def contents(texts: int, longest: int, seed: int, median: float = 0.7, spread: float = 0.5) -> list[ndarray]:
    """Return random tokens of texts without special tokens; lengths are log-normal, as those of real passages.

    Args:
        texts: number of texts.
        longest: tokens with the two special ones, at most; by default about a quarter of the texts has that length.
        seed: of the samples.
        median, spread: of the log-normal distribution; the median as a fraction of `longest`.
    """
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(median * longest), spread, texts), 3, longest - 2).astype(int)
    return [rng.integers(len(_SPECIAL), VOCABULARY, length) for length in lengths]


def words_of(tokens: ndarray) -> str:
    """Return the text whose tokens these are."""
    return " ".join(f"w{token - len(_SPECIAL)}" for token in tokens)
