"""Counts of kernel launches, host syncs, copies and memory of the sham CUDA device, and what its operators count as."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType

# fmt: off
# Operators that launch no kernel.
NO_KERNEL = frozenset({
    "_fused_sdp_choice", "_local_scalar_dense", "_reshape_alias", "_unsafe_view", "alias", "as_strided",
    "detach", "diagonal", "empty", "empty_like", "empty_strided", "expand", "flatten", "is_pinned",
    "is_same_size", "lift_fresh", "new_empty", "new_empty_strided", "numpy_T", "permute", "record_stream",
    "reshape", "resize_", "select", "set_", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose",
    "unbind", "unfold", "unsqueeze", "view",
})
# Operators whose result has a size or value that the host reads.
SYNCS = frozenset({
    "_local_scalar_dense", "_unique", "_unique2", "bincount", "equal", "is_nonzero", "masked_select", "nonzero",
    "unique_consecutive", "unique_dim",
})
RANDOM = frozenset({
    "bernoulli", "bernoulli_", "exponential_", "multinomial", "native_dropout", "normal_", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "random_", "randperm", "uniform_",
})
# fmt: on
# Files of the sham, whose lines are not those of a caller.
OWN_FILES = ("/kernel_counts.py", "/sham_tensor.py", "/sham_device.py")


class Counts:
    """Counts of a device, by line of the package; `reset` starts again.

    Attributes:
        launches: kernel launches.
        operators: kernel launches by operator instead of by line.
        syncs: moments at which the host waits for the device.
        pinned, pageable: copies between the device and pinned memory, or memory that is not pinned.
        events, streams: events recorded, and streams made.
        side_copies: copies on a stream that is not the default one.
        stream_waits: events that a stream waits for.
        memory, peak: bytes that live tensors take, and the most that they took.
        failure: called with the name of every operator before it runs; returns an error to raise, or None.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.memory, self.peak = capacity, 0, 0
        self.failure: Callable[[str], BaseException | None] = lambda operator: None
        self.thread = threading.local()  # is_aside: whether its stream is not the default one
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero; the memory stays."""
        self.launches, self.operators, self.syncs = Counter[str](), Counter[str](), Counter[str]()
        self.pinned, self.pageable = Counter[str](), Counter[str]()
        self.events = self.streams = self.side_copies = self.stream_waits = 0
        self.peak = self.memory

    def snapshot(self) -> Counts:
        """Return a copy that later counts do not change."""
        copied = Counts(self.capacity)
        for name in ("launches", "operators", "syncs", "pinned", "pageable"):
            setattr(copied, name, getattr(self, name).copy())
        return copied

    def totals(self) -> dict[str, int]:
        """Return the number of launches, syncs and copies."""
        return {name: getattr(self, name).total() for name in ("launches", "syncs", "pinned", "pageable")}

    def table(self, most: int = 30) -> str:
        """Return the counts as text, the lines with the largest numbers first."""
        lines = [str(self.totals())]
        for name in ("syncs", "pageable", "pinned", "launches", "operators"):
            lines += [f"{name}:", *(f"{count:7d} {line}" for line, count in getattr(self, name).most_common(most))]
        return "\n".join(lines)

    def copy(self, from_host: bool, is_pinned: bool, waits: bool) -> None:
        """Count a copy."""
        line = f"{'to the device' if from_host else 'to the host'} {line_of_caller()}"
        (self.pinned if is_pinned else self.pageable)[line] += 1
        self.side_copies += getattr(self.thread, "is_aside", False)
        if waits:
            self.syncs[line] += 1


def line_of_caller() -> str:
    """Return the innermost line of the package on the stack, else of a test or library."""
    frame: FrameType | None = sys._getframe(1)
    other = "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if "/raytriever/" in name:
            return f"{name.rpartition('/raytriever/')[2]}:{frame.f_lineno}"
        if other == "?" and "/torch/" not in name and not name.endswith(OWN_FILES):
            other = f"{'/'.join(name.split('/')[-2:])}:{frame.f_lineno}"
        frame = frame.f_back
    return other
