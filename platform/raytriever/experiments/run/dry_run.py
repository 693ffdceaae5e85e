"""Dry run of a training: it checks the settings and the model's files, and plans the memory. It starts nothing.

The plan needs only `config.json`, so it is made before the weights of a large model are downloaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import torch

from raytriever.core.errors import ConfigError, ModelError, flag_of
from raytriever.core.terminal import counted, text_table
from raytriever.losses.build_loss import build_loss
from raytriever.models.description import Description, describe
from raytriever.models.device_and_precision import choose_precision
from raytriever.models.device_memory import free_memory
from raytriever.models.directory.model_files import stored_tensors
from raytriever.models.directory.modules import ModelFiles
from raytriever.models.model_settings import ModelConfig
from raytriever.models.resolve_model import read_files, resolve_model
from raytriever.training.guide_encoder import guide_errors
from raytriever.training.memory.memory_of_states import WorkerTexts, guide_bytes
from raytriever.training.memory.memory_plan import MARGIN, MemoryPlan, StepMemory
from raytriever.training.memory.simulated_encoder import simulate
from raytriever.training.run_config import Config

GB = 1e9
CARDS = (24, 80)  # memory in GB of common GPUs, for the plan if this machine has no GPU
RANK = 16  # LoRA rank in suggestions
_ROWS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states (AdamW)",
    "cast": "weights cast to bf16",
    "batch": "embeddings and scores of the batch",
    "guide": "guide",
    "activations": "activations of a chunk",
    "temporary": "temporary tensors",
}


@dataclass(frozen=True)
class Place:
    """Device that could train."""

    name: str
    device: str  # `cuda` or `cpu`
    precision: str  # `fp32` or `bf16`
    budget: int  # number of bytes that training may use


def dry_run(config: Config) -> Iterator[str]:
    """Yield the lines of a dry run of one training: the model, its weights, and the memory plan."""
    build_loss(config.loss)  # only for its checks
    if guide := config.loss.guide:
        with guide_errors(guide):
            resolve_model(guide, weights=False)  # only for its checks
    yield from _plan(config)


def places(precision: str | None) -> list[Place]:
    """Return this machine's GPU. Without a GPU, return example GPUs and the CPU. None means the default precision."""
    if torch.cuda.is_available():
        device = torch.device("cuda")
        properties = torch.cuda.get_device_properties(device)
        chosen = choose_precision(precision, device)
        return [Place(properties.name, "cuda", chosen, int((1 - MARGIN) * properties.total_memory))]
    cards = [Place(f"{size} GB card", "cuda", precision or "bf16", int((1 - MARGIN) * size * GB)) for size in CARDS]
    cpu = torch.device("cpu")
    return [
        *cards,
        Place("this machine", "cpu", choose_precision(precision, cpu), int((1 - MARGIN) * free_memory(cpu))),
    ]


def _plan(config: Config) -> Iterator[str]:
    directory = resolve_model(config.model.model, config.model.revision, weights=False)
    try:
        files = ModelFiles.read(directory)
        plans = _plans(config, files, describe(files, config.model))
    except ModelError as error:
        yield f"The memory of {config.model.model} cannot be planned: {error.what}."
        return
    plan, local = plans[0].plan, plans[0].plan.local
    backbone = plan.encoder.encoder.backbone
    rank = f" (LoRA of rank {config.model.lora_rank})" if config.model.lora_rank else ""
    yield (
        f"{config.model.model} ({type(backbone).__name__}): {sum(plan.weights.values()):,} weights, "
        f"{plan.trained:,} of them trained{rank}"
    )
    yield from _missing_weights(files)
    yield (
        f"A step of one worker: {local.queries:,} queries and {local.passages:,} passages of at most {local.tokens:,} "
        f"tokens; {config.training.strategy}, {counted(local.workers, 'worker')}"
    )
    yield "Memory of one worker in GB (10^9 bytes):"
    yield text_table(_table(plans), left=0)
    for planned in plans:
        yield planned.advice(config)


def _missing_weights(files: ModelFiles) -> Iterator[str]:
    for folder in dict.fromkeys(pipeline.transformer.folder for pipeline in files.sides.values()):
        try:
            stored_tensors(folder)
        except ModelError as error:
            yield f"{folder}: {error.what}. The plan does not need weights; training does."


@dataclass(frozen=True)
class _Planned:
    """Memory plan for one `Place`."""

    place: Place
    plan: MemoryPlan
    largest: int  # number of texts of the largest chunk that fits; 0 if not even one text fits
    texts: int  # number of texts of the planned chunk: the user's choice, else the largest chunk
    # `largest` with activation checkpointing; 0 if that is set already, not needed or not supported by the model.
    checkpointed: int

    @property
    def parts(self) -> StepMemory:
        """Bytes of a step with chunks of `texts` texts, or of one text if not even that fits."""
        return self.plan.parts(self.texts or 1)

    def advice(self, config: Config) -> str:
        """Return one line that says whether training fits, and which flags to use."""
        name, local, largest = self.place.name, self.plan.local, self.largest
        more = ""
        if self.checkpointed > largest:
            more = f"; {flag_of('activation_checkpointing', True)} makes room for {_flags(self.checkpointed, local)}"
        if not largest:
            one_text = self.plan.parts(1)
            needs = f"{name}: does not fit, because one text needs {one_text.total / GB:,.1f} GB"
            return needs + (more or f"; {_remedy(config, one_text, self.place.budget)}")
        if self.texts and self.texts > largest:
            return f"{name}: does not fit with this chunk; use {_flags(largest, local)}{more}"
        if largest >= local.texts:
            return f"{name}: fits without gradient caching"
        return f"{name}: fits with at most {_flags(largest, local)}{more}"


def _plans(config: Config, files: ModelFiles, description: Description) -> list[_Planned]:
    @cache
    def plan_of(device: str, precision: str, checkpointing: bool) -> MemoryPlan:
        """Return one plan for all GPUs: a simulated chunk takes the same memory on each of them."""
        model = replace(config.model, activation_checkpointing=checkpointing)
        encoder = simulate(files, "passage", model, description, device, precision)
        local = _local(config, description, encoder.encoder.dim)
        guide = _guide_bytes(config.loss.guide, device, precision, local) if config.loss.guide else 0
        return MemoryPlan(encoder, 1 if description.towers == "shared" else 2, config.training, local, guide)

    plans = []
    for place in places(config.training.precision):
        plan = plan_of(place.device, place.precision, config.model.activation_checkpointing)
        largest, asked, checkpointed = plan.largest(place.budget), _asked_texts(config, plan.local), 0
        if not config.model.activation_checkpointing and largest < plan.local.texts:
            with suppress(ConfigError):  # the architecture may not support checkpointing
                checkpointed = plan_of(place.device, place.precision, True).largest(place.budget)
        plans.append(_Planned(place, plan, largest, largest if asked is None else asked, checkpointed))
    return plans


def _local(config: Config, description: Description, dim: int) -> WorkerTexts:
    workers = config.training.workers[1]
    queries = config.training.batch_size // workers
    group = config.data.positives_per_query + config.data.negatives_per_query
    tokens = max(description.query_length, description.passage_length)
    return WorkerTexts(queries, queries * group, workers, tokens, dim)


def _guide_bytes(name: str, device: str, precision: str, local: WorkerTexts) -> int:
    model = ModelConfig(model=name)
    files = read_files(model, weights=False)
    description = describe(files, model)
    encoder = simulate(files, "passage", model, description, device, precision).encoder
    weights = sum(parameter.numel() for parameter in encoder.parameters())
    return guide_bytes((1 if description.towers == "shared" else 2) * weights, precision, encoder.dim, local)


def _asked_texts(config: Config, local: WorkerTexts) -> int | None:
    chunk, tokens = config.training.grad_cache_chunk, config.training.grad_cache_tokens
    asked = [chunk] if chunk else []
    asked += [max(1, tokens // local.tokens)] if tokens else []
    return min([*asked, local.texts]) if asked else None


def _table(plans: Sequence[_Planned]) -> list[list[str]]:
    rows = [["", *(planned.place.name for planned in plans)]]
    rows.append(["", *(f"{_DEVICES[planned.place.device]}, {planned.place.precision}" for planned in plans)])
    for part, title in _ROWS.items():
        if part == "guide" and not plans[0].parts.guide:
            continue
        rows.append([title, *(f"{getattr(planned.parts, part) / GB:,.2f}" for planned in plans)])
    rows.append(["sum", *(f"{planned.parts.total / GB:,.2f}" for planned in plans)])
    rows.append([f"usable ({1 - MARGIN:.0%})", *(f"{planned.place.budget / GB:,.2f}" for planned in plans)])
    rows.append(["texts in a chunk", *(f"{planned.texts:,}" if planned.texts else "none" for planned in plans)])
    return rows


_DEVICES = {"cuda": "GPU", "cpu": "CPU"}


def _flags(texts: int, local: WorkerTexts) -> str:
    if texts >= local.texts:
        return f"the whole batch ({counted(texts, 'text')})"
    return f"{flag_of('grad_cache_chunk')} {texts}"


def _remedy(config: Config, parts: StepMemory, budget: int) -> str:
    if parts.total - parts.activations - parts.temporary < budget:
        return f"use a shorter {flag_of('passage_length')}"
    if not config.model.lora_rank:
        return f"train adapters with {flag_of('lora_rank')} {RANK}"
    return "use a smaller model or batch, or a GPU with more memory"
