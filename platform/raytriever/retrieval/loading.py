"""A retriever as it encodes: on a device, its weights themselves in the arithmetic chosen."""

from __future__ import annotations

import torch

from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.cpu_kernels import speed_up


def load_for_encoding(config: ModelConfig, precision: str, device: torch.device | None = None) -> Retriever:
    """A retriever whose weights themselves are in `precision`: faster than casting at every call. It is for encoding
    alone: on a CPU its layers are no longer those that can be trained or written.

    Args:
        config: which, and how it reads texts.
        precision: `fp32` or `bf16`.
        device: where it encodes; the GPU of this process when None, if it has one.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    retriever = load_retriever(config).to(device)
    retriever = retriever.to(torch.bfloat16) if precision == "bf16" else retriever
    return speed_up(retriever) if device.type == "cpu" else retriever
