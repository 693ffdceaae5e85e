"""Arithmetic of the encoder: bf16 on hardware that multiplies it faster, else fp32.

Trained weights are float32, and `bf16` is autocast. The frozen weights under LoRA adapters are never updated, so they
are held once, in the precision of the arithmetic."""

from __future__ import annotations

import torch

from raytriever.errors import ConfigError


def choose_precision(precision: str | None, device: torch.device) -> str:
    """Return the precision, `fp32` or `bf16`; None selects the faster one on this device.

    Raises:
        ConfigError: `bf16` on a GPU without it.
    """
    if device.type == "cuda" and precision != "fp32":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if precision == "bf16" and not has_bf16:
            capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
            raise ConfigError(
                f"{torch.cuda.get_device_name(device)} has no bf16 (compute capability {capability}, bf16 needs 8.0)",
                "--precision",
                "use fp32, or leave it out",
            )
        return "bf16" if has_bf16 else "fp32"
    if precision is not None:
        return precision
    flags = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    is_fast = flags.get("avx512_bf16") or flags.get("amx_bf16") or flags.get("amx_tile")
    return "bf16" if is_fast else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the autocast context of the encoder; trained weights and losses stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def type_of(precision: str) -> torch.dtype:
    """Return the type of weights that are only read, in a precision."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def base_type(lora_rank: int, precision: str) -> torch.dtype:
    """Return the type in which training loads an encoder: that of the arithmetic if adapters are trained instead."""
    return type_of(precision) if lora_rank else torch.float32
