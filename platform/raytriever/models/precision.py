"""Which arithmetic the encoder uses: bf16 where the hardware multiplies it faster, fp32 elsewhere."""

from __future__ import annotations

import torch


def choose_precision(asked: str | None, device: torch.device) -> str:
    """`fp32` or `bf16`: what was asked for, else what this device is fastest at."""
    if asked is not None:
        return asked
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    flags = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    fast = flags.get("avx512_bf16") or flags.get("amx_bf16") or flags.get("amx_tile")
    return "bf16" if fast else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which the encoder runs; weights and losses stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
