"""Losses: time, memory and accuracy, compared with thresholds and with other implementations.

Run: `python benchmarks/losses.py [--json PATH] [--libauc-python PYTHON]`. Needs torch and numba. Rows of
sentence-transformers and LibAUC (in its own environment, given by its Python) appear where these are installed. Times
are medians of forward and backward passes; both sides of a ratio are warmed up and alternate in one process. Peak
memory is that of a fresh process without its inputs. `gpu.py` measures the losses on a GPU."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch.nn import functional

from ends import End, at_least, at_most, parser, report, reported

DIM, HARD, TAU = 384, 5, 0.01
AGAINST = "mw against cross_entropy"
Step = Callable[[], object]


def embeddings(batch: int) -> list:
    """Return unit queries and passages with a positive near each query; passages 0 to B - 1 are the positives."""
    generator = torch.Generator().manual_seed(0)
    queries = functional.normalize(torch.randn(batch, DIM, generator=generator), dim=1)
    passages = functional.normalize(torch.randn(batch * (1 + HARD), DIM, generator=generator), dim=1)
    passages[:batch] = functional.normalize(0.4 * queries + passages[:batch], dim=1)
    return [x.requires_grad_() for x in (queries, passages)]


def scores(batch: int) -> torch.Tensor:
    """Return a score matrix like that of an encoder in training."""
    queries, passages = embeddings(batch)
    return (queries @ passages.T).detach().requires_grad_()


def ours(name: str, inputs: list, positives: int = 1, graded: bool = False) -> Step:
    """Return a step of one of our losses: embeddings in, gradients of the embeddings out; `graded` with labels."""
    from raytriever.losses.batch_and_temperature import copy_all
    from raytriever.losses.batch_relevance import GlobalIds, find_relevance
    from raytriever.losses.build_loss import build_loss
    from raytriever.losses.loss_settings import LossConfig

    queries, passages = inputs
    batch = len(queries)
    # A block of passages after another, and from the first again one further on.
    step = np.arange(positives)
    columns = np.arange(batch)[:, None] + step * batch + step // (1 + HARD)
    columns %= len(passages)
    groups = np.arange(len(passages)).reshape(-1, batch).T
    labels = (groups, np.random.default_rng(0).random(groups.shape, np.float32)) if graded else None
    ids = GlobalIds(columns[:, 0], columns, np.arange(len(passages)))
    relevance = find_relevance(ids, 0, 1, labels=labels)
    relevance = copy_all(relevance.map, queries.device)
    loss = build_loss(LossConfig(loss=name, temperature=TAU))

    def run() -> object:
        queries.grad = passages.grad = None
        loss(queries, passages, relevance).value.backward()
        return queries.grad

    return run


def rival(name: str, inputs: list) -> Step:
    """Return a step of another implementation on the same embeddings."""
    queries, passages = inputs
    batch = len(queries)
    labels = torch.arange(batch, device=queries.device)
    if name == "materialised infonce":

        def value() -> torch.Tensor:
            return functional.cross_entropy((queries @ passages.T) / TAU, labels)

    elif name == "MultipleNegativesRankingLoss":
        from sentence_transformers.losses import MultipleNegativesRankingLoss
        from sentence_transformers.util import dot_score

        loss = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=1 / TAU, similarity_fct=dot_score)

        def value() -> torch.Tensor:
            return loss.compute_loss_from_embeddings([queries, *passages.split(batch)], None)

    elif name == "CachedMultipleNegativesRankingLoss":
        from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
        from sentence_transformers.util import dot_score

        cached = CachedMultipleNegativesRankingLoss(
            torch.nn.Sequential(torch.nn.Identity()), scale=1 / TAU, similarity_fct=dot_score
        )
        columns = [[queries], *([part] for part in passages.split(batch))]

        def run_cached() -> object:
            queries.grad = passages.grad = None
            cached.calculate_loss(columns, with_backward=True)
            return queries.grad

        return run_cached
    else:
        from libauc.losses import PairwiseAUCLoss

        pairwise = PairwiseAUCLoss(surr_loss="logistic", hparam=1 / TAU)
        flags = torch.eye(batch, len(passages), dtype=torch.long)

        def value() -> torch.Tensor:
            return pairwise((queries @ passages.T).flatten(), flags.flatten())

    def run() -> object:
        queries.grad = passages.grad = None
        value().backward()
        return queries.grad

    return run


def times(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Return the median seconds of each step, warmed up; the steps alternate so that other load affects all of them."""
    for step in steps.values():
        step()
    durations: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            start = perf_counter()
            step()
            durations[name].append(perf_counter() - start)
    return {name: median(all_of_it) for name, all_of_it in durations.items()}


def memory(field: str) -> int:
    """Return a field of this process's status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def alone(name: str, batch: int, threads: int) -> None:
    """Return the seconds and the peak memory of one step without its inputs; for a fresh process."""
    torch.set_num_threads(threads)
    if name == AGAINST:
        print(json.dumps({"ratio": against_cross_entropy(batch)}))
        return
    make = rival if not is_ours(name) else ours
    make(name, embeddings(8))()
    step = make(name, embeddings(batch))
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    start = perf_counter()
    step()
    print(json.dumps({"seconds": perf_counter() - start, "bytes": memory("VmHWM") - before}))


def is_ours(name: str) -> bool:
    """Return True for the name of one of our losses: lower case, without spaces."""
    return name == name.lower() and " " not in name


def in_fresh_process(name: str, batch: int, python: str = sys.executable) -> dict[str, float]:
    """Run `alone` with a Python."""
    command = [python, __file__, "--alone", name, "--batch", str(batch), "--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def literal(matrix: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the loss over the table of pairs, as public implementations build it, a few positives at a time."""
    batch = len(matrix)
    positives = matrix.diagonal()
    keep = ~torch.eye(batch, matrix.shape[1], dtype=torch.bool)
    negatives = matrix[keep]
    total = matrix.new_zeros(())
    part = max(1, (1 << 25) // len(negatives))
    for some in positives.split(part):
        apart = (negatives - some[:, None]) / temperature
        total = total + torch.logaddexp(apart, torch.zeros_like(apart)).sum()
    return total / (batch * len(negatives))


def differentiated(matrix: torch.Tensor, value: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """Return a forward and backward pass of a loss of a score matrix."""

    def run() -> object:
        matrix.grad = None
        value(matrix).backward()
        return matrix.grad

    return run


def mw(matrix: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return our loss of a score matrix whose diagonal contains the positives."""
    from raytriever.losses.mw.functional import mann_whitney

    return mann_whitney(matrix, torch.arange(len(matrix))[:, None], temperature)


def against_cross_entropy(batch: int) -> float:
    """Return the time of `mw` divided by that of `cross_entropy` on one matrix."""
    matrix, labels = scores(batch), torch.arange(batch)
    steps = {
        "mw": differentiated(matrix, lambda s: mw(s, TAU)),
        "cross_entropy": differentiated(matrix, lambda s: functional.cross_entropy(s, labels)),
    }
    durations = times(steps, 31)
    return durations["mw"] / durations["cross_entropy"]


def from_scores() -> dict[str, End]:
    """Measure `mw` on a score matrix: against `cross_entropy` and against the literal table."""
    # The worst of several processes: whether an allocator keeps the matrix's pages is a process's own luck,
    # and where it does not, both sides spend their time on page faults and `mw` looks better than it is.
    ratio = max(in_fresh_process(AGAINST, 1024)["ratio"] for _ in range(7))
    small = scores(256)
    taken_small = times(
        {
            "mw": differentiated(small, lambda s: mw(s, TAU)),
            "table": differentiated(small, lambda s: literal(s, TAU)),
        },
        5,
    )
    gain = taken_small["table"] / taken_small["mw"]
    by_value, by_gradient = 0.0, 0.0
    for batch in (1, 2, 64, 256):
        for kind in ("plain", "tied", "equal"):
            matrix = scores(batch).detach()
            matrix = {"plain": matrix, "tied": (matrix * 50).round() / 50, "equal": matrix * 0 + 0.3}[kind]
            for temperature in (0.05, 0.01, 0.005):
                a, b = matrix.clone().requires_grad_(), matrix.double().requires_grad_()
                value, oracle = mw(a, temperature), literal(b, temperature)
                value.backward()
                oracle.backward()
                by_value = max(by_value, float(abs(value.detach().double() - oracle.detach()) / oracle.detach()))
                by_gradient = max(by_gradient, float((a.grad.double() - b.grad).norm() / b.grad.norm()))
    return {
        "mw / cross_entropy, matrix given, B=1024, worst of 7 (x)": at_most(ratio, 3),
        "literal table / mw, B=256 (x)": at_least(gain, 100),
        "mw, worst relative error of the loss": at_most(by_value, 1e-6),
        "mw, worst relative error of the gradient": at_most(by_gradient, 1e-5),
    }


def from_embeddings() -> dict[str, End]:
    """Measure the engine: growth, many positives, and a batch of 4096."""
    from raytriever.losses.named_losses import LOSS_NAMES

    results: dict[str, End] = {}
    single, double = embeddings(1024), embeddings(2048)
    durations = times(
        {f"{n} 1": ours(n, single) for n in LOSS_NAMES} | {f"{n} 2": ours(n, double) for n in LOSS_NAMES}, 5
    )
    for name in LOSS_NAMES:
        growth = durations[f"{name} 2"] / durations[f"{name} 1"]
        results[f"{name}: time at B=2048 / B=1024 (x)"] = at_most(growth, 5)
    many = {n: ours(n, double, 8) for n in LOSS_NAMES if n not in ("infonce", "infonce-symmetric")}
    durations = times({"infonce": ours("infonce", double), **many}, 5)
    for name in many:
        ratio = durations[name] / durations["infonce"]
        results[f"{name}, 8 positives / infonce, B=2048 (x)"] = at_most(ratio, 1.5)
    inputs = embeddings(4096)
    other = "materialised infonce"
    durations = times({other: rival(other, inputs), **{n: ours(n, inputs) for n in LOSS_NAMES}}, 3)
    for name in LOSS_NAMES:
        ratio = durations[name] / durations[other]
        results[f"{name} / {other}, B=4096 (x)"] = at_most(ratio, 1.5)
    return results | of_sums()


def of_sums() -> dict[str, End]:
    """Measure a sum against its losses, which would be computed one after the other without it."""
    both, results = ("mw", "infonce"), dict[str, End]()
    name = "+".join(both)
    for batch in (1024, 4096):
        inputs = embeddings(batch)
        durations = times({item: ours(item, inputs) for item in (name, *both)}, 9)
        for wording, of in (("both apart", sum(durations[item] for item in both)), ("mw", durations["mw"])):
            ratio = durations[name] / of
            results[f"{name} / {wording}, B={batch} (x)"] = reported(ratio)
    return results


def across_queries() -> dict[str, End]:
    """Compare the losses over all pairs of the batch with `infonce`, with and without labels."""
    inputs, names, results = embeddings(4096), ("infonce", "mw", "cosent", "bce"), dict[str, End]()
    steps = {name: ours(name, inputs) for name in names}
    steps |= {f"{name} graded": ours(name, inputs, graded=True) for name in names[2:]}
    durations = times(steps, 5)
    for name in steps:
        ratio = durations[name] / durations["infonce"]
        results[f"{name} / infonce, B=4096 (x)"] = at_most(ratio, 1.2)
    for name in names:
        extra = in_fresh_process(name, 4096)["bytes"] / 1e6
        results[f"{name}: extra memory, B=4096 (MB)"] = at_most(extra, 300)
    return results


def in_fresh_processes(libauc: str | None) -> dict[str, End]:
    """Measure memory and the other implementations."""
    from raytriever.losses.named_losses import LOSS_NAMES

    results: dict[str, End] = {}
    for name in LOSS_NAMES:
        extra = in_fresh_process(name, 4096)["bytes"] / 1e6
        results[f"{name}: extra memory, B=4096 (MB)"] = at_most(extra, 300)
    for name in ("infonce", "mw"):
        run = in_fresh_process(name, 16384)
        results[f"{name}: B=16384 runs (s)"] = End(run["seconds"], "runs", True)
        results[f"{name}: extra memory, B=16384 (MB)"] = reported(run["bytes"] / 1e6)
    rivals = ["materialised infonce"]
    if importlib.util.find_spec("sentence_transformers"):
        rivals += ["MultipleNegativesRankingLoss", "CachedMultipleNegativesRankingLoss"]
    for name in ("infonce", "mw", *rivals):
        run = in_fresh_process(name, 4096)
        results[f"{name}, B=4096 (s)"] = reported(run["seconds"])
        results[f"{name}, B=4096, extra memory (MB)"] = reported(run["bytes"] / 1e6)
    for name, python in (("mw", sys.executable), *([("PairwiseAUCLoss", libauc)] if libauc else [])):
        run = in_fresh_process(name, 256, python)
        results[f"{name}, B=256 (s)"] = reported(run["seconds"])
        results[f"{name}, B=256, extra memory (MB)"] = reported(run["bytes"] / 1e6)
    return results


def main() -> None:
    """Measure and report."""
    line = parser(__doc__.splitlines()[0])
    line.add_argument("--threads", type=int, default=2, help="processor threads")
    line.add_argument("--libauc-python", metavar="PYTHON", help="the Python of an environment that has LibAUC")
    line.add_argument("--across-queries", action="store_true", help="only mw, cosent and bce against infonce")
    line.add_argument("--alone", help=argparse.SUPPRESS)
    line.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = line.parse_args()
    torch.set_num_threads(options.threads)
    if options.alone:
        alone(options.alone, options.batch, options.threads)
    else:
        results = across_queries()
        if not options.across_queries:
            results |= from_scores() | from_embeddings() | in_fresh_processes(options.libauc_python)
        report(f"losses, {options.threads} threads, fp32, d = {DIM}, H = {HARD}", results, options.json)


if __name__ == "__main__":
    main()
