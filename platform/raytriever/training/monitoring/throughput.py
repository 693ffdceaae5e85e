"""Throughput of training steps: queries, tokens and FLOPs per second, peak memory."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from raytriever.losses.engine.workers import Workers
from raytriever.models.buckets import Buckets
from raytriever.training.batches import Batch

# TFLOP/s of dense bf16 on tensor cores and of fp32, from the data sheets of the vendor.
_PEAKS = {
    "NVIDIA A100": (312.0, 19.5),
    "NVIDIA H100 PCIe": (756.0, 51.0),
    "NVIDIA H100": (989.4, 67.0),
    "NVIDIA H200": (989.4, 67.0),
    "NVIDIA L4": (121.0, 30.3),
    "NVIDIA L40S": (362.0, 91.6),
}


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the peak FLOP/s of a device, None where it is not known; fp32 means without TF32."""
    # Longest first: some names are prefixes of others.
    for name in sorted(_PEAKS, key=len, reverse=True):
        if device_name == name or device_name.startswith((f"{name} ", f"{name}-")):
            return _PEAKS[name][precision == "fp32"] * 1e12
    return None


@dataclass(frozen=True)
class Encoding:
    """FLOPs of encoding, forward and backward: 6 per weight and token, 4 where the weight is frozen, and 12 per layer,
    width and pair of tokens of one text (Chowdhery et al., 2022, arXiv:2204.02311, appendix B).

    Args:
        per_token: FLOPs of all weights per token.
        per_pair: FLOPs of all layers per pair of tokens of one text.
    """

    per_token: int
    per_pair: int

    @classmethod
    def of(cls, backbone: nn.Module) -> Encoding:
        """Count the FLOPs of a transformers encoder, whole or sharded, without token embeddings and pooler."""
        not_counted = {
            id(parameter)
            for name, module in backbone.named_modules()
            if isinstance(module, nn.Embedding) or name == "pooler"
            for parameter in module.parameters()
        }
        per_token = sum(
            getattr(parameter, "ds_numel", parameter.numel()) * (6 if parameter.requires_grad else 4)
            for parameter in backbone.parameters()
            if id(parameter) not in not_counted
        )
        config: Any = backbone.config
        return cls(per_token, 12 * config.num_hidden_layers * config.hidden_size)

    def flops(self, lengths: torch.Tensor) -> float:
        """Return the FLOPs of texts of these lengths, without padding and without a second encoding."""
        lengths = lengths.double()
        tokens, pairs = float(lengths.sum()), float(lengths.square().sum())
        return self.per_token * tokens + self.per_pair * pairs


def text_lengths(texts: Buckets) -> torch.Tensor:
    """Return the tokens of each text of one side, special tokens included."""
    return torch.cat([part["attention_mask"].sum(1) for part in texts.buckets])


class Throughput:
    """Counter of the work of global batches.

    Args:
        query, passage: the towers' backbones.
        precision: `fp32` or `bf16`.
        device: of this worker.
        workers: the group.
    """

    def __init__(
        self, query: nn.Module, passage: nn.Module, precision: str, device: torch.device, workers: Workers
    ) -> None:
        self._towers = Encoding.of(query), Encoding.of(passage)
        self._device, self._workers = device, workers
        self._peak = peak_flops(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None

    def count(self, batch: Batch) -> tuple[float, float]:
        """Return tokens and FLOPs of this worker's share; takes microseconds while the batch is on the CPU."""
        lengths = [text_lengths(side) for side in (batch.queries, batch.passages)]
        flops = sum(tower.flops(of) for tower, of in zip(self._towers, lengths, strict=True))
        return float(sum(int(of.sum()) for of in lengths)), flops

    def rates(self, work: tuple[float, float], queries: int, seconds: float) -> dict[str, float]:
        """Return the rates of the global batch and the memory of this worker; all workers call it.

        Args:
            work: result of `count`.
            queries: of the global batch.
            seconds: of the step.
        """
        tokens, flops = self._workers.sum(torch.tensor(work, dtype=torch.float64, device=self._device)).tolist()
        rates = {
            "queries_per_second": queries / seconds,
            "tokens_per_second": tokens / seconds,
            "peak_memory_mb": peak_memory_mb(self._device),
        }
        if self._peak is not None:
            rates["model_flops_utilisation"] = flops / seconds / (self._peak * self._workers.size)
        return rates


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory in MB (10^6 bytes): of tensors on a GPU, of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
