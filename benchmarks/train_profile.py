"""Where a training step spends its time on a CPU, and what fraction of the processor's arithmetic it reaches.

Run: `python benchmarks/train_profile.py [--json PATH] [--steps 3] [--precision fp32]`. It records the steps that
`train.py` measures (MiniLM, SQuAD, cached `infonce`) with torch's profiler, on one thread. The time of an operation
without the operations that it calls belongs to one part of the step, and to one pass. torch counts the arithmetic of
products of matrices; nothing else is counted. The peak is the fastest product of two square matrices in the same
precision. `--help` ends with the environment of AVX2 alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ends import End, parser, report, reported
from grad_cache import take_step
from train import SQUAD, training

# Parts of a step by the names of torch's operations; the first part that an operation or its callers belong to counts.
PARTS = {
    "optimiser and clipping": ("Optimizer.", "_foreach_", "linalg_vector_norm", "aten::stack", "aten::isfinite"),
    "attention": ("_DroppedMix", "oftmax", "bmm", "Bmm", "aten::matmul", "_Attention"),
    "linear layers": ("aten::linear", "Addmm", "addmm", "aten::mm", "MmBackward", "TBackward"),
    "layer norm": ("ayer_norm", "LayerNorm"),
    "GELU": ("gelu", "Gelu"),
    "dropout": ("_Drop",),
    "embeddings": ("mbedding",),
    "copies and conversions": ("aten::copy_", "aten::to", "aten::clone", "aten::contiguous", "ToCopy", "Clone"),
}
OTHER, PYTHON, WAITING = "other operations", "Python between operations", "waiting for the batch"
PASSES = ("forward without gradient", "forward with gradient", "backward")
STEP, SIZE = "step", 2048


def peak(precision: str) -> float:
    """Return the floating-point operations a second of the fastest of 10 products of square matrices."""
    import torch

    left, right = (torch.randn(SIZE, SIZE).to(torch.bfloat16 if precision == "bf16" else torch.float32) for _ in "ab")
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return float(2 * SIZE**3 / min(seconds))


def recorded(precision: str, dataset: Path, steps: int) -> list[Any]:
    """Return the profiler's events of the thread that trains, without those of the first step."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    passes: list[Any] = []

    def enter(*_: Any) -> None:
        passes.append(record_function(PASSES[torch.is_grad_enabled()]).__enter__())

    def leave(*_: Any) -> None:
        passes.pop().__exit__(None, None, None)

    with training(precision, dataset, steps + 1) as (strategy, batches, retriever):
        for backbone in {retriever.query.backbone, retriever.passage.backbone}:
            backbone.register_forward_pre_hook(enter)
            backbone.register_forward_hook(leave)
        take_step(strategy, next(batches), 0)
        with profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiled:
            for step in range(steps):
                with record_function(WAITING):
                    batch = next(batches)
                with record_function(STEP):
                    take_step(strategy, batch, step + 1)
    events = profiled.events()
    thread = next(event.thread for event in events if event.name == STEP)
    return [event for event in events if event.thread == thread]


def callers(event: Any) -> Iterator[str]:
    """Yield the names of an operation and of the operations that it runs in, from the inside out."""
    while event is not None:
        yield event.name
        event = event.cpu_parent


def place(event: Any) -> tuple[str, str]:
    """Return the part and the pass that an operation's own time belongs to; an empty pass outside of the encoder."""
    names = list(callers(event))
    in_pass = next((name for name in names if name in PASSES), "")
    if not in_pass and any(name.startswith("autograd::engine") for name in names):
        in_pass = PASSES[2]
    if names[0] in (*PASSES, STEP):
        return PYTHON, in_pass
    if names[0] == WAITING:
        return WAITING, ""
    for part, marks in PARTS.items():
        if any(mark in name for name in names for mark in marks):
            return part, in_pass
    return OTHER, in_pass


def measured(precision: str, dataset: Path, steps: int) -> dict[str, End]:
    """Return the fractions of the parts and passes of a step, and of the peak."""
    most = peak(precision)
    seconds: dict[str, float] = defaultdict(float)
    arithmetic: dict[str, float] = defaultdict(float)
    for event in recorded(precision, dataset, steps):
        for name in filter(None, place(event)):
            seconds[name] += event.self_cpu_time_total / 1e6 / steps
            arithmetic[name] += (event.flops or 0) / steps
    parts = [*PARTS, OTHER, PYTHON, WAITING]
    step, operations = (sum(of[part] for part in parts) for of in (seconds, arithmetic))
    results = {
        "peak, one product of matrices (GFLOP/s)": most / 1e9,
        "a step (s)": step,
        "a step, share of the peak (%)": 100 * operations / step / most,
    }
    for name in [*PASSES, *sorted(parts, key=lambda part: -seconds[part])]:
        if seconds[name]:
            results[f"{name}, share of the step (%)"] = 100 * seconds[name] / step
        if arithmetic[name] > 0.01 * operations:
            results[f"{name}, share of the peak (%)"] = 100 * arithmetic[name] / seconds[name] / most
    return {f"{precision}: {name}": reported(value) for name, value in results.items()}


def main() -> None:
    """Measure and report."""
    own = parser(__doc__ or "")
    own.add_argument("--dataset", type=Path, default=SQUAD, metavar="PATH", help="with a train split")
    own.add_argument("--steps", type=int, default=3, metavar="N", help="that are recorded")
    own.add_argument("--precision", choices=("fp32", "bf16"), help="this one alone")
    arguments = own.parse_args()
    import torch

    from raytriever.models.device_and_precision import choose_precision

    torch.set_num_threads(1)
    own_precision = choose_precision(None, torch.device("cpu"))
    ends: dict[str, End] = {}
    for precision in [arguments.precision] if arguments.precision else dict.fromkeys(["fp32", own_precision]):
        ends |= measured(precision, arguments.dataset, arguments.steps)
    report("a training step", ends, arguments.json)


if __name__ == "__main__":
    main()
