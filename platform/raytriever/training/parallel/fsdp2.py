"""FSDP2: weights, gradients and optimizer state are sharded over the workers by PyTorch's `fully_shard`.

Between steps a worker holds its shard of every trained weight (Zhao et al., 2023, arXiv:2304.11277). Within a step:

- *Whole*, if the memory allows: all weights are gathered once, all chunks of the batch are encoded, and the summed
  gradients are reduce-scattered once. Frozen weights are not sharded: a step needs them whole anyway.
- *By block*: the weights of a block, frozen ones too, are gathered for its forward and its backward pass and then
  freed, and its gradients are reduce-scattered after each chunk. No worker ever holds all weights or gradients. Every
  chunk communicates, so all workers encode the same number of chunks: those with fewer encode one of theirs again,
  without effect on the loss.

Gradient caching takes gradients by `torch.autograd.grad`, which FSDP2 does not see. So the whole step hands the sums
over to FSDP2 as gradients of a backward pass of nothing, and by block each chunk has a backward pass of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from raytriever.losses.distributed import ensure_group
from raytriever.losses.loss import LossOutput
from raytriever.models.slices import Slice
from raytriever.training.batch import Batch, CutBatch
from raytriever.training.memory.arithmetic import fits_whole
from raytriever.training.parallel.model_state import STEP, device_of_steps, restore, slices_of
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategy import Strategy, StrategyInputs, Update, UpdateGuard


class FullyShard(Strategy):
    """The strategy `fsdp2`.

    Args:
        by_block: gather weights block by block; None to decide by the memory of the GPUs, never on a CPU.
    """

    def __init__(self, inputs: StrategyInputs, by_block: bool | None = None) -> None:
        super().__init__(inputs)
        objective, optimizer = inputs.objective, inputs.optimizer
        self._guard = UpdateGuard(optimizer, inputs.device)
        self._by_block = _needs_blocks(inputs) if by_block is None else by_block
        self._plain = {module: (type(module), _hooks(module)) for module in objective.modules()}
        attributes = {module: set(module.__dict__) for module in self._plain}
        old = {id(parameter): name for name, parameter in objective.named_parameters()}
        self._root = _Root(objective)
        self._shards = self._shard()
        self._added = {module: set(module.__dict__) - names for module, names in attributes.items()}
        new = dict(objective.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [new[old[id(parameter)]] for parameter in group["params"]]
        objective.parts_communicate = self._by_block

    def _shard(self) -> list[Any]:
        """Shard the parameters in place, and return the modules whose parameters are gathered together."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        ensure_group(self._device)
        # Embeddings may be a view of the last states; nothing changes them in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
        retriever = self._objective.retriever
        frozen = {parameter for parameter in self._objective.parameters() if not parameter.requires_grad}
        if self._by_block:
            _unshare(retriever.query.backbone, retriever.passage.backbone)
        settings: dict[str, Any] = {
            "mesh": init_device_mesh(self._device.type, (self._workers.size,)),
            "reshard_after_forward": self._by_block,
            "ignored_params": None if self._by_block else frozen,
        }
        for tower in {id(tower): tower for tower in (retriever.query, retriever.passage)}.values():
            for block in tower.blocks:
                fully_shard(block, **settings)
        fully_shard(retriever, **settings)
        root: Any = fully_shard(self._root, **{**settings, "reshard_after_forward": False})
        root.set_reshard_after_backward(False, recurse=not self._by_block)
        if self._by_block:
            register_fsdp_forward_method(retriever, "encode")
        with torch.no_grad():
            root(torch.zeros((), device=self._device))  # the first module that is called becomes FSDP2's root
        root.reshard()
        return [module for module in root.modules() if isinstance(module, FSDPModule)]

    def step(self, batch: Batch | CutBatch, learning_rate: float, number: int) -> Update:
        """See `Strategy.step`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        with self._gathered():
            output: LossOutput = self._objective(batch, self._workers)
            self._backward(output.value)
        total: Any = nn.utils.clip_grad_norm_(self._trained(), self._max_grad_norm)
        norm: Tensor = total.full_tensor()
        try:
            self._guard.update(output.value, norm, number)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        return Update(output, norm)

    def _backward(self, value: Tensor) -> None:
        """Compute the gradients and reduce-scatter those that the backward passes of blocks have not."""
        if not self._by_block:
            trained = self._trained()
            gradients = torch.autograd.grad(value, trained, allow_unused=True)
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.contiguous()
        elif value.requires_grad:
            value.backward()
        self._root(torch.zeros((), device=self._device, requires_grad=True)).backward()

    def abandon(self) -> bool:
        """See `Strategy.abandon`."""
        super().abandon()
        # Before torch 2.13, FSDP2 keeps what a backward pass left half done.
        return hasattr(self._shards[0], "reset_iter_state")

    def state(self) -> Iterator[Slice]:
        """See `Strategy.state`."""
        for name, parameter in self._objective.named_parameters():
            own, start, shape = _local(parameter), self._start(parameter), tuple(parameter.shape)
            if not parameter.requires_grad or not own.numel():
                continue
            state = self._optimizer.state.get(parameter, {})
            moments = {key: _local(value).flatten() for key, value in state.items()}
            yield from slices_of(name, own.flatten(), start, shape, moments)

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
        self._objective.parts_communicate = False
        for module, (kind, hooks) in self._plain.items():
            module.__class__ = kind
            module.__dict__.update(hooks)
            for name in self._added[module]:
                del module.__dict__[name]

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._objective.parameters() if parameter.requires_grad]

    def _start(self, parameter: Tensor) -> int:
        """Return the index of the first value of this worker's slice of a parameter, which is cut by rows."""
        if not hasattr(parameter, "to_local"):
            return 0
        rows = -(-len(parameter) // self._workers.size)
        return min(self._workers.rank * rows, len(parameter)) * parameter[:1].numel()

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Gather what a step holds whole: all weights, or by block those of the loss."""
        root = self._shards[0]
        whole = [root] if self._by_block else self._shards
        handles = [module.unshard(async_op=True) for module in whole]
        for handle in handles:
            handle.wait()
        caches_casts = torch.is_autocast_cache_enabled()
        # By block, weights that autocast has cast would stay for the whole pass.
        torch.set_autocast_cache_enabled(caches_casts and not self._by_block)
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
            for module in whole:
                module.reshard()


class _Root(nn.Module):
    """Module whose backward pass FSDP2 ends by reducing all gradients that it finds."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, value: Tensor) -> Tensor:
        """Return a copy."""
        return value.clone()


def _needs_blocks(inputs: StrategyInputs) -> bool:
    """Return whether the weights and gradients are too large for the GPU of any worker; all workers call it."""
    if inputs.device.type != "cuda":
        return False
    parameters = list(inputs.objective.parameters())
    weights = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    memory = torch.cuda.get_device_properties(inputs.device).total_memory
    too_large = torch.tensor(not fits_whole(weights, trained, memory), dtype=torch.int32, device=inputs.device)
    return bool(inputs.workers.all_reduce(too_large, "max"))


def _unshare(query: nn.Module, passage: nn.Module) -> None:
    """Give two towers shards of their own of the frozen weights that they share: FSDP2 cannot gather them for one."""
    own = {id(parameter) for parameter in query.parameters()}
    if query is passage:
        return
    for module in passage.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in own:
                setattr(module, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))


def _local(tensor: Any) -> Tensor:
    """Return this worker's slice of a sharded tensor; a tensor that is not sharded as it is."""
    own = tensor.detach()
    local: Tensor = own.to_local() if hasattr(own, "to_local") else own
    return local


def _hooks(module: nn.Module) -> dict[str, Any]:
    """Return copies of the hooks of a module, by attribute."""
    return {name: value.copy() for name, value in module.__dict__.items() if "hooks" in name and hasattr(value, "copy")}
