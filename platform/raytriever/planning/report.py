"""Text of a plan: a table of the stages, the stage that exceeds a limit of memory, disks or time first as a corpus
grows, and every assumption."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from raytriever.errors import flag_of
from raytriever.planning.config import PlanConfig
from raytriever.planning.stages import HEAPS, MINING, REQUEST_BYTES, StageNeeds, stages
from raytriever.planning.workload import CHUNK, GB, Measurement, Workload
from raytriever.terminal import counted, text_table

_SIZES = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6))
_FIXED = (
    "Hours of a stage are those of its parts, one after another. Cores and GPUs of all nodes are used fully.",
    "All nodes see all disks. Requests: one for each file, and one for each "
    f"{REQUEST_BYTES // 2**20} MiB that is read or written. Disk: nothing is deleted before the end.",
    "Storage costs its price for one month. A stage on GPUs costs GPU hours, another one node hours. What has no price "
    "costs nothing.",
    f"Training is data-parallel. Gradients are sent once a step, after the arithmetic. Memory of a training worker is "
    f"that of `train {flag_of('dry_run', True)}` for chunks of {CHUNK} texts.",
    f"Mining: {MINING.num_negatives} negatives of each training query, out of {MINING.depth} ranks.",
    f"Distinct terms of n words: {HEAPS[0]:g} n^{HEAPS[1]:g} (Heaps' law, Manning, Raghavan & Schütze 2008).",
    "Times of sorts and of HNSW grow as n log n, those of other work as n; products grow with the width.",
    "Lists of IVF-PQ: 4 sqrt(documents), clustered by FAISS's defaults.",
)
DRIVER, WORKERS, DISK, TIME, NUMBERS = "driver memory", "worker memory", "disk", "hours", "document numbers"
ALL = "all"  # stages together
LARGEST_NUMBER = 2**32 - 1  # positions in rankings and in the postings of BM25 have 32 bits
_MOST = 10**13
_SPLIT = "split the corpus into parts that are data sets of their own, and merge their rankings by score"
# Remedies by stage and resource; an empty name means every stage or every resource.
_REMEDIES = {
    ("prepare", DRIVER): f"{_SPLIT}; a table of ids that is sorted in ranges on all nodes would lift it",
    ("prepare", TIME): "use more nodes and as many source files as nodes",
    ("BM25", DRIVER): f"{_SPLIT}",
    ("BM25", TIME): f"{_SPLIT}, one node for each; BM25 runs on one node today",
    ("encode", TIME): "use more GPUs or a smaller encoder; shards are independent",
    ("exact search", DRIVER): f"{_SPLIT}; an order of ids that is sorted by shard and read from files would lift it",
    ("exact search", TIME): f"use more nodes, which read the embeddings in parallel, or {flag_of('dtype')} int8",
    ("mining", DRIVER): f"{_SPLIT}; an order of ids that is sorted by shard and read from files would lift it",
    (
        "mining",
        TIME,
    ): f"mine a sample of the queries, or store {flag_of('dtype')} int8; searching in actors, as evaluate does, "
    "would divide it by the nodes",
    (
        "index hnsw",
        DRIVER,
    ): f"build one index for each of several parts of the corpus, or use {flag_of('index')} ivfpq or exact search",
    ("index ivfpq", DRIVER): "build one index for each of several parts of the corpus, or use exact search",
    ("index ivfpq", TIME): f"give fewer {flag_of('lists')}, which are scanned longer in a search",
    ("train", TIME): "use more GPUs, or fewer epochs",
    ("", DISK): f"use more or larger disks, or {flag_of('dtype')} int8, which is a quarter of fp32",
    ("", NUMBERS): _SPLIT,
    ("", WORKERS): "use nodes with more memory, or fewer workers on each",
    ("", TIME): _SPLIT,
}


def lines(work: Workload, measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield the text of a plan."""
    yield from summary(work)
    yield ""
    yield "Assumptions, by flag:"
    for field in dataclasses.fields(PlanConfig):
        value = getattr(work.config, field.name)
        if value is not None:
            yield f"  {flag_of(field.name)} {_number(value)}: {field.metadata['help'].partition(' (')[0]}"
    yield "Assumptions that have no flag:"
    for line in _FIXED:
        yield f"  {line}"
    for group in measurements:
        yield f"{group.kind.capitalize()} by `{group.command}`, {group.date}, {group.machine}:"
        for name, value in group.values.items():
            yield f"  {name}: {value:.4g}"


def summary(work: Workload) -> Iterator[str]:
    """Yield the table of a plan, and the line of the stage that exceeds a limit first."""
    config, model = work.config, work.model
    yield (
        f"{config.documents:,} documents, {config.queries:,} training queries; {config.model}: "
        f"{model.weights / 1e6:,.0f} M weights, width {model.width:,}; {counted(config.all_nodes, 'node')}, "
        f"{counted(config.gpus, 'GPU')}"
    )
    yield text_table(_rows(work), left=0)
    yield _first_line(work)


def _rows(work: Workload) -> list[list[str]]:
    config, each = work.config, stages(work)
    reasons: dict[str, list[str]] = {}
    for excess in excesses(work):
        reasons.setdefault(excess.stage, []).append(excess.resource)
    columns = {
        "stage": [*(stage.name for stage in each), ALL],
        "disk": [size(amount) for amount in _with_sum(stage.disk for stage in each)],
        "driver": [size(amount) for amount in _with_largest(stage.driver for stage in each)],
        "a worker": [size(amount) if amount else "-" for amount in _with_largest(stage.worker for stage in each)],
        "hours": [f"{hours:,.2f}" for hours in _with_sum(stage.hours for stage in each)],
        "mostly": [*(stage.slowest for stage in each), max(each, key=lambda stage: stage.hours).name],
        "nodes": [f"{nodes:,.0f}" for nodes in _with_largest(stage.nodes for stage in each)],
        "GPU hours": [f"{hours:,.1f}" for hours in _with_sum(stage.gpus * stage.hours for stage in each)],
        "requests": [f"{requests:,.0f}" for requests in _with_sum(stage.requests for stage in each)],
    }
    if config.has_prices:
        columns["money"] = [f"{price:,.2f}" for price in _with_sum(cost(stage, config) for stage in each)]
    columns["exceeds"] = [", ".join(reasons.get(name, [])) or "-" for name in columns["stage"]]
    return [[*columns], *map(list, zip(*columns.values(), strict=True))]


def _with_sum(amounts: Iterable[float]) -> list[float]:
    values = list(amounts)
    return [*values, sum(values)]


def _with_largest(amounts: Iterable[float]) -> list[float]:
    values = list(amounts)
    return [*values, max(values)]


def _first_line(work: Workload) -> str:
    first = first_excess(work)
    if first is None:
        return "No stage exceeds a limit at any size."
    documents, excess = first
    breaks = documents <= work.config.documents
    here = [each for each in excesses(work) if (each.stage, each.resource) == (excess.stage, excess.resource)]
    limit = _amount(replace(excess, need=excess.limit)) + "".join(f", {_amount(each)} here" for each in here)
    begins = "First to break" if breaks else "Nothing breaks. First to break in a larger corpus"
    return (
        f"{begins}: {excess.stage}, from {documents:,} documents on ({excess.resource} above {limit}). "
        f"What to do: {excess.remedy}."
    )


def _amount(excess: Excess) -> str:
    return size(excess.need) if excess.resource in (DRIVER, WORKERS, DISK) else f"{excess.need:,.0f}"


def size(amount: float) -> str:
    """Format bytes with three digits."""
    unit, factor = next((pair for pair in _SIZES if amount >= pair[1]), _SIZES[-1])
    value = amount / factor
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def cost(stage: StageNeeds, config: PlanConfig) -> float:
    """Return the price of a stage; what has no price costs nothing."""
    of_gpus, of_nodes = (price or 0 for price in (config.price_per_gpu_hour, config.price_per_node_hour))
    time = of_gpus * stage.gpus if stage.gpus else of_nodes * stage.nodes
    storage = (config.price_per_tb_month or 0) * stage.disk / 1e12
    return stage.hours * time + storage + (config.price_per_million_requests or 0) * stage.requests / 1e6


# --------------------------------------------------------------------------------------------------------------- limits


@dataclass(frozen=True)
class Excess:
    """Need of a stage that exceeds the limit of a resource: bytes, hours or documents."""

    stage: str
    resource: str
    need: float
    limit: float

    @property
    def remedy(self) -> str:
        """Remedy, as a clause."""
        return _REMEDIES.get((self.stage, self.resource)) or _REMEDIES["", self.resource]


def excesses(work: Workload) -> list[Excess]:
    """Return the needs that exceed a limit, in the order of the route; the disks hold what all stages write."""
    all_stages = stages(work)
    needs = [need for stage in all_stages for need in _needs(work, stage)]
    disks = work.config.all_nodes * work.config.disk_per_node * 1e12
    needs.append(Excess(ALL, DISK, sum(stage.disk for stage in all_stages), disks))
    return [need for need in needs if need.need > need.limit]


def first_excess(work: Workload) -> tuple[int, Excess] | None:
    """Return the smallest number of documents at which a stage exceeds a limit, and the excess; None if none does.

    All needs grow with the documents. If one is exceeded by a single document, the number is 1.
    """

    def at(documents: int) -> list[Excess]:
        return excesses(replace(work, config=replace(work.config, documents=documents)))

    low, high = 0, _MOST
    if not at(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) else (middle, high)
    return high, at(high)[0]


def _needs(work: Workload, stage: StageNeeds) -> Iterator[Excess]:
    config = work.config
    memory = config.memory_per_node * GB
    yield Excess(stage.name, DRIVER, stage.driver, memory)
    yield Excess(stage.name, WORKERS, stage.worker * stage.workers_per_node, memory)
    yield Excess(stage.name, TIME, stage.hours, config.max_hours)
    if stage.name in ("BM25", "exact search", "mining"):
        yield Excess(stage.name, NUMBERS, config.documents, LARGEST_NUMBER)
