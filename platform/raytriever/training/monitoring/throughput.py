"""How much a step worked through: tokens, arithmetic, memory, and the share of a device's peak that is."""

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

# Dense tensor-core bf16 and plain fp32, 10^12 operations a second, from the vendor's data sheets.
_PEAKS = {
    "NVIDIA A100": (312.0, 19.5),
    "NVIDIA H100 PCIe": (756.0, 51.0),
    "NVIDIA H100": (989.4, 67.0),
    "NVIDIA H200": (989.4, 67.0),
    "NVIDIA L4": (121.0, 30.3),
    "NVIDIA L40S": (362.0, 91.6),
}


def peak_flops(device_name: str, precision: str) -> float | None:
    """Operations a second that a device can do at most, None where that is not known; no fp32 by TF32."""
    # Longest first: one name begins another.
    for name in sorted(_PEAKS, key=len, reverse=True):
        if device_name == name or device_name.startswith((f"{name} ", f"{name}-")):
            return _PEAKS[name][precision == "fp32"] * 1e12
    return None


@dataclass(frozen=True)
class Encoding:
    """What encoding costs in operations, forward and backward: 6 a weight and token, 4 where the weight is frozen, and
    12 a layer, width and pair of tokens of one text (Chowdhery et al., 2022, arXiv:2204.02311, appendix B).

    Args:
        per_token: for all weights.
        per_pair: for all layers.
    """

    per_token: int
    per_pair: int

    @classmethod
    def of(cls, backbone: nn.Module) -> Encoding:
        """Of a transformers encoder, whole or sharded; looking up embeddings is no arithmetic, and a pooler not run."""
        idle = {
            id(parameter)
            for name, module in backbone.named_modules()
            if isinstance(module, nn.Embedding) or name == "pooler"
            for parameter in module.parameters()
        }
        per_token = sum(
            getattr(parameter, "ds_numel", parameter.numel()) * (6 if parameter.requires_grad else 4)
            for parameter in backbone.parameters()
            if id(parameter) not in idle
        )
        config: Any = backbone.config
        return cls(per_token, 12 * config.num_hidden_layers * config.hidden_size)

    def flops(self, lengths: torch.Tensor) -> float:
        """Of texts of these lengths, padding not counted, and encoding a second time neither."""
        lengths = lengths.double()
        tokens, pairs = float(lengths.sum()), float(lengths.square().sum())
        return self.per_token * tokens + self.per_pair * pairs


def text_lengths(texts: Buckets) -> torch.Tensor:
    """Tokens of each text of one side, special ones included."""
    return torch.cat([part["attention_mask"].sum(1) for part in texts.parts])


class Throughput:
    """Counts the work of global batches.

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
        """Tokens and operations of this worker's share; where the batch is still on the CPU it costs microseconds."""
        lengths = [text_lengths(side) for side in (batch.queries, batch.passages)]
        flops = sum(tower.flops(of) for tower, of in zip(self._towers, lengths, strict=True))
        return float(sum(int(of.sum()) for of in lengths)), flops

    def told(self, work: tuple[float, float], queries: int, seconds: float) -> dict[str, float]:
        """Rates of the global batch, memory of this worker; all workers call it.

        Args:
            work: what `count` answered.
            queries: of the global batch.
            seconds: that the step took.
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
    """The most memory that was ever held: by tensors on a GPU, else by this process, in MB (10^6 bytes)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
