"""Simulated CUDA device: tensors that say cuda:0 and compute on the CPU, to count how often the host waits for a GPU.

Within `simulated_gpu()`
1. tensors on `CUDA` refuse tensors on the CPU, except those without dimensions, as CUDA does;
2. host syncs and copies are counted by line of the package. A copy between the device and memory that is not pinned
   waits, so it counts as a sync too;
3. streams and events do nothing.

`torch.cuda` and a few functions of torch are replaced only within the context, in all threads started there. Autocast
follows the rules of the CPU, and flash attention of packed texts returns zeros. Values, memory and launches are tested
on real cards, by `make test-gpu`."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _device, _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
# Operators whose result has a size or value that the host reads.
_SYNCS = frozenset({"_local_scalar_dense", "_unique", "_unique2", "bincount", "equal", "is_nonzero", "masked_select"})
_SYNCS |= {"nonzero", "unique_consecutive", "unique_dim"}
_COPIES = frozenset({"_to_copy", "copy_"})
_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
# Files of the frames between an operator and the line that calls it.
_BETWEEN = ("/simulated_gpu.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/utils/_python_dispatch.py")


class Counts:
    """Counts of a device, by line of the package; `reset` starts again.

    Attributes:
        syncs: moments at which the host waits for the device.
        pinned, pageable: copies between the device and pinned memory, or memory that is not pinned.
        side_copies: copies on a stream that is not the default one.
        stream_waits: events that a stream waits for.
        failure: called with the name of every operator before it runs; returns an error to raise, or None.
    """

    def __init__(self) -> None:
        self.failure: Callable[[str], BaseException | None] = lambda operator: None
        self.thread = threading.local()  # is_aside: whether its stream is not the default one
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero."""
        self.syncs, self.pinned, self.pageable = Counter[str](), Counter[str](), Counter[str]()
        self.side_copies = self.stream_waits = 0

    def snapshot(self) -> Counts:
        """Return a copy that later counts do not change."""
        copied = Counts()
        for name in ("syncs", "pinned", "pageable"):
            setattr(copied, name, getattr(self, name).copy())
        return copied

    def table(self) -> str:
        """Return the counts as text, the lines with the largest numbers first."""
        names = ("syncs", "pageable", "pinned")
        return "\n".join(f"{name} {count:7d} {line}" for name in names for line, count in getattr(self, name).items())

    def copy(self, from_host: bool, is_pinned: bool, waits: bool) -> None:
        """Count a copy."""
        line = f"{'to the device' if from_host else 'to the host'} {_line_of_caller()}"
        (self.pinned if is_pinned else self.pageable)[line] += 1
        self.side_copies += getattr(self.thread, "is_aside", False)
        if waits:
            self.syncs[line] += 1


def _line_of_caller() -> str:
    """Return the innermost line of the package on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/raytriever/" in file:
            return f"{file.rpartition('/raytriever/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


class _GpuTensor(Tensor):
    """Tensor on the device; `inner` has its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, device: _Device) -> _GpuTensor:
        wrapper: _GpuTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("cpu"),  # a build without CUDA has no backend for another
        )
        return wrapper

    def __init__(self, inner: Tensor, device: _Device) -> None:
        self.inner, self._device = inner, device

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], self._device  # a module then keeps its parameter objects when it is moved

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], device: Any, size: object, stride: object) -> _GpuTensor:
        return _GpuTensor(inner["inner"], device)

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        self._device.counts.copy(from_host=False, is_pinned=False, waits=True)
        return self.inner.tolist()

    def numpy(self, *_: object, **__: object) -> Any:  # type: ignore[override]
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor first.")

    def record_stream(self, stream: Any) -> None:
        pass

    def cpu(self, *_: Any) -> Tensor:
        return self.to("cpu")

    def to(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """Copy to the host where that is the target; the autograd graph ends there."""
        targets = [argument for argument in (*args, kwargs.get("device")) if isinstance(argument, torch.device | str)]
        targets += [argument.device for argument in args if isinstance(argument, Tensor)]
        if all(torch.device(target).type == "cuda" for target in targets):
            others = [argument for argument in args if not isinstance(argument, torch.device | str | Tensor)]
            rest = {name: value for name, value in kwargs.items() if name != "device"}
            others += [argument.dtype for argument in args if isinstance(argument, Tensor)]
            return super().to(*others, **rest) if others or {"dtype", "copy"} & set(rest) else self
        types = [argument for argument in (*args, kwargs.get("dtype")) if isinstance(argument, torch.dtype)]
        # torch copies to pinned memory where the copy does not wait.
        is_pinned = bool(kwargs.get("non_blocking"))
        self._device.counts.copy(from_host=False, is_pinned=is_pinned, waits=not is_pinned)
        copied = self.inner.detach().clone()
        if is_pinned:
            self._device.pin(copied)
        return copied.to(types[0]) if types else copied

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = next(
            tree_leaf._device for tree_leaf in tree_leaves((args, kwargs)) if isinstance(tree_leaf, _GpuTensor)
        )
        return device.run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Mode of one thread that sends operators to the device."""

    def __init__(self, device: _Device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_cuda(kwargs.get("device")) or any(
            isinstance(tree_leaf, _GpuTensor) for tree_leaf in tree_leaves((args, kwargs))
        ):
            return self._device.run(func, args, kwargs)
        pin = kwargs.pop("pin_memory", None)
        result = func(*args, **kwargs)
        return self._device.pin(result) if pin else result


class _Device:
    """The device: runs operators on it, and makes and copies tensors."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self._pinned: dict[int, Tensor] = {}  # by address; alive, so that no other storage gets it

    def pin(self, tensor: Tensor) -> Tensor:
        """Mark the memory of a tensor on the CPU as pinned."""
        self._pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether a tensor is in pinned memory."""
        return not isinstance(tensor, _GpuTensor) and tensor.untyped_storage().data_ptr() in self._pinned

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that has a tensor on the device, or makes one there."""
        name = func.overloadpacket.__name__
        tensors = [tree_leaf for tree_leaf in tree_leaves((args, kwargs)) if isinstance(tree_leaf, Tensor)]
        here = [tensor for tensor in tensors if isinstance(tensor, _GpuTensor)]
        self._refuse(name, here, [tensor for tensor in tensors if not isinstance(tensor, _GpuTensor)])
        if error := self.counts.failure(name):
            raise error
        is_written_on_host = name == "copy_" and not isinstance(args[0], _GpuTensor)
        # Autograd's formulas and autocast name the device that the wrapper says it is on.
        to_host = kwargs.get("device") is not None and not _is_cuda(kwargs["device"])
        is_made_on_host = to_host and name not in _COPIES and not _in_engine()
        self._count(name, args, kwargs, here)
        settings = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else dict(kwargs)
        settings.pop("pin_memory", None)
        result = _compute(func, tree_map(_inner, args), tree_map(_inner, settings))
        if is_written_on_host:
            return args[0]
        if is_made_on_host:
            return self.pin(result) if kwargs.get("pin_memory") else result
        return return_and_correct_aliasing(func, args, kwargs, tree_map(self._wrap, result))

    def _wrap(self, value: Any) -> Any:
        return _GpuTensor(value, self) if isinstance(value, Tensor) and not isinstance(value, _GpuTensor) else value

    def _refuse(self, name: str, here: list[Any], others: list[Tensor]) -> None:
        """Raise where tensors are on two devices. A tensor without dimensions on the CPU is a number."""
        if not here or name in _COPIES or _in_engine():
            return
        others = [item for item in others if item.ndim or name.startswith(("_fused", "_foreach"))]
        if others and name in _INDEXING:
            self.counts.copy(from_host=True, is_pinned=False, waits=True)
        elif others:
            raise RuntimeError(f"found at least two devices, cuda:0 and cpu! ({name}, at {_line_of_caller()})")

    def _count(self, name: str, args: Any, kwargs: Any, here: list[Any]) -> None:
        if name in _COPIES:
            target, source = (args[0], args[1]) if name == "copy_" else (None, args[0])
            to_device = _is_cuda(kwargs.get("device")) if target is None else isinstance(target, _GpuTensor)
            host = source if to_device and not isinstance(source, _GpuTensor) else None
            if target is not None and not to_device:
                host = target
            if host is not None:
                is_pinned = self.is_pinned(host)
                non_blocking = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
                self.counts.copy(to_device, is_pinned, waits=not (is_pinned and non_blocking))
        indices = args[1] or [] if name in _INDEXING else []
        has_mask = any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)
        sizes = name == "repeat_interleave" and kwargs.get("output_size") is None
        if here and (name in _SYNCS or has_mask or sizes):
            self.counts.syncs[f"{name} {_line_of_caller()}"] += 1


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operator on the CPU, or the shapes of one that exists for CUDA alone."""
    name = func.overloadpacket.__name__
    if name == "_flash_attention_forward":
        state = torch.zeros(2, dtype=torch.int64)
        sums = torch.zeros(args[0].shape[1], len(args[0]))
        return torch.zeros_like(args[0]), sums, state, state.clone(), torch.empty(0)
    if name == "_flash_attention_backward":
        return tuple(torch.zeros_like(argument) for argument in args[1:4])
    return func(*args, **kwargs)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, _GpuTensor) else value


def values(tensor: Tensor) -> Tensor:
    """Return the values of a tensor on the CPU, without a count."""
    return _inner(tensor).detach()


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _in_engine() -> bool:
    """Return whether autograd runs the operator: its formulas make small tensors where the wrapper says it is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


@contextmanager
def simulated_gpu(capability: tuple[int, int] = (9, 0)) -> Iterator[Counts]:
    """Provide one simulated CUDA device of a compute capability to the code in a `with` statement."""
    counts = Counts()
    device = _Device(counts)
    _device._device_constructors()  # remembers functions of torch, which must not be the replaced ones
    with ExitStack() as stack:
        for target, attribute, value in _replacements(device, capability):
            stack.enter_context(mock.patch.object(target, attribute, value, create=True))
        _foreach_utils._foreach_supported_types.append(_GpuTensor)
        stack.callback(_foreach_utils._foreach_supported_types.remove, _GpuTensor)
        stack.enter_context(_Mode(device))
        yield counts


def _replacements(device: _Device, capability: tuple[int, int]) -> list[tuple[Any, str, Any]]:
    counts, cuda, memory = device.counts, torch.cuda, 80 << 30
    autocast, tensor, was_pinned = torch.autocast, torch.tensor, Tensor.is_pinned
    group = torch._C._group_tensors_by_device_and_dtype
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        total_memory=memory,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=132,
    )

    class Autocast(autocast):  # type: ignore[misc,valid-type]
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    class Event:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def record(self, *_: Any) -> None: ...

        def synchronize(self) -> None:
            counts.syncs[f"event {_line_of_caller()}"] += 1

        def elapsed_time(self, later: Event) -> float:
            return 1.0

    class Stream:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def wait_event(self, event: Event) -> None:
            counts.stream_waits += 1

        def record_event(self, event: Event | None = None) -> Event:
            return event or Event()

    default = Stream()

    @contextmanager
    def use_stream(stream: Stream) -> Iterator[None]:
        before = getattr(counts.thread, "is_aside", False)
        counts.thread.is_aside = stream is not default
        try:
            yield
        finally:
            counts.thread.is_aside = before

    def make(
        data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
    ) -> Tensor:
        copy = tensor(data, dtype=dtype)
        copy = copy.pin_memory() if pin_memory else copy
        return (copy.to(device) if _is_cuda(device) else copy).requires_grad_(requires_grad)

    def group_tensors(lists: list[list[Any]], *settings: Any) -> Any:
        return {(lists[0][0].device, key[1]): result for key, result in group(lists, *settings).items()}

    def run_thread(thread: threading.Thread) -> None:
        with _Mode(device):
            bootstrap(thread)

    def synchronize(*_: Any) -> None:
        counts.syncs[f"synchronize {_line_of_caller()}"] += 1

    functions: dict[str, Any] = {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None, "_lazy_init": lambda: None,
        "device_count": lambda: 1, "current_device": lambda: 0, "set_device": lambda *_: None,
        "get_device_name": lambda *_: properties.name, "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: capability, "is_bf16_supported": lambda *_, **__: capability[0] >= 8,
        "mem_get_info": lambda *_: (memory, memory), "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0, "max_memory_allocated": lambda *_: 0, "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda *_: None, "synchronize": synchronize, "Event": Event, "Stream": Stream,
        "current_stream": lambda *_: default, "default_stream": lambda *_: default, "stream": use_stream,
        "get_rng_state": lambda *_: torch.get_rng_state(), "set_rng_state": lambda *_: None,
        "manual_seed": lambda *_: None, "manual_seed_all": lambda *_: None,
        # A build for CUDA would ask the driver, which need not be there.
        "is_current_stream_capturing": lambda: False,
    }  # fmt: skip
    return [
        *((cuda, attribute, value) for attribute, value in functions.items()),
        (torch.accelerator, "current_stream", lambda *_: default),
        (torch, "autocast", Autocast),
        (torch, "tensor", make),
        (torch, "inference_mode", torch.no_grad),  # wrappers have no inference mode
        (Tensor, "pin_memory", lambda tensor, *_: device.pin(tensor.detach().clone())),
        (Tensor, "is_pinned", lambda tensor, *_: device.is_pinned(tensor) or was_pinned(tensor)),
        (torch._C, "_group_tensors_by_device_and_dtype", group_tensors),
        (threading.Thread, "_bootstrap_inner", run_thread),
    ]
