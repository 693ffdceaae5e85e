"""Settings of a plan: corpus, model, cluster and prices. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from raytriever.errors import ConfigError, setting
from raytriever.options import did_you_mean, option
from raytriever.paths import MODEL, expanded

# Architectures that are planned without a file of the model.
SHAPES = ("xlm-r-base", "xlm-r-large")
_DIGITS = 15
_MODEL = replace(MODEL, names=(*MODEL.names, *SHAPES))


def count(value: Any) -> int:
    """Read a whole number such as `8841823`, `8_841_823` or `1e9`; raises `ValueError` with the remedy."""
    remedy = "give a whole number, such as 8800000 or 1e9"
    try:
        number = Decimal(str(value))
    except InvalidOperation as error:
        raise ValueError(remedy) from error
    if not number.is_finite() or number.adjusted() >= _DIGITS or number != int(number):
        raise ValueError(f"{remedy}, of at most {_DIGITS} digits")
    return int(number)


def _count(default: int | None, help: str, minimum: int = 1) -> Any:
    return option(default, help, minimum=minimum, reads=count, form="N")


@dataclass(frozen=True)
class PlanConfig:
    """Corpus, model, cluster and prices of a plan; by default MS MARCO's passages on one node without a GPU."""

    documents: int = _count(8_841_823, "documents of the corpus")
    queries: int = _count(502_939, "training queries; each gets hard negatives")
    dev_queries: int = _count(6_980, "queries that are measured")
    words_per_document: float = option(56.0, "words of a document", above=0, maximum=1e6)
    words_per_query: float = option(6.0, "words of a query", above=0, maximum=1e6)
    tokens_per_word: float = option(1.4, "tokens of a word", above=0, maximum=100)
    model: str = option(
        "minilm", f"{', '.join(SHAPES)}, minilm, a model directory, or a hub name", reads=_MODEL, form="MODEL"
    )
    dtype: str = option("fp32", "number format of the stored embeddings", choices=("fp32", "fp16", "int8"))
    depth: int = _count(1_000, "documents that a search returns for a query")
    batch_size: int = _count(1_024, "queries of a training step, over all workers")
    negatives_per_query: int = _count(5, "hard negatives of a query in a training step", minimum=0)
    epochs: float = option(3.0, "passes over the training queries", above=0, maximum=1e6)
    gpus: int = _count(0, "GPUs of the cluster; 0 plans with cores alone", minimum=0)
    gpus_per_node: int = _count(8, "GPUs of a node")
    gpu_tflops: float = option(
        790.0, "TFLOP/s that a GPU reaches in large matrix products of bf16; 790 is an H200's", above=0, maximum=1e6
    )
    gpu_memory: float = option(80.0, "memory of a GPU, GB", above=0, maximum=1e6)
    nodes: int | None = _count(None, "nodes of the cluster (default: as many as the GPUs need, or 1)")
    cores_per_node: int = _count(96, "cores of a node")
    memory_per_node: float = option(1_000.0, "memory of a node, GB", above=0, maximum=1e9)
    disk_per_node: float = option(8.0, "disk of a node, TB; all nodes see the disks of all", above=0, maximum=1e9)
    read_per_node: float = option(2.0, "GB/s that a node reads from or writes to the disks", above=0, maximum=1e6)
    network_per_node: float = option(50.0, "GB/s between two nodes that exchange gradients", above=0, maximum=1e6)
    max_hours: float = option(168.0, "longest time of a stage, hours", above=0, maximum=1e9)
    price_per_gpu_hour: float | None = option(None, "price of a GPU for an hour, with its share of the node", minimum=0)
    price_per_node_hour: float | None = option(None, "price of a node for an hour in a stage without GPUs", minimum=0)
    price_per_tb_month: float | None = option(None, "price of storing a TB for a month", minimum=0)
    price_per_million_requests: float | None = option(None, "price of a million requests to the storage", minimum=0)

    @property
    def all_nodes(self) -> int:
        """Number of nodes."""
        return self.nodes or max(1, -(-self.gpus // self.gpus_per_node))

    @property
    def has_prices(self) -> bool:
        """Return true if a price is given."""
        prices = self.price_per_gpu_hour, self.price_per_node_hour
        return any(each is not None for each in (*prices, self.price_per_tb_month, self.price_per_million_requests))


def check_plan(config: PlanConfig) -> None:
    """Check that the model is a known name, a path or a hub name, and that the nodes hold the GPUs."""
    name = config.model
    if name not in _MODEL.names and "/" not in name and not expanded(name).exists():
        raise ConfigError(f"unknown model {name!r}", setting("model"), did_you_mean(name, _MODEL.names))
    if config.gpus > config.all_nodes * config.gpus_per_node:
        raise ConfigError(
            f"{config.gpus:,} GPUs exceed the {config.all_nodes * config.gpus_per_node:,} of all nodes",
            setting("nodes"),
            "give more nodes, or leave it out",
        )
