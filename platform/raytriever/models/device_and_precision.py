"""Device and precision of the encoder: a GPU if there is one, and bf16 if the hardware is faster with it.

Trained weights are float32, and `bf16` means autocast. With LoRA adapters, the frozen weights are never updated, so
they are stored directly in the precision of the computation."""

from __future__ import annotations

import os
import warnings
from functools import cache

import torch

from raytriever.core.errors import ConfigError, setting
from raytriever.core.terminal import one_line, warn


def default_device() -> torch.device:
    """Return the GPU if this process can use one, otherwise the CPU. If no GPU is used
    although `CUDA_VISIBLE_DEVICES` names one, or because the driver does not work, one line says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return torch.device("cuda")
    reasons = [one_line(str(warning.message)) for warning in caught if "CUDA" in str(warning.message)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if reasons:
        _report(f"No GPU is used: {reasons[0].removeprefix('CUDA initialization: ')[:300]}")
    elif visible not in ("", "-1"):
        reason = "CUDA finds no such GPU" if torch.version.cuda else "this PyTorch is built without CUDA"
        _report(f"CUDA_VISIBLE_DEVICES={visible} has no effect, because {reason}; the CPU is used.")
    return torch.device("cpu")


_report = cache(warn)


def choose_precision(precision: str | None, device: torch.device) -> str:
    """Return the precision, `fp32`, `bf16` or `int8`. For None, return the faster of `fp32` and `bf16` on this device.
    Raise `ConfigError` if `bf16` is requested on a GPU that lacks it, or `int8` on a GPU."""
    if device.type == "cuda" and precision == "int8":
        what = "int8 encodes on a CPU only"
        raise ConfigError(what, setting("precision"), "use bf16, or hide the GPUs with CUDA_VISIBLE_DEVICES=''")
    if device.type == "cuda" and precision != "fp32":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if precision == "bf16" and not has_bf16:
            capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
            what = f"{torch.cuda.get_device_name(device)} has no bf16 (compute capability {capability}, bf16 needs 8.0)"
            raise ConfigError(what, setting("precision"), "use fp32")
        return "bf16" if has_bf16 else "fp32"
    if precision is not None:
        return precision
    flags = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    has_bf16 = flags.get("avx512_bf16") or flags.get("amx_bf16") or flags.get("amx_tile")
    # If `ONEDNN_MAX_CPU_ISA` forbids the instructions, bf16 is emulated, and is several times slower than fp32.
    return "bf16" if has_bf16 and torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the autocast context of the encoder. Trained weights and losses stay in float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def type_of(precision: str) -> torch.dtype:
    """Return the type of frozen weights for a precision."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def base_type(lora_rank: int, precision: str) -> torch.dtype:
    """Return the type in which training loads an encoder: `type_of(precision)` with LoRA adapters, else float32."""
    return type_of(precision) if lora_rank else torch.float32
