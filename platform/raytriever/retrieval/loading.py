"""A retriever as it encodes: on a device, its weights themselves in the arithmetic chosen."""

from __future__ import annotations

import torch

from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever


def load_for_encoding(config: ModelConfig, precision: str, device: torch.device | None = None) -> Retriever:
    """A retriever whose weights themselves are in `precision`: faster than casting at every call.

    Args:
        config: which, and how it reads texts.
        precision: `fp32` or `bf16`.
        device: where it encodes; the GPU of this process when None, if it has one.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    retriever = load_retriever(config).to(device)
    return retriever.to(torch.bfloat16) if precision == "bf16" else retriever
