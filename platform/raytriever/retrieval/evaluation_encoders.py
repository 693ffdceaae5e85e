"""The encoders of an evaluation: each loaded once to be checked, and no more of them kept than memory should hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from raytriever.models.retriever import Retriever
from raytriever.negatives.analyser import ANALYSER
from raytriever.retrieval.evaluated_models import BM25, EvaluatedModel
from raytriever.retrieval.loading import load_for_encoding

KEPT_BYTES = 4 * 2**30  # of weights; one encoder is kept however large


class Encoders:
    """Retrievers by the names of their models, those used longest ago loaded anew.

    Args:
        models: all of an evaluation; each is loaded here.
        precision, device: of encoding.
        kept_bytes: of weights.

    Raises:
        ModelError: one cannot be loaded.
    """

    def __init__(
        self, models: Sequence[EvaluatedModel], precision: str, device: torch.device, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._models = {model.name: model for model in models if model.config}
        self._precision, self._device, self._most = precision, device, kept_bytes
        self.device_type = device.type
        self._loaded: dict[str, Retriever] = {}  # the one used last stands last
        self.systems: dict[str, dict[str, Any]] = {}  # how each model reads texts, and the width of its embeddings
        for model in models:
            if model.config is None:
                self.systems[model.name] = {"model": BM25, "analyser": ANALYSER}
                continue
            retriever = self[model.name]
            system = {"model": model.config.model, "width": retriever.width, "precision": precision}
            self.systems[model.name] = system | asdict(retriever.description)

    def __getitem__(self, name: str) -> Retriever:
        retriever = self._loaded.pop(name, None)
        if retriever is None:
            config = self._models[name].config
            assert config is not None
            retriever = load_for_encoding(config, self._precision, self._device)
        self._loaded[name] = retriever
        while len(self._loaded) > 1 and sum(map(_bytes, self._loaded.values())) > self._most:
            del self._loaded[next(iter(self._loaded))]
        return retriever


def _bytes(retriever: Retriever) -> int:
    tensors = [*retriever.parameters(), *retriever.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
