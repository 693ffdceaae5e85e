"""Limits of the stages: memory, disks and time, and which stage exceeds one of them first as a corpus grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from raytriever.errors import flag_of
from raytriever.planning.stages import StageNeeds, stages
from raytriever.planning.workload import GB, Workload

DRIVER, WORKERS, DISK, TIME, NUMBERS = "driver memory", "worker memory", "disk", "hours", "document numbers"
ALL = "all"  # stages together
LARGEST_NUMBER = 2**32 - 1  # positions in rankings and in the postings of BM25 have 32 bits
_MOST = 10**13
_SPLIT = "split the corpus into parts that are data sets of their own, and merge their rankings by score"
# Remedies by stage and resource; an empty name of a stage or a resource stands for all.
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


@dataclass(frozen=True)
class Excess:
    """Need of a stage that exceeds a limit.

    Args:
        stage: its name.
        resource: one of the names of this module.
        need, limit: bytes, hours or documents.
    """

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
