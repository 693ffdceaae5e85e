"""Cross-encoder: a model that reads a query and a passage together and returns one relevance score.

Its directory holds a transformers model for sequence classification with one label, such as a CrossEncoder of
sentence-transformers. Weights are read from safetensors only, and no code of the directory runs. The directory names an
activation; the default is a sigmoid. A call returns scores after the activation; `logits` returns scores before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.core.errors import ConfigError, ModelError, setting
from raytriever.core.paths import expanded
from raytriever.core.progress import activity
from raytriever.core.store.commit import sha256_of
from raytriever.models.directory.hub_or_local import HUB_FILES
from raytriever.models.directory.model_files import REMEDY, check_loaded, check_tokens, load_weights
from raytriever.models.directory.modules import Library, ModelFiles
from raytriever.models.encoder import check_precision
from raytriever.models.tokenization import load_tokenizer

# Maximum number of tokens per batch, including padding.
BATCH_TOKENS = {"cpu": 8_192, "cuda": 65_536}
POSITIONS = 512  # maximum number of tokens of a pair if the model has no limit
_SMALLEST = 8  # smallest limit of tokens of a pair: its special tokens, and a few tokens of each text
ACTIVATIONS = ("Identity", "Sigmoid")


class CrossEncoder:
    """Scorer of query-passage pairs; higher scores are more relevant. Raise `ConfigError` if the precision is `int8`.
    Raise `ModelError` if the directory is missing; it has no safetensors, no trained head or more than one label; it
    has modules besides a transformer; or its activation is neither a sigmoid nor the identity.

    Args:
        precision: `fp32` or `bf16`, the type of the weights.
        length: maximum number of tokens of a pair, including special tokens; by default the limit of the model.
    """

    @activity("loading the cross-encoder")
    def __init__(self, directory: Path | str, device: torch.device, precision: str, length: int | None = None) -> None:
        from transformers import AutoModelForSequenceClassification

        if precision == "int8":
            raise ConfigError("a cross-encoder has no int8 layers", setting("precision"), "use fp32 or bf16")
        self.directory = directory = expanded(directory)
        files = ModelFiles.read(directory)
        _check_plain(files)
        transformer = files.sides["passage"].transformer
        model, loading_info = load_weights(
            AutoModelForSequenceClassification, transformer.config, directory, torch.float32
        )
        check_loaded(model, loading_info, directory)
        if model.config.num_labels != 1:
            what = f"has {model.config.num_labels} labels"
            raise ModelError(what, str(directory), "use a cross-encoder with one label")
        self.activation = _activation(model.config, files.library)
        if self.activation not in ACTIVATIONS:
            what = f"has the activation {self.activation!r}"
            raise ModelError(what, str(directory), f"use a cross-encoder with {' or '.join(ACTIVATIONS)}")
        self._tokenizer = load_tokenizer(transformer)
        check_tokens(self._tokenizer, model, directory)
        limits = transformer.tokenizer_limit, POSITIONS if transformer.positions is None else transformer.positions
        limit = min(limit for limit in limits if limit is not None)
        if limit < _SMALLEST:
            raise ModelError(f"reads at most {limit} tokens of a pair, fewer than {_SMALLEST}", str(directory), REMEDY)
        if length is not None and not _SMALLEST <= length <= limit:
            what = f"cannot read pairs of {length} tokens"
            raise ModelError(what, str(directory), f"give a length from {_SMALLEST} to {limit}")
        self.length = length or limit
        self._tokens = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])
        self._model = model.to(device, torch.bfloat16 if precision == "bf16" else torch.float32).eval()
        check_precision(self._model, precision)

    def __call__(self, queries: Sequence[str], passages: Sequence[str]) -> Float32[ndarray, " pairs"]:
        """Return the score of each pair after the model's activation."""
        logits = self.logits(queries, passages)
        return torch.from_numpy(logits).sigmoid().numpy() if self.activation == "Sigmoid" else logits

    def logits(self, queries: Sequence[str], passages: Sequence[str]) -> Float32[ndarray, " pairs"]:
        """Return the score of each pair before the activation. If a pair is too long, its longer text is truncated."""
        tokens = self._tokenizer(list(queries), list(passages), truncation=True, max_length=self.length, padding=False)
        lengths = np.array([len(ids) for ids in tokens["input_ids"]])
        order = np.argsort(-lengths, kind="stable")
        logits = np.empty(len(order), dtype=np.float32)
        start = 0
        with torch.inference_mode():
            while start < len(order):
                rows = order[start : start + max(1, self._tokens // int(lengths[order[start]]))]
                batch = self._tokenizer.pad(
                    {name: [column[row] for row in rows] for name, column in tokens.items()}, return_tensors="pt"
                )
                outputs = self._model(**batch.to(self._model.device)).logits[:, 0].float()
                logits[rows] = outputs.cpu().numpy()
                start += len(rows)
        return logits

    def digest(self) -> str:
        """Return the SHA-256 of all files that scores depend on."""
        files = sorted({file for pattern in HUB_FILES for file in self.directory.glob(pattern)})
        digests = [(file.name, sha256_of(file)) for file in files]
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _check_plain(files: ModelFiles) -> None:
    pipeline = files.sides["passage"]
    after = [module.kind for module in (pipeline.pooling, *pipeline.head) if module is not None]
    if after or pipeline.transformer.folder != files.directory:
        what = f"consists of {', '.join(['Transformer', *after])} and is not a plain cross-encoder"
        raise ModelError(what, str(files.directory), "use a cross-encoder without further modules")
    if prompt := files.library.get("default_prompt_name"):
        raise ModelError(f"needs the prompt {prompt!r}", str(files.directory), "give a cross-encoder without a prompt")


def _activation(config: Any, settings: Library) -> str:
    """Return the activation that the settings of sentence-transformers 6 name, or else `config.json`."""
    in_config = getattr(config, "sentence_transformers", None) or {}
    of_old = getattr(config, "sbert_ce_default_activation_function", None)
    path = settings.get("activation_fn") or in_config.get("activation_fn") or of_old or "Sigmoid"
    return str(path).rsplit(".", 1)[-1]
