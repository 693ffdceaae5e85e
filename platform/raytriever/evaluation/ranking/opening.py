"""Systems of a data set from their trees: the one place that makes them, for `evaluate` and `search`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.data.unanswerable import with_questions
from raytriever.encoding.corpus import plan_embeddings
from raytriever.encoding.vectors import state_of
from raytriever.errors import ConfigError, setting
from raytriever.evaluation.evaluate import PreparedSystem
from raytriever.evaluation.names import (
    Bm25,
    Fusion,
    Reranking,
    RunFile,
    SystemTree,
    Vectors,
    has_weight,
    nodes_of,
    system_text,
)
from raytriever.evaluation.protocol import JudgedQueries, Protocol, select_judged_queries
from raytriever.evaluation.quantised import FormSystem
from raytriever.evaluation.ranking.lists import FUSED_DEPTH, FusedSystem, RerankedSystem, RunSystem
from raytriever.evaluation.ranking.vectors import VectorSystem
from raytriever.evaluation.request import EvaluatedModel
from raytriever.evaluation.systems import Bm25System, DenseSystem, Encoders, RetrievalBackend
from raytriever.mining.analyser import Analyser
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision, default_device
from raytriever.models.retriever import Retriever
from raytriever.prompts import Prompts
from raytriever.search.exact import Hits, hits_of
from raytriever.store.commit import sha256_of


@dataclass(frozen=True)
class SystemOpener:
    """Maker of the systems of one data set.

    Args:
        prompts_of: prompts of a retriever for the data set.
        weighing: split and judged queries on which the weight of a fusion is chosen; None if there is no such fusion.
        protocol: what is measured; a fusion is at least as deep as its metrics.
    """

    dataset: RetrievalDataset
    encoders: Encoders
    prompts_of: Callable[[Retriever], Prompts]
    backend: RetrievalBackend = field(default_factory=RetrievalBackend)
    weighing: tuple[str, JudgedQueries] | None = None
    protocol: Protocol = field(default_factory=Protocol)

    def open(self, tree: SystemTree) -> PreparedSystem:
        """Return the system of a tree; a weight is chosen at once."""
        match tree:
            case ModelConfig():
                return self.open_encoder(tree)
            case Bm25():
                return Bm25System(self.dataset)
            case Vectors():
                return VectorSystem(self.dataset, tree.folder, tree.similarity)
            case RunFile():
                return RunSystem(self.dataset, tree.file)
            case Reranking():
                cross_encoder = self.encoders.cross_encoders[tree.cross_encoder]
                return RerankedSystem(self.dataset, self.open(tree.first), cross_encoder, tree.depth)
            case Fusion():
                parts = [self.open(part) for part in tree.parts]
                fused = FusedSystem(self.dataset, parts, depth=max(FUSED_DEPTH, self.protocol.kept))
                if tree.is_weighted:
                    assert self.weighing is not None
                    fused.choose_weight(self.weighing[0], self.protocol, self.weighing[1])
                return fused

    def open_encoder(self, config: ModelConfig) -> DenseSystem:
        """Return the dense system of an encoder."""
        retriever = self.encoders[config]
        return DenseSystem(self.dataset, config, retriever, self.backend, self.prompts_of(retriever))


def search_system(
    tree: SystemTree,
    dataset_name: str,
    query: str,
    top: int,
    threshold: float | None = None,
    precision: str | None = None,
    weighed_on: str = "dev",
) -> Hits:
    """Return the `top` passages of a fusion, a reranking or BM25 with the highest scores, without those below the
    threshold. The weight of a fusion is chosen on the split `weighed_on`.

    Raises:
        ConfigError: the system knows the queries of a file alone.
    """
    for node in nodes_of(tree):
        if isinstance(node, Vectors | RunFile):
            what = f"{system_text(node)} has results for the queries of its file alone"
            raise ConfigError(what, setting("model"), "give systems that rank any question, such as bm25+minilm")
    weighs = has_weight(tree)
    opened, device = open_dataset(dataset_name, [weighed_on] if weighs else [], run=in_processes), default_device()
    dataset = with_questions(opened, "asked", [query], "asked")
    encoders = Encoders([EvaluatedModel("asked", tree)], choose_precision(precision, device), device, lambda _: None)
    opener = SystemOpener(
        dataset,
        encoders,
        lambda retriever: retriever.prompts_of(dataset.name),
        weighing=(weighed_on, select_judged_queries(dataset, weighed_on, Protocol())) if weighs else None,
    )
    ranked = opener.open(tree).search(np.array([len(opened.queries)]), min(top, len(dataset.documents)))
    return hits_of(dataset, *ranked, threshold)[0]


def key_of_system(system: PreparedSystem, tree: SystemTree) -> Any:
    """Return what decides the results of a system on its data set, but for the settings that name it, as JSON."""
    match system:
        case FormSystem():
            return [key_of_system(system.dense, tree), vars(replace(system.form, model=""))]
        case DenseSystem():
            prompts = system.prompts
            assert prompts is not None
            plan = plan_embeddings(system.config, system.retriever, system.dataset, "passage", "fp32", prompts=prompts)
            return [plan.key, prompts.query, system.retriever.description.flags()]
        case Bm25System():
            return Analyser.of(system.dataset.documents).settings
        case VectorSystem():
            return [state_of(system.folder), system.similarity]
        case RunSystem():
            return sha256_of(system.file)
        case FusedSystem():
            assert isinstance(tree, Fusion)
            parts = zip(system.parts, tree.parts, strict=True)
            return [[key_of_system(*part) for part in parts], system.weight, system.depth]
        case RerankedSystem():
            assert isinstance(tree, Reranking)
            return [key_of_system(system.parts[0], tree.first), system.cross_encoder.digest(), system.depth]
    raise TypeError(type(system).__name__)
