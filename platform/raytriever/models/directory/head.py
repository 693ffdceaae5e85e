"""Head of an encoder: the modules of sentence-transformers between pooling and truncation.

A head is a sequence of Dense layers, normalizations and dropouts. Their weights are trained with the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from raytriever.core.errors import ModelError
from raytriever.core.reading.arrays import open_tensors
from raytriever.models.directory.model_files import REMEDY, WEIGHTS, check_tensor, model_errors, stored_tensors
from raytriever.models.directory.modules import DENSE, DROPOUT, NORMALIZE, Module

# Elementwise activations of torch.nn whose constructors need no argument.
ACTIVATIONS = (
    "Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU", "ELU", "SELU", "CELU", "ReLU6", "Softplus",
    "Softsign", "Hardtanh", "Hardswish", "Hardsigmoid", "Mish", "LogSigmoid", "Tanhshrink", "PReLU",
)  # fmt: skip
_POOLED = "sentence_embedding"
_SAVE = "save the model again with sentence-transformers"
Vectors = Float[Tensor, "texts dim"]


class Dense(nn.Module):
    """Linear layer with an activation and an optional residual connection, in float32.

    Its submodules and stored tensors have the same names as in sentence-transformers.

    Args:
        activation: name of a class in `torch.nn`; see `ACTIVATIONS`.
        residual: add the input to the output. If their dimensions differ, a second linear layer projects the input.
    """

    def __init__(self, dim: int, output: int, bias: bool, activation: str, residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, output, bias=bias)
        self.activation_function: nn.Module = getattr(nn, activation)()
        self.use_residual = residual
        if residual and dim != output:
            self.residual = nn.Linear(dim, output, bias=False)

    def forward(self, pooled: Vectors) -> Vectors:
        """Return the transformed vectors."""
        if torch.is_autocast_enabled(pooled.device.type):  # bf16 would round the embeddings
            with torch.autocast(pooled.device.type, enabled=False):
                return self._transform(pooled)
        return self._transform(pooled)

    def _transform(self, pooled: Vectors) -> Vectors:
        pooled = pooled.to(self.linear.weight.dtype)
        output: Tensor = self.activation_function(self.linear(pooled))
        if not self.use_residual:
            return output
        return output + (self.residual(pooled) if hasattr(self, "residual") else pooled)

    def settings(self) -> dict[str, Any]:
        """Return the settings as sentence-transformers writes them."""
        activation = type(self.activation_function)
        return {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": f"{activation.__module__}.{activation.__name__}",
            "module_input_name": _POOLED,
            "module_output_name": _POOLED,
            **({"use_residual": True} if self.use_residual else {}),
        }


class Normalize(nn.Module):
    """Scale every vector to length one."""

    def forward(self, pooled: Vectors) -> Vectors:
        """Return the scaled vectors."""
        return nn.functional.normalize(pooled, dim=-1)


def load_head(
    modules: Sequence[Module], dim: int, loaded: Mapping[Path, nn.Module], weights: bool = True
) -> nn.ModuleList:
    """Load the modules of a head, in float32. Raise `ModelError` if a file is missing or damaged, a dimension does not
    fit, or a setting is not supported.

    Args:
        dim: dimension of a pooled vector.
        loaded: modules that are already loaded, by folder. They are reused.
    """
    head = nn.ModuleList()
    for module in modules:
        if module.kind == DENSE:
            known = loaded.get(module.folder)
            dense = known if isinstance(known, Dense) else _load_dense(module, weights)
            if (expected := dense.linear.in_features) != dim:
                what = f"expects vectors of {expected} components, but the modules before it return {dim}"
                raise ModelError(what, str(module.file), "use the Dense module that belongs to this model")
            dim = dense.linear.out_features
            head.append(dense)
        elif module.kind == NORMALIZE:
            _check_names(module)
            head.append(Normalize())
        elif module.kind == DROPOUT:
            with model_errors(module.file):
                head.append(nn.Dropout(module.settings.get("dropout", 0.2)))
    return head.eval()


def output_dim(head: Sequence[nn.Module], dim: int) -> int:
    """Return the dimension of the vectors after a head."""
    return next((layer.linear.out_features for layer in reversed(head) if isinstance(layer, Dense)), dim)


def head_text(head: Sequence[nn.Module]) -> list[str]:
    """Describe each module of a head that affects embeddings, as in `Dense 384 to 128 (Tanh)`."""
    texts = []
    for layer in head:
        if isinstance(layer, Dense):
            added = ", residual" if layer.use_residual else ""
            sizes = f"{layer.linear.in_features} to {layer.linear.out_features}"
            texts.append(f"Dense {sizes} ({type(layer.activation_function).__name__}{added})")
        elif isinstance(layer, Normalize):
            texts.append("Normalize")
    return texts


def _load_dense(module: Module, weights: bool) -> Dense:
    _check_names(module)
    settings = module.settings
    path = settings.get("activation_function", "torch.nn.modules.activation.Tanh") or "Identity"
    package, _, activation = path.rpartition(".")
    if package.split(".")[:2] not in ([""], ["torch", "nn"]) or activation not in ACTIVATIONS:
        reason = f"activation function {path!r} is not supported"
        raise ModelError(reason, str(module.file), f"use one of {', '.join(ACTIVATIONS)}")
    bias, residual = settings.get("bias", True) is not False, settings.get("use_residual") is True
    with model_errors(module.file), torch.device("meta"):
        dense = Dense(settings["in_features"], settings["out_features"], bias, activation, residual)
    if weights:
        dense.load_state_dict(_weights(dense, module.folder), assign=True)
    return dense


def _weights(dense: Dense, folder: Path) -> dict[str, Tensor]:
    file = folder / WEIGHTS
    stored, own = stored_tensors(folder, _SAVE), dense.state_dict()
    for name, tensor in own.items():
        if name not in stored:
            raise ModelError(f"has no tensor {name}", str(file), _SAVE)
        check_tensor(name, stored[name], tensor.shape, file)
    with open_tensors(file, REMEDY, ModelError) as tensors:
        return {name: tensors.get_tensor(name).to(torch.float32, copy=True) for name in own}


def _check_names(module: Module) -> None:
    for name in ("module_input_name", "module_output_name"):
        value = module.settings.get(name) or _POOLED
        if value != _POOLED:
            raise ModelError(f"{name} {value!r} is not supported", str(module.file), f"use a module of the {_POOLED}")
