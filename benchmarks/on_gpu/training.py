"""Training steps of raytriever and sentence-transformers on the same batches, with random weights.

Both get tokens, so neither waits for a tokenizer. Steps follow each other without a wait for the device, as in a
training; a thread prepares our next batch, as the loader does, and theirs are ready. Batches have five hard negatives a
query and lengths like those of real texts; `tail` names a corpus of short texts and a few long ones. raytriever runs
`mw`, with cached gradients where it needs them. sentence-transformers runs InfoNCE by the fastest of its ways that fit:
without gradient caching, or with mini-batches of so many texts or tokens, in bf16, and the fastest of them in fp16 too.
Each way is tried for a step, and the fastest is timed again; this time counts. Its attention is SDPA: the kernels of
its flash attention, which also leaves out the padding, come from a hub that the machine cannot reach. MFU counts the
forward and the backward pass of real tokens once, of the same peak rate for all: padding and what gradient caching
computes again are not useful work. Caching therefore reaches 6/8 at most."""

from __future__ import annotations

import importlib.util
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ends import reported
from on_gpu.measuring import Cases, Figures, at_least, release, seconds_of, synchronize
from on_gpu.models import contents, write_model
from raytriever.losses.batch_relevance import GlobalIds, find_relevance
from raytriever.losses.build_loss import build_loss
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.training.batch_loader import Batch, copy_to, wait_for_copy
from raytriever.training.loop import build_strategy
from raytriever.training.optimizer_and_schedule import build_optimizer
from raytriever.training.parallel.chunk_size import ChunkChoice
from raytriever.training.parallel.objective import Objective
from raytriever.training.step_metrics import Throughput, peak_flops
from raytriever.training.training_settings import TrainingConfig

NEGATIVES, TAU, RATE = 5, 0.01, 1e-5
RATIO = 1.3
PRODUCT = 8_192  # rows and columns of the product that gives the measured peak rate
Way = dict[str, int]  # arguments of the cached loss; none for the loss without caching


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        shape: of the encoder; see `models.SHAPES`.
        queries: of a batch.
        query_length, passage_length: tokens of a text, at most.
        steps: measured steps.
        ways: of sentence-transformers.
        tail: most passages are short: half of them have at most an eighth of the longest's tokens.
    """

    shape: str
    queries: int
    query_length: int = 32
    passage_length: int = 128
    steps: int = 5
    ways: tuple[Way, ...] = ({"mini_batch_size": 256}, {"mini_batch_num_tokens": 32_768})
    tail: bool = False

    @property
    def name(self) -> str:
        """The name of the case."""
        return f"{self.shape}-{self.queries}{'-tail' * self.tail}"

    def texts(self, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the tokens of the queries and passages of a batch."""
        shape = {"median": 0.12, "spread": 1.0} if self.tail else {}
        passages = contents(self.queries * (1 + NEGATIVES), self.passage_length, seed + 100, **shape)
        return contents(self.queries, self.query_length, seed), passages


_SHORT = (
    Case("xlm-r-large", 64, steps=8, ways=({}, {"mini_batch_num_tokens": 16_384})),
    Case("xlm-r-large", 1_024, steps=2, ways=({"mini_batch_size": 128}, {"mini_batch_num_tokens": 16_384})),
    Case("minilm", 64, steps=20, ways=({}, {"mini_batch_num_tokens": 65_536})),
    Case("minilm", 8_192, steps=3, ways=({"mini_batch_size": 1_024}, {"mini_batch_num_tokens": 131_072})),
)
CASES = {
    "full": (*_SHORT, Case("xlm-r-base", 1_024), Case("xlm-r-large", 256, passage_length=512, steps=2, tail=True)),
    "short": _SHORT,
    "tiny": (Case("tiny", 8, 8, 16, 2, ({}, {"mini_batch_size": 4}, {"mini_batch_num_tokens": 64}), tail=True),),
}


def cases(device: torch.device, size: str, scratch: Path) -> Cases:
    """Yield the comparisons."""
    for case in CASES[size]:
        yield case.name, compared(case, scratch, device)


def compared(case: Case, scratch: Path, device: torch.device) -> Figures:
    """Compare raytriever with sentence-transformers."""
    directory = scratch / case.shape
    if not directory.exists():
        write_model(scratch, case.shape, device)
    name = f"{case.shape}, batch {case.queries:,}{', few long texts' * case.tail}"
    rates = ours(case, directory, device)
    speed = rates["queries_per_second"]
    yield f"{name}: raytriever, queries a second", reported(speed)
    yield f"{name}: raytriever, tokens a second", reported(rates["tokens_per_second"])
    yield f"{name}: raytriever, tokens of a chunk (0: no caching)", reported(rates["chunk"])
    yield f"{name}: raytriever, peak memory (MB)", reported(rates["peak_memory_mb"])
    if (local := rates.get("model_flops_utilisation")) is not None:
        yield f"{name}: raytriever, MFU of the data sheet's peak", reported(local)
        yield f"{name}: raytriever, MFU of the measured product", reported(local * rates["peak"] / product_rate(device))
    release(device)
    if importlib.util.find_spec("sentence_transformers"):
        rate = 0.0
        for way, rate, memory in theirs(case, directory, device):
            yield f"{name}: sentence-transformers, {way}, queries a second", reported(rate)
            yield f"{name}: sentence-transformers, {way}, peak memory (MB)", reported(memory)
        if rate:
            yield f"{name}: raytriever / sentence-transformers (x)", at_least(speed / rate, RATIO, device)


def product_rate(device: torch.device) -> float:
    """Return the operations a second of a large product of bf16 matrices."""
    left, right = (torch.randn(PRODUCT, PRODUCT, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * PRODUCT**3 / seconds_of(lambda: left @ right, device)


def prepare(case: Case, directory: Path, device: torch.device) -> tuple[Callable[[int], None], Throughput, Batch, int]:
    """Return our step in bf16, by number, what counts its work, a batch, and the tokens of a chunk."""
    retriever = load_retriever(
        ModelConfig(str(directory), query_length=case.query_length, passage_length=case.passage_length)
    )
    retriever.to(device).train()
    retriever.choose_packing("bf16")
    texts = case.queries * (2 + NEGATIVES)
    chunk = ChunkChoice(TrainingConfig(batch_size=case.queries), retriever, "bf16", device, ALONE).first(texts)
    loss = build_loss(LossConfig("mw", temperature=TAU, loss_precision="bf16"), unit_length=True).to(device)
    objective = Objective(retriever, loss, "bf16")
    strategy = build_strategy(TrainingConfig(), objective, build_optimizer(objective, RATE, 0.01), ALONE, device)
    throughput = Throughput(retriever.query.backbone, retriever.passage.backbone, "bf16", device, ALONE)
    batches = [_batch(case, retriever, seed, chunk) for seed in range(2)]
    stream, loader = torch.cuda.Stream(device) if device.type == "cuda" else None, ThreadPoolExecutor(1)
    copies = deque([loader.submit(copy_to, batches[0], device, stream)])

    def step(number: int) -> None:
        copies.append(loader.submit(copy_to, batches[(number + 1) % 2], device, stream))
        value = strategy.forward_backward(wait_for_copy(copies.popleft().result())).value
        strategy.clip_gradients()
        strategy.step(value, number)

    return step, throughput, batches[0], chunk or 0


def ours(case: Case, directory: Path, device: torch.device) -> dict[str, float]:
    """Return the rates of our steps."""
    step, throughput, batch, chunk = prepare(case, directory, device)
    release(device)  # the search for a chunk takes more memory than a step
    seconds = _seconds_a_step(step, case.steps, device)
    rates = throughput.rates(*throughput.count(batch), case.queries, seconds)
    peak = peak_flops(torch.cuda.get_device_name(device), "bf16") if device.type == "cuda" else None
    return rates | {"chunk": chunk, "peak": peak or 0.0}


def _batch(case: Case, retriever: Retriever, seed: int, chunk: int | None) -> Batch:
    queries, passages = case.texts(seed)
    rows = np.arange(case.queries)
    relevance = find_relevance(GlobalIds(rows, rows[:, None] * (1 + NEGATIVES), np.arange(len(passages))), 0, 1)
    sides = retriever.batch_of(queries, "query", tokens=chunk), retriever.batch_of(passages, "passage", tokens=chunk)
    return Batch(*sides, relevance, chunk)


def theirs(case: Case, directory: Path, device: torch.device) -> Iterator[tuple[str, float, float]]:
    """Yield the ways of sentence-transformers with their queries a second and peak memory in MB; the last counts."""
    rates: dict[tuple[int, str], float] = {}

    def tried(number: int, precision: str) -> Iterator[tuple[str, float, float]]:
        way = case.ways[number]
        title = f"{precision}, {' '.join(f'{key} {value}' for key, value in way.items()) or 'no caching'}"
        try:
            rate, memory = _their_rates(case, directory, device, precision, way, steps=1)
        except torch.cuda.OutOfMemoryError:
            return
        finally:
            release(device)
        rates[number, precision] = rate
        yield f"tried: {title}", rate, memory

    for number in range(len(case.ways)):
        yield from tried(number, "bfloat16")
    if not rates:  # none fits
        return
    yield from tried(max(rates, key=rates.__getitem__)[0], "float16")
    number, precision = max(rates, key=rates.__getitem__)
    rate, memory = _their_rates(case, directory, device, precision, case.ways[number], case.steps)
    yield "timed: the fastest", rate, memory


def _their_rates(
    case: Case, directory: Path, device: torch.device, precision: str, way: Way, steps: int
) -> tuple[float, float]:
    from sentence_transformers import SentenceTransformer

    try:
        from sentence_transformers.sentence_transformer import losses
    except ImportError:  # before version 6
        from sentence_transformers import losses

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model = SentenceTransformer(
        str(directory), device=str(device), model_kwargs={"attn_implementation": "sdpa", "dtype": torch.float32}
    ).train()
    # As accelerate does for its trainer: in each forward pass, also in those of gradient caching within `backward`.
    encode = torch.autocast(device.type, getattr(torch, precision))(model.forward)
    model.forward = lambda *arguments, **options: {
        key: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
        for key, value in encode(*arguments, **options).items()
    }
    if way:
        loss = losses.CachedMultipleNegativesRankingLoss(model, scale=1 / TAU, **way)
    else:
        loss = losses.MultipleNegativesRankingLoss(model, scale=1 / TAU)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01, fused=device.type == "cuda")
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")
    batches = [list(_their_batch(case, directory, seed)) for seed in range(2)]

    def step(number: int) -> None:
        columns = [{key: value.to(device) for key, value in column.items()} for column in batches[number % 2]]
        scaler.scale(loss(columns, None)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    seconds = _seconds_a_step(step, steps, device)
    memory = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else 0.0
    return case.queries / seconds, memory


def _their_batch(case: Case, directory: Path, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the columns of the same batch: queries, positives, and each hard negative."""
    from raytriever.models.directory.transformer_settings import Transformer
    from raytriever.models.tokenization import Template, load_tokenizer

    template = Template.of(load_tokenizer(Transformer.read(directory)))
    queries, passages = case.texts(seed)
    for column, length in [
        (queries, case.query_length),
        *((passages[number :: 1 + NEGATIVES], case.passage_length) for number in range(1 + NEGATIVES)),
    ]:
        yield template.pad(template.assemble(column, length))


def _seconds_a_step(step: Callable[[int], Any], steps: int, device: torch.device) -> float:
    """Return the mean seconds of steps that follow each other."""
    warm = 2
    for number in range(warm):
        step(number)
    synchronize(device)
    began = time.perf_counter()
    for number in range(warm, warm + steps):
        step(number)
    synchronize(device)
    return (time.perf_counter() - began) / steps
