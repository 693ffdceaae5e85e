"""Constructor of the systems that a tree of `system_names` describes, for both `evaluate` and `search`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from raytriever.core.errors import ConfigError, setting
from raytriever.core.terminal import warn
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import in_processes
from raytriever.data.unanswerable_queries import with_questions
from raytriever.evaluation.composed.fusion_and_reranking import FUSED_DEPTH, FusedSystem, RerankedSystem, RunFileSystem
from raytriever.evaluation.composed.system_of_vectors import VectorSystem
from raytriever.evaluation.evaluate_split import PreparedSystem
from raytriever.evaluation.protocol import JudgedQueries, Protocol, select_judged_queries
from raytriever.evaluation.requested_models import EvaluatedModel
from raytriever.evaluation.system_names import (
    Bm25,
    Fusion,
    Reranking,
    RunFile,
    SystemTree,
    VectorFolder,
    has_weight,
    nodes_of,
    system_text,
)
from raytriever.evaluation.systems import Bm25System, DenseSystem, Encoders
from raytriever.models.device_and_precision import choose_precision, default_device
from raytriever.models.inference import TextEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import Prompts
from raytriever.retrieval.search.calibration_file import Decider, calibration_in, read_calibration
from raytriever.retrieval.search.exact_search import Hits, hits_of, search_dataset


@dataclass(frozen=True)
class SystemOpener:
    """Builder of the systems of one data set."""

    dataset: RetrievalDataset
    encoders: Encoders
    prompts_of: Callable[[TextEncoder], Prompts]  # function that returns the prompts of a retriever for the data set
    # Split and judged queries on which the weight of a fusion is chosen; None if there is no such fusion.
    weighing: tuple[str, JudgedQueries] | None = None
    # Protocol of the evaluation. A fusion lists at least as many documents as the metrics need.
    protocol: Protocol = field(default_factory=Protocol)

    def open(self, tree: SystemTree) -> PreparedSystem:
        """Return the system that a tree describes. The weight of a fusion is chosen here."""
        match tree:
            case ModelConfig():
                return self.open_encoder(tree)
            case Bm25():
                return Bm25System(self.dataset)
            case VectorFolder():
                return VectorSystem(self.dataset, tree.folder, tree.similarity)
            case RunFile():
                return RunFileSystem(self.dataset, tree.file)
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
        return DenseSystem(self.dataset, config, retriever, self.encoders.backend, self.prompts_of(retriever))


def search_system(
    tree: SystemTree,
    dataset_name: str,
    query: str,
    top: int,
    threshold: float | Literal["kept"] | None = None,
    precision: str | None = None,
    calibration: Path | None = None,
) -> Hits:
    """Search with a system of any kind: return at most `top` passages with the highest scores at or above the
    threshold; see `search.exact_search.search_dataset`.

    The weight of a fusion is chosen on the split of the calibration's thresholds, or on `dev` without a calibration."""
    if isinstance(tree, ModelConfig):
        return search_dataset(tree, dataset_name, query, top, threshold, precision, calibration)
    for node in nodes_of(tree):
        if isinstance(node, VectorFolder | RunFile):
            what = f"{system_text(node)} has results only for the queries of its file"
            raise ConfigError(what, setting("model"), "give systems that rank any question, such as bm25+minilm")
    split: str | None = None
    if has_weight(tree):
        made = read_calibration(calibration) if calibration else None
        split = made.chosen_on.split(" and ")[0] if made else "dev"
    opened, device = open_dataset(dataset_name, [split] if split else [], run=in_processes), default_device()
    dataset = with_questions(opened, "asked", [query], "asked")
    system = SystemOpener(
        dataset,
        Encoders([EvaluatedModel("asked", tree)], choose_precision(precision, device), device, lambda _: None),
        lambda retriever: retriever.prompts_of(dataset.name),
        weighing=(split, select_judged_queries(dataset, split, Protocol())) if split else None,
    ).open(tree)
    current = None
    if calibration is not None:
        documents = dataset.documents
        current = calibration_in(calibration, lambda: system.digest, dataset.name, documents, warn, is_named=True)
    decider = Decider(current, dataset.documents, lists_all=False)
    depth = min(max(top, decider.depth), len(dataset.documents))
    scores, ranking = system.search(np.array([len(opened.queries)]), depth)
    confidence = decider.confidence([query], scores, ranking)
    return hits_of(dataset, scores[:, :top], ranking[:, :top], threshold, current, confidence)[0]
