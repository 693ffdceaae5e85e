"""A cross-encoder: query and passage are read together, and one number says how relevant the passage is.

It is a transformers directory for sequence classification with one label, weights as safetensors only, never with code
of its own; sentence-transformers' CrossEncoder directories are such. Theirs name an activation, a sigmoid where nothing
is named: a call answers with what comes out of it, as theirs does, `logits` with what goes in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.activity import activity
from raytriever.errors import ModelError
from raytriever.models.files import read_model_file, stored_tensors
from raytriever.models.source import HUB_FILES
from raytriever.models.tokenisation import load_tokenizer
from raytriever.models.weights import check_loaded, check_sizes, check_tokens, load_config, loading
from raytriever.paths import expanded
from raytriever.storage import sha256_of

T = TypeVar("T")
# Tokens of a batch, padding included.
BATCH_TOKENS = {"cpu": 8_192, "cuda": 65_536}
ACTIVATIONS = ("Identity", "Sigmoid")
_REMEDY = "name a directory with config.json and model.safetensors of a cross-encoder"


class CrossEncoder:
    """Scores pairs; higher is more relevant.

    Args:
        directory: of the model.
        device: where it runs.
        precision: `fp32` or `bf16`, of its weights.
        length: tokens of a pair, special ones included; by default all that the model can read.

    Raises:
        ModelError: nothing usable is there: no such directory, no safetensors, no trained head, several labels, more
            modules than a transformer, an activation that is neither a sigmoid nor none.
    """

    @activity("loading the cross-encoder")
    def __init__(self, directory: Path | str, device: torch.device, precision: str, length: int | None = None) -> None:
        from transformers import AutoModelForSequenceClassification

        self.directory = directory = expanded(directory)
        config = load_config(directory, _REMEDY)
        beside = _beside(directory)
        stored = stored_tensors(directory)
        with loading(directory, _REMEDY):
            with torch.device("meta"):
                empty = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
            check_sizes(empty, stored, directory)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                directory,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        check_loaded(model, report, directory)
        if model.config.num_labels != 1:
            raise ModelError(
                f"tells {model.config.num_labels} labels apart", str(directory), "name a cross-encoder of one score"
            )
        self.activation = _activation(model.config, beside)
        if self.activation not in ACTIVATIONS:
            raise ModelError(
                f"puts its score through {self.activation!r}", str(directory), f"known are {' and '.join(ACTIVATIONS)}"
            )
        self._tokenizer = load_tokenizer(directory)
        check_tokens(self._tokenizer, model, directory)
        reads = min(self._tokenizer.model_max_length, _positions(model.config))
        if length is not None and not _SMALLEST <= length <= reads:
            raise ModelError(
                f"reads {reads} tokens of a pair, not {length}", str(directory), f"give {_SMALLEST} to {reads}"
            )
        self.length = length or reads
        self._tokens = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])
        self._model = model.to(device, torch.bfloat16 if precision == "bf16" else torch.float32).eval()

    def __call__(self, queries: Sequence[str], passages: Sequence[str]) -> Float32[ndarray, " pairs"]:
        """The score of each pair, through the model's activation."""
        logits = self.logits(queries, passages)
        return torch.from_numpy(logits).sigmoid().numpy() if self.activation == "Sigmoid" else logits

    def logits(self, queries: Sequence[str], passages: Sequence[str]) -> Float32[ndarray, " pairs"]:
        """The unbounded score of each pair, in batches of like length; of a pair that is too long the longer text is
        cut."""
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
                found = self._model(**batch.to(self._model.device)).logits[:, 0].float()
                logits[rows] = found.cpu().numpy()
                start += len(rows)
        return logits

    def digest(self) -> str:
        """SHA-256 over the files that decide a score."""
        files = sorted({file for pattern in HUB_FILES for file in self.directory.glob(pattern)})
        told = [(file.name, sha256_of(file)) for file in files]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


# The special tokens, and something of each text.
_SMALLEST = 8


def _beside(directory: Path) -> dict[str, Any]:
    """What sentence-transformers has written beside the model; empty where it has not.

    Raises:
        ModelError: it has more modules than a transformer, or puts a prompt before its texts.
    """
    modules: list[dict[str, Any]] = _optional(directory / "modules.json", list[dict[str, Any]], [])
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if len(kinds) > 1:
        raise ModelError(f"is made of {', '.join(kinds)}, no plain cross-encoder", str(directory), _REMEDY)
    told: dict[str, Any] = _optional(directory / "config_sentence_transformers.json", dict[str, Any], {})
    if told.get("default_prompt_name"):
        raise ModelError(
            f"asks for the prompt {told['default_prompt_name']!r}", str(directory), "name a cross-encoder without one"
        )
    return told


def _optional(file: Path, kind: type[T], otherwise: T) -> T:
    return read_model_file(file, kind) if file.is_file() else otherwise


def _positions(config: Any) -> int:
    """How many tokens the model can tell the places of; RoBERTa's begin to count after the padding's."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return 512
    return int(positions) - (config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta") else 0)


def _activation(config: Any, beside: dict[str, Any]) -> str:
    """The activation that sentence-transformers wrote down: beside the model since version 6, in its configuration
    before."""
    told = getattr(config, "sentence_transformers", None) or {}
    path = (
        beside.get("activation_fn")
        or told.get("activation_fn")
        or getattr(config, "sbert_ce_default_activation_function", None)
    )
    return str(path or "Sigmoid").rsplit(".", 1)[-1]
