"""Loader of retrievers for encoding only: weights in the chosen precision, and faster layers on a CPU.

On a CPU, the faster linear layers add numbers in another order, so the last bits differ. Such a retriever cannot be
trained or saved. Attention itself is computed by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from raytriever.core.errors import ConfigError, setting
from raytriever.core.paths import FUNCTION, OPENAI
from raytriever.models.device_and_precision import choose_precision, default_device, type_of
from raytriever.models.device_memory import move_to
from raytriever.models.encoder import check_precision
from raytriever.models.inference import TextEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.external_encoders.encode_function import open_function

# Types of models whose int8 embeddings have been compared with those in fp32.
INT8_MODELS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "electra"})
# Largest quantized values of states and weights. AVX2 adds two products (state x weight) in 16 bits, with 128
# added to each state. So a sum is at most 2 x (127 + 128) x 64 < 2^15. Therefore sums are exact on every processor.
LARGEST_STATE, LARGEST_WEIGHT = 127, 64


def load_for_encoding(
    config: ModelConfig, precision: str | None, device: torch.device | None = None, weights: bool = True
) -> Retriever:
    """Load a retriever for inference. Its weights are cast to `precision` here, which is faster than in every call.

    On a CPU its layers can no longer be trained or saved.

    Args:
        config: settings that name the model, or a checkpoint of a run, and say how it reads texts.
        precision: `fp32`, `bf16` or `int8`. None means the faster of `fp32` and `bf16` on the device.
        device: device of the retriever; by default the GPU if there is one, else the CPU.
        weights: whether to read the weights; without them the retriever only describes the model and tokenizes.

    Raises:
        ModelError, ConfigError: see `load_retriever`. Also if the model or the device does not support `precision`.
    """
    device = device or default_device()
    precision = choose_precision(precision, device)
    # `.to(torch.bfloat16)` would be wrong here: it also rounds the frequencies of rotary position embeddings.
    retriever = load_retriever(config, type_of(precision), weights)
    if not weights:
        return retriever
    retriever = move_to(retriever, device)
    retriever.choose_packing(precision)
    if precision == "int8":
        _quantize(retriever)
    retriever = speed_up(retriever) if device.type == "cpu" else retriever
    for backbone in _backbones(retriever):
        check_precision(backbone, precision)
    return retriever


def _endpoint(config: ModelConfig) -> TextEncoder:
    from raytriever.retrieval.external_encoders.openai_embeddings import (
        open_endpoint,  # imported here, because other models need no HTTP client
    )

    return open_endpoint(config)


# Prefix of a name -> function that opens an encoder without files.
OPENERS: dict[str, Callable[[ModelConfig], TextEncoder]] = {OPENAI: _endpoint, FUNCTION: open_function}


def open_encoder(config: ModelConfig, precision: str | None, device: torch.device | None = None) -> TextEncoder:
    """Open the encoder that a configuration names: load a model, or connect to an endpoint or a function.

    Args:
        precision: precision of a model; see `load_for_encoding`.
        device: device of a model; see `load_for_encoding`.

    Raises:
        UserError: the model cannot be loaded, or the endpoint does not answer.
    """
    for prefix, opener in OPENERS.items():
        if config.model.startswith(prefix):
            return opener(config)
    return load_for_encoding(config, precision, device)


def log_prompts(retriever: TextEncoder, dataset: str, log: Callable[[str], None]) -> None:
    """Report the prompts that a model has for this data set only."""
    retriever.prompts.check([dataset])
    prompts = retriever.prompts_of(dataset)
    if prompts.query_name or prompts.passage_name:
        log(f"{dataset}: {prompts}")


def speed_up(retriever: Retriever) -> Retriever:
    """Replace the linear layers of a retriever on a CPU, in place. Afterwards it cannot be trained or saved."""
    dtype = next(retriever.parameters()).dtype
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return retriever
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return retriever
    for backbone in _backbones(retriever):
        _replace_linear(backbone, PackedLinear)
    return retriever


def _backbones(retriever: Retriever) -> list[Any]:
    """Return the transformers of a retriever. Heads are left out: they are small and stay in float32."""
    return list(
        {id(backbone): backbone for backbone in (retriever.query.backbone, retriever.passage.backbone)}.values()
    )


def _replace_linear(module: nn.Module, kind: Callable[[nn.Linear], nn.Module]) -> None:
    for name, child in list(module.named_modules()):
        if type(child) is nn.Linear:
            module.set_submodule(name, kind(child))


class PackedLinear(nn.Module):
    """Linear layer whose weight is packed once, into the layout of oneDNN.

    On AMD processors with AVX2, oneDNN multiplies fp32 matrices 2.2 times as fast as MKL, torch's default library.

    Attributes:
        weight: packed weight. The attribute has this name because models such as T5 read `weight.dtype`.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, states: Float[Tensor, "*texts inputs"]) -> Float[Tensor, "*texts outputs"]:
        """Apply the layer."""
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")
        return outputs


class Int8Linear(nn.Module):
    """Linear layer with an exact product of 8-bit integers.

    Weights are quantized once, one scale for each output. States are quantized at every call, one scale for each token
    (LLM.int8(), Dettmers et al., 2022, arXiv:2208.07339, section 2.1, without its 16-bit outliers). So the result of a
    token does not depend on the other tokens of the batch. A NaN in a weight or a state makes results NaN."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._weight, scales = _quantized(linear.weight.detach().float(), LARGEST_WEIGHT)
        self._scales, self.bias = scales.T.contiguous(), None if linear.bias is None else linear.bias.detach()

    def forward(self, states: Float[Tensor, "*texts inputs"]) -> Float[Tensor, "*texts outputs"]:
        """Apply the layer."""
        rows, factors = _quantized(states.flatten(0, -2), LARGEST_STATE)
        results = torch._int_mm(rows, self._weight.T).to(torch.float32).mul_(self._scales).mul_(factors)
        if self.bias is not None:
            results += self.bias
        return results.view(*states.shape[:-1], -1)


def _quantized(rows: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    factors = rows.abs().amax(1, keepdim=True) / largest
    return (rows / factors.where(factors != 0, 1)).round_().to(torch.int8), factors


def _quantize(retriever: Retriever) -> None:
    for backbone in _backbones(retriever):
        kind = backbone.config.model_type
        if kind not in INT8_MODELS:
            remedy = "use fp32 or bf16; models of these types have int8: " + ", ".join(sorted(INT8_MODELS))
            raise ConfigError(f"a model of type {kind} has no int8 layers", setting("precision"), remedy)
        _replace_linear(backbone.encoder, Int8Linear)
    retriever.is_int8 = True
