"""Bytes that torch's allocator reports on a CPU, and encoders with new weights to measure them on."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from transformers import PretrainedConfig

from raytriever.models.device_and_precision import autocast, base_type
from raytriever.models.encoder import Encoder
from raytriever.models.model_settings import ModelConfig
from raytriever.training.memory.simulated_encoder import prepare_encoder, text_encoder_of

CPU = torch.device("cpu")


def encoder_of(
    config: PretrainedConfig,
    model: ModelConfig,
    device: str = "cpu",
    precision: str = "fp32",
    head: Sequence[nn.Module] = (),
) -> Encoder:
    """Return an encoder with new weights that is prepared for training.

    Args:
        config: its architecture.
        model: settings of adapters and activation checkpointing.
        device: `cpu`, or `meta` for an encoder without data.
        precision: `fp32` or `bf16`, which decides the type of a frozen base.
        head: modules after the pooling.
    """
    with torch.device(device):
        backbone = text_encoder_of(deepcopy(config), base_type(model.lora_rank, precision))
    return prepare_encoder(Encoder(backbone, "mean", normalize=True, head=head), model).train()


def allocated(run: Callable[[], Any]) -> tuple[int, int]:
    """Return the largest and the last number of bytes that a call allocates, next to those that exist before it."""
    gc.collect()  # or memory of earlier calls might be freed meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak, live


def live_bytes() -> int:
    """Return the bytes of all storages of tensors that Python knows; a profile misses what gloo's threads free."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some objects of torch warn when they are looked at
        tensors = [item for item in gc.get_objects() if isinstance(item, torch.Tensor) and item.device.type == "cpu"]
        tensors = [tensor for tensor in tensors if not hasattr(tensor, "to_local")]  # those hold another tensor
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def allocated_peak(run: Callable[[], Any]) -> int:
    """Return the largest number of bytes that the second of two calls allocates; the first one fills caches."""
    run()
    return allocated(run)[0]


def chunk_peak(encoder: Encoder, precision: str, texts: int, tokens: int) -> int:
    """Return the largest number of bytes that one chunk allocates forward and backward, next to the weights."""
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    ids = torch.zeros(texts, tokens, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0

    def step() -> None:
        with autocast(precision, CPU):
            embeddings = encoder({"input_ids": ids, "attention_mask": mask}).float()
            torch.autograd.grad(embeddings, trained, torch.ones_like(embeddings), allow_unused=True)

    return allocated_peak(step)
