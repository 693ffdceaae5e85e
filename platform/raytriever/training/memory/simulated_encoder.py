"""Simulated encoder: it runs one chunk forward and backward on tensors without data, and counts the bytes allocated.

The model of a `config.json` is built and run on torch's fake tensors, which have shapes and types but no memory. So the
numbers follow from the code that training runs (architecture, adapters, autocast, activation checkpointing), for every
architecture of transformers. An 8B model needs no weights and no GPU.

Two CUDA kernels save other tensors for backward than the CPU kernels do. For a GPU, this module simulates them:

1. Fused attention saves queries, keys, values, output, the log-sum-exp of each row (float32), and the mask as an
   additive bias `[texts, 1, tokens, tokens]`. It never stores the scores of each head. Grouped heads of keys and values
   are repeated before the kernel, because no fused kernel accepts grouped heads with a mask.
2. Autocast computes layer norms in float32 (on a CPU, in the type of their inputs)."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raytriever.core.errors import ModelError
from raytriever.models.decoder import disable_cache
from raytriever.models.description import Description, head_modules
from raytriever.models.device_and_precision import autocast, base_type
from raytriever.models.directory.head import load_head
from raytriever.models.directory.model_files import first_line, model_errors, quiet_transformers
from raytriever.models.directory.modules import ModelFiles
from raytriever.models.encoder import ENCODERS_WITH_DECODER, Encoder, set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prepare_for_training import prepare_for_training
from raytriever.models.prompts import Side
from raytriever.models.retriever import Retriever

CPU = torch.device("cpu")
_NAME = "raytriever_fused"


@dataclass(frozen=True)
class ChunkBytes:
    """Bytes of one chunk, in addition to the weights."""

    cast: int  # bf16 copies of weights, which autocast makes once and keeps for all chunks
    kept: int  # other bytes that are still allocated after the forward pass, because the backward pass needs them
    peak: int  # peak in forward and backward, including the gradients of this chunk


class AllocationTracker(TorchDispatchMode):
    """Counter of the bytes that operations allocate within the context.

    Attributes:
        live: bytes that are allocated now.
        peak: maximum of `live`.
        cast: bytes of the copies that autocast made of ignored tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.cast = 0
        self._known: set[int] = set()
        self._ignored: set[int] = set()

    def ignore(self, module: nn.Module) -> None:
        """Do not count the parameters and buffers of a module: the memory plan counts them separately."""
        for tensor in (*module.parameters(), *module.buffers()):
            self._ignored.add(tensor.untyped_storage()._cdata)
        self._known |= self._ignored

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the storages of its outputs."""
        outputs = func(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._add(output.untyped_storage())
        if func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self._ignored:
            self.cast += outputs.untyped_storage().nbytes()
        return outputs

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size).atexit = False

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class SimulatedEncoder:
    """Encoder of fake tensors that runs the code of training.

    Args:
        encoder: an encoder on the meta device, prepared for training.
        device: `cuda` or `cpu`, which decides the kernels.
        precision: `fp32` or `bf16`.
    """

    def __init__(self, encoder: Encoder, device: str, precision: str) -> None:
        self.encoder, self.mode, self.precision = encoder.train(), fake(encoder), precision
        self.device = device
        if device != "cpu":
            _use_cuda_kernels(encoder)

    @cached_property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that training changes."""
        return [parameter for parameter in self.encoder.parameters() if parameter.requires_grad]

    def chunk_bytes(self, texts: int, tokens: int, frees_gradients: bool = False) -> ChunkBytes:
        """Return the bytes of one chunk of `texts` texts of `tokens` tokens each, as gradient caching runs it. With
        `frees_gradients`, each gradient is freed as soon as it is complete, because `fsdp2` then reduces and frees it.

        Raise `ModelError` if the model does not encode tokens, or if its code depends on values of tensors."""
        try:
            return self._run(texts, tokens, frees_gradients)
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            kind = type(self.encoder.backbone).__name__
            raise ModelError(f"cannot be simulated ({first_line(error)})", kind, "give a text encoder") from error

    def _run(self, texts: int, tokens: int, frees_gradients: bool) -> ChunkBytes:
        tracker = AllocationTracker()
        tracker.ignore(self.encoder)
        trained = self.trained
        hooks = [
            parameter.register_post_accumulate_grad_hook(_free_gradient) for parameter in trained if frees_gradients
        ]
        with self.mode, tracker, autocast(self.precision, CPU):
            ids = torch.zeros(texts, tokens, dtype=torch.long)
            embeddings = self.encoder({"input_ids": ids, "attention_mask": torch.ones_like(ids)}).float()
            cast, kept = tracker.cast, tracker.live - tracker.cast
            embeddings.backward(torch.empty_like(embeddings))
        for hook in hooks:
            hook.remove()
        for parameter in trained:
            _free_gradient(parameter)
        return ChunkBytes(cast, kept, tracker.peak)


def _free_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def fake(module: nn.Module) -> FakeTensorMode:
    """Replace a module's meta tensors by fake CPU tensors, in place, and return the mode of the fake tensors."""
    mode, replaced = FakeTensorMode(), dict[Tensor, Tensor]()
    with mode:
        for part in module.modules():
            for tensors in cast(list[dict[str, Tensor | None]], [part._parameters, part._buffers]):
                for name, tensor in tensors.items():
                    if tensor is None:
                        continue
                    if tensor not in replaced:
                        values = torch.empty(tensor.shape, dtype=tensor.dtype)
                        trained = tensor.requires_grad
                        replaced[tensor] = nn.Parameter(values, trained) if isinstance(tensor, nn.Parameter) else values
                    tensors[name] = replaced[tensor]
    return mode


def simulate(
    files: ModelFiles, side: Side, model: ModelConfig, description: Description, device: str, precision: str
) -> SimulatedEncoder:
    """Build an encoder from `config.json`, and prepare it for training; no weights are read."""
    config = files.sides[side].transformer.config
    with model_errors(files.directory), quiet_transformers(warnings=False), torch.device("meta"):
        backbone = text_encoder_of(config, base_type(model.lora_rank, precision))
    with torch.device("meta"):
        encoder = Encoder(backbone, description.pooling, description.similarity == "cosine", description.truncate_dim)
        encoder.head = load_head(head_modules(files, description, model)[side], encoder.pooled_dim, {}, False)
    prepare_encoder(encoder, model)
    return SimulatedEncoder(encoder, device, precision)


def prepare_encoder(encoder: Encoder, model: ModelConfig) -> Encoder:
    """Prepare an encoder for training as `prepare_for_training` does, without dropout, in place; return it."""
    set_dropout(encoder, 0.0)
    prepare_for_training(cast(Retriever, _Towers(encoder)), model, seed=0)
    return encoder


def text_encoder_of(config: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Build the model of a transformers configuration, with new weights on the current device."""
    from transformers import AutoModel, AutoModelForTextEncoding

    disable_cache(config)
    kind = AutoModelForTextEncoding if config.model_type in ENCODERS_WITH_DECODER else AutoModel
    model: nn.Module = kind.from_config(config, trust_remote_code=False, dtype=dtype)
    return model


class _Towers(nn.Module):
    """The part of a `Retriever` that is prepared for training."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.query = self.passage = encoder


def use_float32_norms(encoder: nn.Module) -> None:
    """Make the layer norms of an encoder compute in float32, in place, as autocast does on CUDA but not on a CPU."""
    for module in encoder.modules():
        if type(module) is nn.LayerNorm:
            module.__class__ = _Float32LayerNorm


def _use_cuda_kernels(encoder: Encoder) -> None:
    """Replace, in place, functions whose CUDA kernels save other tensors than their CPU kernels."""
    use_float32_norms(encoder)
    backbone: Any = encoder.backbone
    if backbone.config._attn_implementation == "sdpa":
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(_NAME, _attention)
        AttentionMaskInterface.register(_NAME, sdpa_mask)
        backbone.set_attn_implementation(_NAME)


class _Float32LayerNorm(nn.LayerNorm):
    """Layer norm as autocast computes it on CUDA."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize states."""
        if not torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        weight, bias = (None if tensor is None else tensor.float() for tensor in (self.weight, self.bias))
        return nn.functional.layer_norm(input.float(), self.normalized_shape, weight, bias, self.eps)


def _attention(*args: Any, **kwargs: Any) -> Any:
    """Attention function for transformers: the library's SDPA attention, with the simulated fused kernel inside."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    with _FusedKernel():
        return sdpa_attention_forward(*args, **kwargs)


class _FusedKernel(TorchFunctionMode):
    """Replacement of `scaled_dot_product_attention` that saves the same tensors as the fused CUDA kernel."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = args[:3]
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (tensor.to(torch.bfloat16) for tensor in (query, key, value))
        return _FusedAttention.apply(query, key, value, kwargs.get("attn_mask"))


class _FusedAttention(torch.autograd.Function):
    """Fused attention that allocates and saves the right tensors, but computes no values."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        bias = None if mask is None else mask.to(query.dtype)
        texts, heads, tokens, _ = query.shape
        mixed = query.new_empty(texts, tokens, heads, value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(texts, heads, tokens, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, bias, mixed, sums)
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_bias = torch.empty_like(ctx.saved_tensors[3]) if ctx.needs_input_grad[3] else None
        return *(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3]), by_bias
