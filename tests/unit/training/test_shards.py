"""States that somebody else wrote: what does not fit the model is one line, and takes no memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from raytriever.errors import StorageError
from raytriever.training.parallel.model_state import Slice, replicated_state, restore_replicated


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return module, optimizer


def without(name: str) -> Callable[[list[Slice]], list[Slice]]:
    return lambda slices: [one for one in slices if one.name != name]


def changed(name: str, values: torch.Tensor, shape: tuple[int, ...]) -> Callable[[list[Slice]], list[Slice]]:
    return lambda slices: [Slice(name, values, 0, shape) if one.name == name else one for one in slices]


def test_a_whole_state_is_restored() -> None:
    module, optimizer = trained()
    other, its = trained()
    restore_replicated(replicated_state(module, optimizer), other, its)
    assert torch.equal(module.weight, other.weight)
    restore_replicated([one for one in replicated_state(module, optimizer) if ":" not in one.name], other, its)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("weight"), r"is of another model: weight is absent in the checkpoint and \(2, 3\) in the model"),
        (without("weight:exp_avg"), "weight has the moments exp_avg_sq, step, expected all or none"),
        (without("bias:step"), "bias has the moments exp_avg, exp_avg_sq, expected all or none"),
        (lambda s: [*s, Slice("weight:further", torch.zeros(6), 0, (2, 3))], "expected all or none"),
        (lambda s: [*s, Slice("other:step", torch.zeros(1), 0, ())], r"is of another model: other is"),
        (changed("weight", torch.zeros(6, dtype=torch.int64), (2, 3)), "values that are no floating-point numbers"),
        (changed("weight", torch.zeros(6), (1 << 40, 1 << 20)), f"weight has 6 of its {1 << 60} values"),
        (changed("bias:exp_avg", torch.zeros(3), (2,)), "bias:exp_avg has 3 of its 2 values"),
        (changed("weight", torch.zeros(5), (2, 3)), "weight has 5 of its 6 values"),
        (changed("bias", torch.zeros(2), (1, 2)), r"bias is \(1, 2\) in the checkpoint and \(2,\) in the model"),
    ],
)
def test_a_state_that_does_not_fit_is_one_line(change: Callable[[list[Slice]], list[Slice]], says: str) -> None:
    module, optimizer = trained()
    with pytest.raises(StorageError, match=says) as refused:
        restore_replicated(change(list(replicated_state(module, optimizer))), *trained())
    assert "\n" not in str(refused.value)
