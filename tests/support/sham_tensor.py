"""Tensors of the sham CUDA device, and its operators; `sham_device` makes them the CUDA device of torch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import flash_attention
import torch
from kernel_counts import NO_KERNEL, RANDOM, SYNCS, Counts, line_of_caller
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
_COPIES = frozenset({"_to_copy", "copy_"})
_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
# Products whose overloads `dtype` and `dtype_out` torch computes on CUDA alone.
_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)
# Files of the frames between an operator and the line that calls it.
_BETWEEN = ("/sham_tensor.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/utils/_python_dispatch.py")


class _Claim:
    """Share of one tensor in the memory of a storage on the device."""

    def __init__(self, device: Device, inner: Tensor) -> None:
        storage = inner.untyped_storage()
        self._device, self._address, self._bytes = device, storage.data_ptr(), storage.nbytes()
        device.shares[self._address] += 1
        if device.shares[self._address] == 1:
            device.counts.memory += self._bytes
            device.counts.peak = max(device.counts.peak, device.counts.memory)

    def __del__(self) -> None:
        self._device.shares[self._address] -= 1
        if not self._device.shares[self._address]:
            del self._device.shares[self._address]
            self._device.counts.memory -= self._bytes


class ShamTensor(Tensor):
    """Tensor on the device; `inner` has its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, device: Device) -> ShamTensor:
        wrapper: ShamTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("cpu"),  # a build without CUDA has no backend for another
        )
        return wrapper

    def __init__(self, inner: Tensor, device: Device) -> None:
        self.inner, self._device, self._claim = inner, device, _Claim(device, inner)

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], self._device  # a module then keeps its parameter objects when it is moved

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], device: Any, size: object, stride: object) -> ShamTensor:
        return ShamTensor(inner["inner"], device)

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"ShamTensor({self.inner!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = ShamTensor(self.inner.detach().clone(), self._device).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied._is_param = True  # type: ignore[attr-defined]
        memo[id(self)] = copied
        return copied

    def get_device(self) -> int:
        return 0

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        self._device.counts.copy(from_host=False, is_pinned=False, waits=True)
        return self.inner.tolist()

    def numpy(self, *_: object, **__: object) -> Any:  # type: ignore[override]
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor first.")

    def __array__(self, *_: object) -> Any:
        return self.numpy()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or CUDA)

    def record_stream(self, stream: Any) -> None:
        pass

    def cpu(self, *_: Any) -> Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> Tensor:  # type: ignore[override]
        return self

    def to(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """Copy to the host where that is the target; the autograd graph ends there."""
        targets = [one for one in (*args, kwargs.get("device")) if isinstance(one, torch.device | str)]
        targets += [one.device for one in args if isinstance(one, Tensor)]
        if all(torch.device(target).type == "cuda" for target in targets):
            others = [one for one in args if not isinstance(one, torch.device | str | Tensor)]
            rest = {name: value for name, value in kwargs.items() if name != "device"}
            others += [one.dtype for one in args if isinstance(one, Tensor)]
            return super().to(*others, **rest) if others or {"dtype", "copy"} & set(rest) else self
        types = [one for one in (*args, kwargs.get("dtype")) if isinstance(one, torch.dtype)]
        # torch copies to pinned memory where the copy does not wait.
        is_pinned = bool(kwargs.get("non_blocking"))
        self._device.counts.copy(from_host=False, is_pinned=is_pinned, waits=not is_pinned)
        copied = self.inner.detach().clone()
        if is_pinned:
            self._device.pin(copied)
        return copied.to(types[0]) if types else copied

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = next(one._device for one in tree_leaves((args, kwargs)) if isinstance(one, ShamTensor))
        return device.run(func, args, kwargs or {})


class Mode(TorchDispatchMode):
    """Mode of one thread that sends operators to the device."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_cuda(kwargs.get("device")) or any(isinstance(one, ShamTensor) for one in tree_leaves((args, kwargs))):
            return self._device.run(func, args, kwargs)
        pin = kwargs.get("pin_memory")
        result = func(*args, **{name: value for name, value in kwargs.items() if name != "pin_memory"})
        return self._device.pin(result) if pin else result


class Device:
    """The device: runs operators on it, and makes and copies tensors."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.shares = Counter[int]()
        self.random_state = torch.Generator().manual_seed(0).get_state()
        self._pinned: list[Tensor] = []  # alive, so that no other storage gets their addresses
        self._addresses: set[int] = set()

    def pin(self, tensor: Tensor) -> Tensor:
        """Mark the memory of a tensor on the CPU as pinned."""
        self._pinned.append(tensor)
        self._addresses.add(tensor.untyped_storage().data_ptr())
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether a tensor is in pinned memory."""
        return not isinstance(tensor, ShamTensor) and tensor.untyped_storage().data_ptr() in self._addresses

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that has a tensor on the device, or makes one there."""
        name = func.overloadpacket.__name__
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        here = [one for one in tensors if isinstance(one, ShamTensor)]
        self._refuse(func, name, here, [one for one in tensors if not isinstance(one, ShamTensor)])
        if error := self.counts.failure(name):
            raise error
        is_written_on_host = name == "copy_" and not isinstance(args[0], ShamTensor)
        # Autograd's formulas and autocast name the device that the wrapper says it is on.
        is_made_on_host = (
            kwargs.get("device") is not None
            and not is_cuda(kwargs["device"])
            and name not in _COPIES
            and not _in_engine()
        )
        self._count(name, args, kwargs, here)
        settings = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else dict(kwargs)
        settings.pop("pin_memory", None)
        args_here, settings = tree_map(_inner, args), tree_map(_inner, settings)
        with self._random() if name in RANDOM else nullcontext():
            result = _compute(func, args_here, settings)
        if is_written_on_host:
            return args[0]
        if is_made_on_host:
            return self.pin(result) if kwargs.get("pin_memory") else result
        return return_and_correct_aliasing(func, args, kwargs, tree_map(self._wrap, result))

    def _wrap(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, ShamTensor):
            return value
        new = 0 if value.untyped_storage().data_ptr() in self.shares else value.untyped_storage().nbytes()
        if self.counts.memory + new > self.counts.capacity:
            free = (self.counts.capacity - self.counts.memory) / 2**20
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {new / 2**20:.2f} MiB. GPU 0 has {free:.2f} MiB free."
            )
        return ShamTensor(value, self)

    def _refuse(self, func: Any, name: str, here: list[Any], others: list[Tensor]) -> None:
        """Raise where tensors are on two devices. A tensor without dimensions on the CPU is a number."""
        if not here or name in _COPIES or _in_engine():
            return
        is_list = name.startswith(("_fused", "_foreach"))
        others = [one for one in others if one.ndim or is_list]
        if others and name in _INDEXING:
            self.counts.copy(from_host=True, is_pinned=False, waits=True)
        elif others:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({func}, at {line_of_caller()})"
            )

    def _count(self, name: str, args: Any, kwargs: Any, here: list[Any]) -> None:
        line = None
        if name in _COPIES:
            target, source = (args[0], args[1]) if name == "copy_" else (None, args[0])
            to_device = is_cuda(kwargs.get("device")) if target is None else isinstance(target, ShamTensor)
            host = source if to_device and not isinstance(source, ShamTensor) else None
            if target is not None and not to_device:
                host = target
            if host is not None:
                is_pinned = self.is_pinned(host)
                non_blocking = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
                self.counts.copy(to_device, is_pinned, waits=not (is_pinned and non_blocking))
                return  # the copy engine runs it, and no kernel
        if name not in NO_KERNEL:
            line = self.count_kernel(name)
        masks = (
            [one for one in args[1] or [] if isinstance(one, Tensor) and one.dtype == torch.bool]
            if (name in _INDEXING)
            else []
        )
        sizes = name == "repeat_interleave" and kwargs.get("output_size") is None
        if here and (name in SYNCS or masks or sizes):
            self.counts.syncs[f"{name} {line or line_of_caller()}"] += 1

    def count_kernel(self, name: str) -> str:
        """Count one launch, and return its line."""
        line = line_of_caller()
        self.counts.launches[line] += 1
        self.counts.operators[name] += 1
        return line

    @contextmanager
    def _random(self) -> Iterator[None]:
        """Draw from the generator of the device."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            yield
        finally:
            self.random_state = torch.get_rng_state()
            torch.set_rng_state(before)

    def seed(self, seed: int) -> None:
        """Seed the generator of the device."""
        self.random_state = torch.Generator().manual_seed(seed).get_state()


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operator on the CPU, also those that have a form for CUDA alone."""
    name = func.overloadpacket.__name__
    if name in flash_attention.OPERATORS:
        return flash_attention.compute(name, args, kwargs)
    if func.overloadpacket in _PRODUCTS and func._overloadname in ("dtype", "dtype_out"):
        return _product(func.overloadpacket, *args, **kwargs)
    return func(*args, **kwargs)


def _product(packet: Any, *args: Any, beta: float = 1, alpha: float = 1, out: Tensor | None = None) -> Tensor:
    """Return the product of operands in half precision with sums of the type `args[-1]`, by the rules of CUDA."""
    *added, left, right, out_dtype = args
    if left.dtype != right.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {left.dtype} and {right.dtype}")
    if out_dtype not in (left.dtype, torch.float32):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    if out is not None and out.dtype != out_dtype:
        raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
    if added and added[0].dtype not in (left.dtype, out_dtype):
        raise RuntimeError("self dtype must match either out_dtype or mat1 dtype")
    factors = {"beta": beta, "alpha": alpha} if added else {}
    result: Tensor = packet(*(one.to(out_dtype) for one in (*added, left, right)), **factors)
    return result if out is None else out.copy_(result)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, ShamTensor) else value


def values(tensor: Tensor) -> Tensor:
    """Return the values of a tensor on the CPU, without a count."""
    return _inner(tensor).detach()


def is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _in_engine() -> bool:
    """Return whether autograd runs the operator: its formulas make small tensors where the wrapper says it is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"
