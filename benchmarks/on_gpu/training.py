"""Training steps of raytriever and sentence-transformers on the same batches, with random weights.

Both get tokens, so neither waits for a tokenizer. Batches have five hard negatives a query and lengths like those of
real texts. raytriever runs `mw` with cached gradients where it needs them; sentence-transformers runs its cached
InfoNCE with the fastest of its attention implementations and mini-batches. MFU counts the forward and the backward pass
of real tokens once: padding and what gradient caching computes again are not useful work.
"""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ends import End
from on_gpu.measuring import synchronize
from on_gpu.models import contents, write_model
from raytriever.losses.config import LossConfig
from raytriever.losses.engine.batch import BatchIds, gather_relevance
from raytriever.losses.engine.workers import ALONE
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.training.batches import Batch, Stager
from raytriever.training.config import TrainingConfig
from raytriever.training.loop import build_optimizer
from raytriever.training.monitoring import Throughput
from raytriever.training.parallel.choice import build_strategy
from raytriever.training.parallel.chunk_size import ChunkChoice
from raytriever.training.parallel.objective import Objective

NEGATIVES, TAU, RATE = 5, 0.01, 1e-5
MFU, RATIO = 0.45, 1.3


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        shape: of the encoder; see `models.SHAPES`.
        queries: of a batch.
        query_length, passage_length: tokens of a text, at most.
        steps: measured steps.
        mini_batches: numbers of texts that sentence-transformers tries as mini-batch.
        mfu: demanded share of the peak arithmetic; None for none.
    """

    shape: str
    queries: int
    query_length: int = 32
    passage_length: int = 128
    steps: int = 5
    mini_batches: tuple[int, ...] = (64, 256)
    mfu: float | None = None


CASES = {
    "full": (
        Case("minilm", 64, steps=20, mini_batches=(64, 384)),
        Case("minilm", 8_192, mini_batches=(512, 2_048)),
        Case("xlm-r-base", 1_024),
        Case("xlm-r-large", 1_024, steps=3, mfu=MFU),
    ),
    "tiny": (Case("tiny", 8, 8, 16, 2, (4, 8)),),
}


def measure(device: torch.device, size: str) -> dict[str, End]:
    """Return the figures of all cases."""
    ends: dict[str, End] = {}
    with TemporaryDirectory() as scratch:
        for case in CASES[size]:
            directory = Path(scratch) / case.shape
            if not directory.exists():
                write_model(Path(scratch), case.shape, device)
            ends |= compared(case, directory, device)
    return ends


def compared(case: Case, directory: Path, device: torch.device) -> dict[str, End]:
    """Return the figures of one case."""
    name = f"{case.shape}, batch {case.queries:,}"
    rates = ours(case, directory, device)
    speed = rates["queries_per_second"]
    ends = {
        f"{name}: raytriever, queries a second": End(speed, "reported", True),
        f"{name}: raytriever, tokens a second": End(rates["tokens_per_second"], "reported", True),
        f"{name}: raytriever, peak memory (MB)": End(rates["peak_memory_mb"], "reported", True),
    }
    if (share := rates.get("model_flops_utilisation")) is not None:
        wanted = f"at least {case.mfu}" if case.mfu else "reported"
        ends[f"{name}: raytriever, MFU"] = End(share, wanted, share >= (case.mfu or 0))
    _release(device)
    if importlib.util.find_spec("sentence_transformers"):
        other, memory, settings = theirs(case, directory, device)
        ends[f"{name}: sentence-transformers ({settings}), queries a second"] = End(other, "reported", True)
        ends[f"{name}: sentence-transformers, peak memory (MB)"] = End(memory, "reported", True)
        is_measured = device.type == "cuda"
        ends[f"{name}: raytriever / sentence-transformers (x)"] = End(
            speed / other, f"at least {RATIO}" if is_measured else "reported", speed / other >= RATIO or not is_measured
        )
        _release(device)
    return ends


def ours(case: Case, directory: Path, device: torch.device) -> dict[str, float]:
    """Return the rates of our steps in bf16."""
    retriever = load_retriever(
        ModelConfig(str(directory), query_length=case.query_length, passage_length=case.passage_length)
    )
    retriever.to(device).train()
    retriever.choose_packing("bf16")
    texts = case.queries * (2 + NEGATIVES)
    chunk = ChunkChoice(TrainingConfig(batch_size=case.queries), retriever, "bf16", device, ALONE).first(texts)
    loss = build_loss(LossConfig("mw", temperature=TAU, loss_precision="bf16")).to(device)
    objective = Objective(retriever, loss, "bf16", chunk)
    strategy = build_strategy("ddp", objective, build_optimizer(objective, RATE, 0.01), ALONE, device, 1.0)
    throughput = Throughput(retriever.query.backbone, retriever.passage.backbone, "bf16", device, ALONE)
    batches = [_batch(case, retriever, seed) for seed in range(2)]
    work = throughput.count(batches[0])
    stager = Stager(objective, throughput.count, device)

    def step(number: int) -> None:
        strategy.step(stager.receive(stager.stage(batches[number % 2])), RATE, number)

    seconds = _seconds_a_step(step, case.steps, device)
    return throughput.rates(*work, case.queries, seconds)


def _batch(case: Case, retriever: Retriever, seed: int) -> Batch:
    queries = contents(case.queries, case.query_length, seed)
    passages = contents(case.queries * (1 + NEGATIVES), case.passage_length, seed + 100)
    rows = torch.arange(case.queries)
    ids = BatchIds(rows, rows[:, None] * (1 + NEGATIVES), torch.arange(len(passages)))
    ids = replace(ids, relevance=gather_relevance(ids, ALONE, torch.device("cpu")))
    return Batch(retriever.batch_of(queries, "query"), retriever.batch_of(passages, "passage"), ids)


def theirs(case: Case, directory: Path, device: torch.device) -> tuple[float, float, str]:
    """Return queries a second, peak memory in MB and the settings of sentence-transformers' fastest way, in bf16."""
    best = (0.0, 0.0, "")
    for attention in ("flash_attention_2", "sdpa"):
        if attention == "flash_attention_2" and (device.type == "cpu" or not importlib.util.find_spec("flash_attn")):
            continue
        for mini_batch in case.mini_batches:
            with suppress(torch.cuda.OutOfMemoryError):
                speed, memory = _their_rates(case, directory, device, attention, mini_batch)
                best = max(best, (speed, memory, f"{attention}, mini-batches of {mini_batch}"))
            _release(device)
    return best


def _their_rates(
    case: Case, directory: Path, device: torch.device, attention: str, mini_batch: int
) -> tuple[float, float]:
    from sentence_transformers import SentenceTransformer

    try:
        from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    except ImportError:  # before version 6
        from sentence_transformers.losses import CachedMultipleNegativesRankingLoss

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model = SentenceTransformer(
        str(directory), device=str(device), model_kwargs={"attn_implementation": attention, "dtype": torch.float32}
    ).train()
    loss = CachedMultipleNegativesRankingLoss(model, scale=1 / TAU, mini_batch_size=mini_batch)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01, fused=device.type == "cuda")
    batches = [list(_their_batch(case, directory, seed)) for seed in range(2)]

    def step(number: int) -> None:
        columns = [{key: one.to(device) for key, one in column.items()} for column in batches[number % 2]]
        with torch.autocast(device.type, torch.bfloat16):
            value = loss(columns, None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = _seconds_a_step(step, case.steps, device)
    memory = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else 0.0
    return case.queries / seconds, memory


def _their_batch(case: Case, directory: Path, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the columns of the same batch: queries, positives, and each hard negative."""
    from raytriever.models.tokenisation import Template, load_tokenizer

    template = Template.of(load_tokenizer(directory))
    queries = contents(case.queries, case.query_length, seed)
    passages = contents(case.queries * (1 + NEGATIVES), case.passage_length, seed + 100)
    for column, length in [
        (queries, case.query_length),
        *((passages[number :: 1 + NEGATIVES], case.passage_length) for number in range(1 + NEGATIVES)),
    ]:
        yield template.pad(template.assemble(column, length))


def _seconds_a_step(step: Callable[[int], Any], steps: int, device: torch.device) -> float:
    durations = []
    for number in range(steps + 2):
        synchronize(device)
        began = time.perf_counter()
        step(number)
        synchronize(device)
        durations.append(time.perf_counter() - began)
    return median(durations[2:])


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
