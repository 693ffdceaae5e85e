"""`TextEncoder` for a user's function of texts and their side, or for a sentence-transformers model.

A function has a registered name while its encoder exists. Every setting that names a model accepts this name."""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from secrets import token_hex
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.core.errors import ConfigError
from raytriever.core.paths import FUNCTION
from raytriever.models.description import Description
from raytriever.models.inference import PendingEmbeddings
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import TASK_TYPE, Prompts, PromptTable, Side

_numbers = count()
_encoders: weakref.WeakValueDictionary[str, FunctionEncoder] = weakref.WeakValueDictionary()


class OutsideEncoder:
    """Encoder whose weights this process does not have. It reads texts instead of token ids, and accepts any prompt."""

    tokenizer = None
    is_local = is_int8 = False
    device = torch.device("cpu")
    nbytes = 0
    description: Description
    prompts: PromptTable

    def prompts_of(self, *names: str, task_type: str = TASK_TYPE) -> Prompts:
        """Return the prompts of a data set that has one of these names."""
        return self.prompts.of(*names, task_type=task_type)

    def check_prompt(self, prompt: str, side: Side) -> None:
        """Do nothing: any prompt is accepted."""

    def assemble(self, contents: Sequence[str], side: Side) -> Sequence[str]:
        """Return the contents unchanged."""
        return contents


class FunctionEncoder(OutsideEncoder):
    """Encoder that calls `encode(texts, side) -> array [texts, dim]`. The score of two texts is their dot product."""

    precision = "function"

    def __init__(self, encode: Callable[[list[str], Side], Any], title: str) -> None:
        self._encode, self._title = encode, title
        self.name = f"{FUNCTION}{re.sub('[^a-zA-Z0-9_.-]', '_', title)}-{next(_numbers)}"
        self._digest = token_hex(16)
        self.description = Description(pooling="function", similarity="dot", query_length=0, passage_length=0)
        self.prompts = PromptTable()
        self.dim = 0
        self.dim = self._call(["dim"], "passage").shape[1]
        _encoders[self.name] = self

    def summary(self) -> str:
        """Return the dimension and the similarity in one line."""
        return f"a function, {self.dim:,} components, dot product"

    def digest(self, config: ModelConfig, side: Side) -> str:
        """Return a digest that is unique to this object, because nobody can know what the function computes."""
        return hashlib.sha256(f"{self._digest} {side}".encode()).hexdigest()

    def contents(self, texts: Sequence[str], side: Side, prompt: str | Sequence[str] | None = None) -> Sequence[str]:
        """Return the texts, each after its prompt if one is passed."""
        prompts = [prompt or ""] * len(texts) if prompt is None or isinstance(prompt, str) else prompt
        return [prompt + text for prompt, text in zip(prompts, texts, strict=True)]

    def announce(self, contents: Iterable[str]) -> None:
        """Do nothing: there is no cost to announce."""

    def token_budget(self, device: str | None = None) -> int:
        """Return 1: this encoder makes its own batches, so nothing reads the number."""
        return 1

    def batches(self, inputs: Sequence[str], budget: int) -> list[list[int]]:
        """Return a single batch: the function makes its own batches."""
        return [list(range(len(inputs)))] if inputs else []

    def start(
        self,
        inputs: Sequence[str],
        rows: Sequence[Sequence[int]],
        side: Side,
        on_progress: Callable[[int], None] | None = None,
        prompt: str | Sequence[str] | None = None,
    ) -> PendingEmbeddings:
        """Encode all texts."""
        values = self._call(inputs, side) if inputs else np.zeros((0, self.dim), np.float32)
        if on_progress is not None:
            on_progress(len(inputs))
        return PendingEmbeddings(torch.from_numpy(values), range(len(inputs)), len(inputs))

    def _call(self, texts: Sequence[str], side: Side) -> Float32[ndarray, "texts dim"]:
        values = self._encode(list(texts), side)
        array = np.array(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
        if array.ndim != 2 or array.shape[0] != len(texts) or not array.shape[1] or array.dtype.kind not in "fiu":
            what = f"returns {array.dtype} {list(array.shape)} for {len(texts):,} texts"
            raise ConfigError(what, self._title, "return an array of numbers, [texts, components]")
        if self.dim and array.shape[1] != self.dim:
            what = f"returns {array.shape[1]:,} components, but returned {self.dim:,} components before"
            raise ConfigError(what, self._title, "return as many components for every text")
        if not np.isfinite(array).all():
            bad = int(np.flatnonzero(~np.isfinite(array).all(1))[0])
            raise ConfigError(f"returns NaN or infinity for {texts[bad][:60]!r}", self._title, "return finite numbers")
        return array.astype(np.float32)


def function_encoder(encode: Any, title: str) -> FunctionEncoder:
    """Return an encoder that wraps a function or a sentence-transformers model. Raises `ConfigError` otherwise."""
    if hasattr(encode, "encode_query") and hasattr(encode, "encode_document"):
        is_cosine = getattr(encode, "similarity_fn_name", None) in (None, "cosine")

        def of_library(texts: list[str], side: Side) -> Any:
            method = encode.encode_query if side == "query" else encode.encode_document
            return method(texts, normalize_embeddings=is_cosine, show_progress_bar=False)

        return FunctionEncoder(of_library, title)
    if not callable(encode):
        remedy = "give names, paths, models, runs, functions encode(texts, side) or SentenceTransformers"
        raise ConfigError(f"an element has the type {type(encode).__name__}", "models", remedy)
    return FunctionEncoder(encode, title)


def open_function(config: ModelConfig) -> FunctionEncoder:
    """Return the registered encoder that a configuration names."""
    return _encoders[config.model]
