"""FSDP2: weights, gradients and optimizer state are sharded over the workers by PyTorch's `fully_shard`.

Between steps, a worker has its shard of every weight (Zhao et al., 2023, arXiv:2304.11277). The weights of a block,
also frozen weights, are gathered for its forward and its backward pass, then freed. Their gradients are
reduce-scattered after each chunk. No worker ever has all weights or gradients. Every chunk communicates, so all workers
encode the same number of chunks. A worker with fewer chunks encodes its first chunk again, without effect on the loss.

Gradient caching usually computes gradients by `torch.autograd.grad`, which does not call the hooks of FSDP2. So each
chunk has its own backward pass here. These passes leave some gradients unreduced, such as those of the parameters of
the loss. The backward pass of an empty module (`_Root`) reduces them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from raytriever.losses.distributed import ensure_group
from raytriever.losses.loss import LossOutput
from raytriever.models.checkpoint_model import Slice
from raytriever.training.batch_loader import Batch
from raytriever.training.parallel.model_state import STEP, device_of_steps, restore, slices_of
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategies import Strategy


class FullyShard(Strategy):
    """Strategy `fsdp2`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        objective, optimizer = self._objective, self._optimizer
        self._plain = {module: (type(module), _hooks(module)) for module in objective.modules()}
        attributes = {module: set(module.__dict__) for module in self._plain}
        old = {id(parameter): name for name, parameter in objective.named_parameters()}
        self._root = _Root(objective)
        self._shards = self._shard()
        self._added = {module: set(module.__dict__) - names for module, names in attributes.items()}
        new = dict(objective.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [new[old[id(parameter)]] for parameter in group["params"]]
        objective.chunks_communicate = True

    def _shard(self) -> list[Any]:
        """Shard the parameters in place, and return the modules whose parameters are gathered together."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        ensure_group(self._device)
        # The warning is about in-place changes of outputs that are views. Nothing changes embeddings in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
        retriever = self._objective.retriever
        _unshare(retriever.query.backbone, retriever.passage.backbone)
        mesh = init_device_mesh(self._device.type, (self._workers.size,))
        for tower in {id(tower): tower for tower in (retriever.query, retriever.passage)}.values():
            for block in tower.blocks:
                fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(retriever, mesh=mesh, reshard_after_forward=True)
        root: Any = fully_shard(self._root, mesh=mesh, reshard_after_forward=False)
        root.set_reshard_after_backward(False, recurse=False)
        register_fsdp_forward_method(retriever, "encode")
        with torch.no_grad():
            root(torch.zeros((), device=self._device))  # the first module that is called becomes FSDP2's root
        root.reshard()
        return [module for module in root.modules() if isinstance(module, FSDPModule)]

    def forward_backward(self, batch: Batch) -> LossOutput:
        """See `Strategy.forward_backward`."""
        with self._gathered():
            output: LossOutput = self._objective(batch, self._workers)
            if output.value.requires_grad:
                output.value.backward()
            # Reduce the gradients that the backward passes of the blocks have not reduced.
            self._root(torch.zeros((), device=self._device, requires_grad=True)).backward()
        return output

    def abandon(self) -> bool:
        """See `Strategy.abandon`."""
        super().abandon()
        # Before torch 2.13, FSDP2 cannot be reset after a backward pass that failed halfway.
        return hasattr(self._shards[0], "reset_iter_state")

    def state(self) -> Iterator[Slice]:
        """See `Strategy.state`."""
        for name, parameter in self._objective.named_parameters():
            own, start, shape = _local(parameter), self._start(parameter), tuple(parameter.shape)
            if not parameter.requires_grad or not own.numel():
                continue
            state = self._optimizer.state.get(parameter, {})
            optimizer_state = {key: _local(value).flatten() for key, value in state.items()}
            yield from slices_of(name, own.flatten(), start, shape, optimizer_state)

    @torch.no_grad()
    def load_state(self, slices: Iterable[Slice]) -> None:
        """See `Strategy.load_state`."""

        def put(name: str, parameter: nn.Parameter, kind: str, values: Tensor) -> None:
            if kind == STEP:
                step = values.to(device_of_steps(self._optimizer, parameter), copy=True)
                self._optimizer.state.setdefault(parameter, {})[STEP] = step
                return
            target: Tensor = parameter
            if kind:
                target = self._optimizer.state.setdefault(parameter, {}).setdefault(kind, torch.zeros_like(parameter))
            own, start = _local(target), self._start(parameter)
            own.copy_(values.flatten()[start : start + own.numel()].view(own.shape))

        restore(slices, self._objective, put)

    def release(self) -> None:
        """See `Strategy.release`."""
        for module in self._shards:
            module.unshard()
        self._objective.chunks_communicate = False
        for module, (kind, hooks) in self._plain.items():
            module.__class__ = kind
            module.__dict__.update(hooks)
            for name in self._added[module]:
                del module.__dict__[name]

    def _start(self, parameter: Tensor) -> int:
        """Return the index of the first value of this worker's slice. The parameter is cut between rows."""
        if not hasattr(parameter, "to_local"):
            return 0
        rows = -(-len(parameter) // self._workers.size)
        return min(self._workers.rank * rows, len(parameter)) * parameter[:1].numel()

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Gather the weights of the root module, such as those of the loss, for a whole step."""
        root = self._shards[0]
        root.unshard()
        caches_casts = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # cached casts would stay in memory for the whole pass
        try:
            yield
        except BaseException:
            for parameter in self._objective.parameters():
                parameter.grad = None
            if hasattr(root, "reset_iter_state"):
                root.reset_iter_state()
            self._optimizer.zero_grad(set_to_none=True)
            raise
        finally:
            torch.set_autocast_cache_enabled(caches_casts)
            root.reshard()


class _Root(nn.Module):
    """Empty root module. FSDP2 ends its backward pass by reducing all gradients that are not reduced yet."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, value: Tensor) -> Tensor:
        """Return a copy of `value`."""
        return value.clone()


def _unshare(query: nn.Module, passage: nn.Module) -> None:
    """Copy the frozen weights that two towers share, because FSDP2 cannot gather them for one tower only."""
    own = {id(parameter) for parameter in query.parameters()}
    if query is passage:
        return
    for module in passage.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in own:
                setattr(module, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))


def _local(tensor: Any) -> Tensor:
    """Return this worker's slice of a tensor; the whole tensor if it is not sharded."""
    own = tensor.detach()
    local: Tensor = own.to_local() if hasattr(own, "to_local") else own
    return local


def _hooks(module: nn.Module) -> dict[str, Any]:
    return {name: value.copy() for name, value in module.__dict__.items() if "hooks" in name and hasattr(value, "copy")}
