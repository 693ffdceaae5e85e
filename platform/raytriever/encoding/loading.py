"""Load a retriever for encoding only, with its weights in the chosen precision and with faster layers on a CPU.

The layers on a CPU sum in another order, so the last bits differ. Such a retriever cannot be trained or written.

1. Linear layers use oneDNN with weights that are packed once, and a GELU after a layer runs in the same pass, as
   torch.compile does for frozen models. oneDNN multiplies fp32 2.2 times as fast as the MKL that torch otherwise uses
   on AMD processors.
2. Attention of models of the types of `cpu.layers.MODELS` is the kernel of `models.cpu.attention`. In bf16 of other
   models, on processors with AMX, and for heads whose width is no multiple of 16, it is two batched products and a
   softmax in fp32, for a few texts at a time so that their scores stay in the cache.
3. With `int8`, the linear layers of the blocks multiply 8-bit integers (`models.cpu.int8_linear`).

MiniLM in bf16 on one core with 151 tokens per text, in texts per second of processor time: 57 without both, 65 with
the first, 68 with both. sentence-transformers in fp32: 18. Models without such layers are not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from raytriever.errors import ConfigError, setting
from raytriever.models.config import ModelConfig
from raytriever.models.cpu.attention import attend, supports
from raytriever.models.cpu.layers import MODELS
from raytriever.models.memory import move_to
from raytriever.models.precision import default_device, has_matrix_units, type_of
from raytriever.models.retriever import Retriever, load_retriever

ATTENTION = "raytriever_cpu"
# Attention scores at a time: 1 MB in bf16, the second-level cache of a core.
_SCORES = 1 << 19
_MASKED = -1e30
# Longer texts use torch's fused attention: the scores of 12 heads of one text of 8,192 tokens would take 3 GB.
_LONGEST = 1_024


def load_for_encoding(config: ModelConfig, precision: str, device: torch.device | None = None) -> Retriever:
    """Load a retriever whose weights are stored in `precision`, which is faster than a cast at every call.

    The retriever is for encoding only: on a CPU its layers can no longer be trained or written.

    Args:
        config: names the model and how it reads texts.
        precision: `fp32`, `bf16` or `int8`.
        device: device of the retriever; by default the GPU if there is one, else the CPU.
    """
    device = device or default_device()
    # Not `.to(torch.bfloat16)`, which would also round the frequencies of rotary positions.
    retriever = move_to(load_retriever(config, type_of(precision)), device)
    retriever.choose_packing(precision)
    if precision == "int8":
        _quantise(retriever)
    return speed_up(retriever) if device.type == "cpu" else retriever


def report_prompts(retriever: Retriever, dataset: str, report: Callable[[str], None]) -> None:
    """Report the prompts that a model has for one data set alone."""
    retriever.prompts.check([dataset])
    prompts = retriever.prompts_of(dataset)
    if prompts.query_name or prompts.passage_name:
        report(f"{dataset}: {prompts}")


def speed_up(retriever: Retriever) -> Retriever:
    """Replace layers of a retriever on a CPU by faster ones, in place; it cannot be trained or written afterwards."""
    dtype = next(retriever.parameters()).dtype
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return retriever
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return retriever
    for backbone in _backbones(retriever):
        _pack(backbone)
        supported = getattr(type(backbone), "_supports_attention_backend", False)
        supported = supported and (dtype == torch.bfloat16 or backbone.config.model_type in MODELS)
        if supported and backbone.config._attn_implementation == "sdpa":
            _register_attention()
            backbone.set_attn_implementation(ATTENTION)
    return retriever


def _backbones(retriever: Retriever) -> list[Any]:
    """Return the transformers of a retriever. Its heads stay float32, because they are small."""
    return list({id(each): each for each in (retriever.query.backbone, retriever.passage.backbone)}.values())


class PackedLinear(nn.Module):
    """Linear layer with a weight in the layout of oneDNN, optionally followed by a GELU."""

    def __init__(self, linear: nn.Linear, gelu: bool = False) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()
        # oneDNN's own GELU takes a sixth of the product's time in fp32 on AVX2, torch's in place a fourteenth.
        self._gelu_after = gelu and linear.weight.dtype == torch.float32
        fused = gelu and not self._gelu_after
        self._activation: tuple[str, list[float], str] = ("gelu", [], "none") if fused else ("none", [], "")

    def forward(self, states: Float[Tensor, "*texts inputs"]) -> Float[Tensor, "*texts outputs"]:
        """Apply the layer and its activation."""
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(states, self._weight, self._bias, *self._activation)
        return torch.ops.aten.gelu_(outputs) if self._gelu_after else outputs


def _quantise(retriever: Retriever) -> None:
    """Replace the linear layers of the blocks of a retriever by those of 8-bit integers; raises `ConfigError`."""
    from raytriever.models.cpu.int8_linear import Int8FeedForward, Int8Linear

    for backbone in _backbones(retriever):
        kind = backbone.config.model_type
        if kind not in MODELS:
            remedy = "use fp32 or bf16; models of these types have int8: " + ", ".join(sorted(MODELS))
            raise ConfigError(f"a model of type {kind} has no int8 layers", setting("precision"), remedy)
        for layer in list(backbone.encoder.modules()):
            between, down = getattr(layer, "intermediate", None), getattr(getattr(layer, "output", None), "dense", None)
            act = getattr(between, "intermediate_act_fn", None)
            if between is not None and down is not None and getattr(act, "act", None) is nn.functional.gelu:
                layer.output.dense = Int8FeedForward(between.dense, down)
                layer.intermediate = nn.Identity()
        for name, linear in list(backbone.encoder.named_modules()):
            if type(linear) is nn.Linear:
                backbone.encoder.set_submodule(name, Int8Linear(linear))
    retriever.is_int8 = True


def _pack(module: nn.Module) -> None:
    """Replace the linear layers below a module by packed ones."""
    act = getattr(module, "intermediate_act_fn", None)
    if getattr(act, "act", None) is nn.functional.gelu and type(module.dense) is nn.Linear:
        module.dense, module.intermediate_act_fn = PackedLinear(module.dense, gelu=True), nn.Identity()
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, PackedLinear(child))
        else:
            _pack(child)


def _register_attention() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _attend(
    module: nn.Module,
    query: Float[Tensor, "texts heads tokens width"],
    key: Float[Tensor, "texts heads tokens width"],
    value: Float[Tensor, "texts heads tokens width"],
    mask: Bool[Tensor, " texts #heads tokens tokens"] | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Float[Tensor, "texts tokens heads width"], None]:
    """Return softmax(query key^T scaling) value; transformers' own attention handles unsupported arguments."""
    # The kernel has no mask for each query, as models with windows of attention need.
    is_plain = getattr(getattr(module, "config", None), "model_type", "") in MODELS
    is_fast = query.dtype == torch.float32 or not has_matrix_units()
    is_compiled = is_plain and is_fast and supports(query, key, value)
    is_unsupported = any(more.get(name) is not None for name in ("softcap", "position_bias", "cache"))
    if (
        is_unsupported
        or getattr(module, "is_causal", False)
        or query.shape != key.shape
        or query.shape[2] > _LONGEST
        or (query.dtype != torch.bfloat16 and not is_compiled)
        or (mask is not None and mask.dtype != torch.bool)
    ):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        outputs: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **more)
        return outputs
    if is_compiled:
        return attend(query, key, value, mask, scaling), None
    texts, heads, tokens, width = query.shape
    mixed = query.new_empty(texts, tokens, heads, width)
    step = max(1, _SCORES // (heads * tokens * tokens))
    for start in range(0, texts, step):
        some = slice(start, start + step)
        scores = (query[some] @ key[some].transpose(-1, -2)).float()
        scores.mul_(width**-0.5 if scaling is None else scaling)
        if mask is not None:
            scores.masked_fill_(~mask[some], _MASKED)
        mixed[some] = (scores.softmax(-1).to(value.dtype) @ value[some]).transpose(1, 2)
    return mixed, None
