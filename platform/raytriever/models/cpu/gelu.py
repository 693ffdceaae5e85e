"""GELU of an encoder that trains on a CPU (Hendrycks & Gimpel 2016, arXiv:1606.08415), forward and backward.

torch's GELU takes 7 % of a training step of MiniLM in fp32. This one computes the error function with errors below 3e-7
(`vectors.gelu`), and overwrites its input where no gradient needs it. Other types than float32, and tensors whose
size is no multiple of 16, use torch's."""

from __future__ import annotations

from typing import Any

import numba
import torch
from torch import Tensor, nn

from raytriever.vectors import LANES, gelu, gelu_gradients, in_threads

_BLOCK = 1 << 10  # numbers, of which threads take some at a time


class Gelu(nn.Module):
    """GELU after a linear layer, whose result nothing else reads."""

    def forward(self, states: Tensor) -> Tensor:
        """Apply the function to each element."""
        is_supported = states.device.type == "cpu" and states.dtype == torch.float32 and states.is_contiguous()
        if not is_supported or states.numel() % LANES or not states.numel():
            return nn.functional.gelu(states)
        if not (torch.is_grad_enabled() and states.requires_grad):
            _apply(states, states)
            return states
        activated: Tensor = _Gelu.apply(states)
        return activated


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        ctx.save_for_backward(states)
        activated = torch.empty_like(states)
        _apply(states, activated)
        return activated

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (states,) = ctx.saved_tensors
        by_states = torch.empty_like(states)
        arrays = (one.detach().reshape(-1).numpy() for one in (states, grad.contiguous(), by_states))
        in_threads(_differentiate, -(-states.numel() // _BLOCK), *arrays)
        return by_states


def _apply(states: Tensor, activated: Tensor) -> None:
    arrays = (one.detach().reshape(-1).numpy() for one in (states, activated))
    in_threads(_activate, -(-states.numel() // _BLOCK), *arrays)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _activate(first, last, values, out):  # type: ignore[no-untyped-def]
    start, end = first * _BLOCK, min(values.size, last * _BLOCK)
    gelu(values, out, start, end - start)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _differentiate(first, last, values, gradients, out):  # type: ignore[no-untyped-def]
    start, end = first * _BLOCK, min(values.size, last * _BLOCK)
    gelu_gradients(values, gradients, out, start, end - start)
