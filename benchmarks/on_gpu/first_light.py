"""What raytriever needs of CUDA, one line each, the cheapest first; a failure stops none of the others.

Run: `PYTHONPATH=platform python benchmarks/on_gpu/first_light.py`, on a new kind of card or a new build of PyTorch. It
takes about a minute. `--device cpu` runs what needs no card."""

from __future__ import annotations

import argparse
import collections
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import torch
from torch import distributed
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))

from on_gpu import training
from on_gpu.measuring import seconds_of
from on_gpu.models import write_model
from raytriever.losses.distributed import ensure_group
from raytriever.losses.mw.cuda_kernel import kernels_of
from raytriever.models.packed_attention import attention
from raytriever.retrieval.index.exact_top_k import top_k


def machine(device: torch.device) -> str:
    """Name versions and the card."""
    import numba
    import transformers

    versions = f"python {sys.version.split()[0]}, torch {torch.__version__}, transformers {transformers.__version__}"
    line = f"{versions}, numpy {np.__version__}, numba {numba.__version__}"
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        line += f"; {card.name}, {card.multi_processor_count} processors, {card.total_memory / 1e9:.0f} GB"
        line += f", CUDA {torch.version.cuda}, NCCL {nccl}"
    return line


def ceilings(device: torch.device) -> str:
    """Measure the rates of memory and of bf16 products."""
    count, dim = (1 << 28, 8_192) if device.type == "cuda" else (1 << 20, 128)
    target, source = torch.empty(count, device=device), torch.randn(count, device=device)
    copy = seconds_of(lambda: target.copy_(source), device)
    matrix = torch.randn(dim, dim, device=device, dtype=torch.bfloat16)
    product = seconds_of(lambda: matrix @ matrix, device)
    return f"copy {8 * count / copy / 1e12:.2f} TB/s, bf16 product {2 * dim**3 / product / 1e12:.0f} TFLOP/s"


def products_with_float32_results(device: torch.device) -> str:
    """Multiply bf16 matrices to float32, alone and added to what is there."""
    left, right = (torch.randn(300, 64, device=device, dtype=torch.bfloat16) for _ in range(2))
    product, total = torch.empty(300, 300, device=device), torch.ones(300, 300, device=device)
    torch.mm(left, right.T, out_dtype=torch.float32, out=product)
    torch.addmm(total, left, right.T, out_dtype=torch.float32, out=total)
    exact = left.double() @ right.double().T
    errors = [float((item - exact).abs().max()) for item in (product, total - 1)]
    return f"mm {errors[0]:.1e}, addmm {errors[1]:.1e}"


def kernels_of_mw(device: torch.device) -> str:
    """Compile the kernels of the MW loss."""
    began = time.perf_counter()
    kernels = kernels_of(torch.device("cuda", 0)) if device.type == "cuda" else None
    return f"{'run' if kernels else 'ARE MISSING, see the warning'}; compiled in {time.perf_counter() - began:.1f} s"


def attention_of_packed_texts(device: torch.device) -> str:
    """Attend in packed texts twice with dropout, and compare the gradients."""
    lengths = [3, 70, 129, 17] * 8
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device).view(1, 1, 1, -1)
    module = SimpleNamespace(is_causal=False, config=SimpleNamespace(), training=True)
    answers = []
    for heads, dim in ((12, 32), (16, 64)):
        shape = (1, heads, sum(lengths), dim)
        states = [torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
        gradients = []
        began = time.perf_counter()
        for _ in range(2):
            torch.manual_seed(1)
            mixed, _ = attention(module, *states, starts, dropout=0.1, max_length_q=max(lengths))
            gradients.append(torch.autograd.grad(mixed.float().square().sum(), states))
        seconds = time.perf_counter() - began
        answers.append(f"{heads} heads of {dim}: same bits {_same(*gradients)}, {seconds:.1f} s")
    return "; ".join(answers)


def attention_of_padded_texts(device: torch.device) -> str:
    """Attend in padded float32 texts four times, and compare the gradients."""
    answers = []
    for length in (64, 128, 256, 512):
        states = [torch.randn(8, 16, length, 64, device=device).requires_grad_() for _ in range(3)]
        mask = (torch.arange(length, device=device) < length - 5).view(1, 1, 1, -1).expand(8, 1, length, length)
        gradients = [
            torch.autograd.grad(functional.scaled_dot_product_attention(*states, attn_mask=mask).square().sum(), states)
            for _ in range(4)
        ]
        answers.append(f"{length}: {all(_same(gradients[0], other) for other in gradients[1:])}")
    return f"same bits in float32 with a mask: {', '.join(answers)}"


def adamw_with_a_switch(device: torch.device) -> str:
    """Leave out a step of AdamW by a value on the device."""
    layer = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    before = layer.weight.detach().clone()
    for is_bad in (1.0, 0.0):
        layer(torch.ones(2, 8, device=device)).sum().backward()
        optimizer.found_inf = torch.full((), is_bad, device=device)
        optimizer.step()
        if torch.equal(before, layer.weight) != bool(is_bad):
            raise AssertionError("found_inf has no effect")
    return f"leaves out a step; steps are counted on {optimizer.state[layer.weight]['step'].device}"


def search_is_exact(device: torch.device) -> str:
    """Compare ranks with those of float64."""
    rng = np.random.default_rng(0)
    documents, queries = (rng.standard_normal((count, 64)).astype(np.float32) for count in (20_000, 16))
    _, ranking = top_k(queries, documents, 10, np.arange(len(documents)), device=device)
    products = (queries.astype(float) @ documents.T.astype(float)).astype(np.float32)
    order = np.argsort(-products, axis=1, kind="stable")[:, :10]
    return f"{(order == ranking).mean():.4f} of the ranks are those of float64"


def group_of_one(device: torch.device) -> str:
    """Open a process group of one, and add up in it."""
    ensure_group(device)
    one = torch.ones(3, device=device)
    distributed.all_reduce(one)
    name = distributed.get_backend()
    distributed.destroy_process_group()
    return f"{name}: {one.tolist()}"


def waits_of_a_step(device: torch.device) -> str:
    """List the lines that wait for the device within a step of MiniLM's shape, as CUDA itself reports them."""
    found: collections.Counter[str] = collections.Counter()

    def note(message: object, category: object, file: str, line: int, *_: object) -> None:
        found[f"{'/'.join(file.split('/')[-3:])}:{line}"] += 1

    case = next(case for case in training.CASES["full"] if case.shape == "minilm")
    with TemporaryDirectory() as scratch:
        step, *_ = training.prepare(case, write_model(Path(scratch), case.shape, device), device)
        for number in range(2):
            step(number)
        torch.cuda.synchronize(device)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
            try:
                for number in range(2, 4):
                    step(number)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    lines = ", ".join(f"{line} {count / 2:g}" for line, count in found.most_common(8))
    return f"{sum(found.values()) / 2:.1f} a step: {lines}"


def _same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


ANYWHERE: list[Callable[[torch.device], str]] = [machine, ceilings, adamw_with_a_switch, search_is_exact, group_of_one]
ON_CUDA = [
    *(machine, ceilings, products_with_float32_results, kernels_of_mw, attention_of_packed_texts),
    *(attention_of_padded_texts, adamw_with_a_switch, search_is_exact, group_of_one, waits_of_a_step),
]


def main() -> int:
    """Run the checks, print a line for each, and return the number of those that failed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = torch.device("cuda", 0) if options.parse_args().device == "cuda" else torch.device("cpu")
    checks, failed = ON_CUDA if device.type == "cuda" else ANYWHERE, 0
    for check in checks:
        began = time.perf_counter()
        try:
            answer = check(device)
        except Exception as error:
            failed += 1
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = " < ".join(
                f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}" for frame in reversed(frames)
            )
            answer = f"FAILED {type(error).__name__}: {' '.join(str(error).split())[:300]} at {places}"
        print(f"{check.__name__} [{time.perf_counter() - began:.1f} s] {answer}", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} checks ran")
    return failed


if __name__ == "__main__":
    sys.exit(main())
