"""MTEB's `SearchProtocol` for retrieval and reranking tasks, with our encoders, exact search and evaluation.

MTEB passes a corpus to `index`, then queries to `search`, and computes its metrics from the results. The corpus is
first written to the cache, in BEIR layout, and prepared there. So actors on any node can read it like any data set. The
encoder pool of the evaluation encodes the corpus, which is searched only once. Our results use the same ranking: the
metrics of `--metrics` with the pooled AUC, thresholds, and results per query. Their directory is next to MTEB's result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.core.errors import DataError, StorageError
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.data.data_sources import Files, Row, Rows
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import in_processes
from raytriever.evaluation.answer_decisions import decide_dataset
from raytriever.evaluation.dataset_evaluation import DatasetEvaluation, PartEvaluation
from raytriever.evaluation.evaluate_split import Evaluation, evaluate
from raytriever.evaluation.evaluated_datasets import EvaluationDataset, safe_name
from raytriever.evaluation.mteb.mteb_encoder import MtebEncoder
from raytriever.evaluation.protocol import AUC, PAIR_TARGETS, JudgedQueries, Protocol, select_judged_queries
from raytriever.evaluation.requested_models import EvaluationJob, OpenPart, add_foreign_questions
from raytriever.evaluation.results import Results, as_read
from raytriever.evaluation.run_evaluation import EvaluationDirectory
from raytriever.evaluation.systems import DenseSystem, RetrievalBackend
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import names_of_task
from raytriever.models.retriever import Retriever

# Split with the judgements. MTEB's own names of splits are not always valid file names.
SPLIT = "test"
# Text of empty documents and queries. MTEB encodes them, but our format rejects a row without text and title. Our
# format accepts a zero-width space, which WordPiece and SentencePiece tokenizers read as no text.
NO_TEXT = "\u200b"
_BATCH = 1024


def open_split(data: Mapping[str, Any], task_metadata: Any, name: str, max_bad_rows: float) -> RetrievalDataset:
    """Return a split of a task (`corpus`, `queries`, `relevant_docs`) as a prepared data set with the split `SPLIT`."""
    texts = dict(zip(data["queries"]["id"], query_texts(data["queries"], task_metadata), strict=True))

    def documents() -> Iterator[Row]:
        for row in data["corpus"]:
            title, text = row.get("title") or "", row["text"] or ""
            yield {"_id": row["id"], "title": title, "text": text if (title + text).strip() else NO_TEXT}

    def judgements() -> Iterator[Row]:
        for query, grades in data["relevant_docs"].items():
            for document, grade in grades.items() if query in texts else ():
                yield {"query-id": query, "corpus-id": document, "score": int(grade)}

    def questions() -> Iterator[Row]:
        for key, text in texts.items():
            yield {"_id": key, "text": text if text.strip() else NO_TEXT}

    files: dict[str, tuple[str, Rows]] = {
        "corpus.jsonl": (f"documents of {name}", documents),
        "queries.jsonl": (f"queries of {name}", questions),
        f"qrels/{SPLIT}.jsonl": (f"judgements of {name}", judgements),
    }
    folder = Files(files).write(name)
    return open_dataset(str(folder), [SPLIT], max_bad_rows=max_bad_rows, run=in_processes)


def query_texts(queries: Any, task_metadata: Any) -> list[str]:
    """Return the text of each query as MTEB passes it to encoders, with its instruction or its conversation."""
    from mteb._create_dataloaders import create_dataloader
    from mteb.types import PromptType

    loader = create_dataloader(queries, task_metadata=task_metadata, prompt_type=PromptType.query, batch_size=_BATCH)
    return [text for batch in loader for text in batch["text"]]


# Folder of our evaluation directories, next to MTEB's results of a model.
RETRIEVAL = "retrieval"


@dataclass(frozen=True, kw_only=True)
class MtebJob(EvaluationJob):
    """Evaluation of models on tasks of MTEB, with our own results on each retrieval task.

    Tasks without the calibration split get no thresholds. A reranking task ignores `foreign`, because its queries have
    candidates. The precision is fp32 by default on every device, so that results of different machines are comparable.
    """

    datasets: Sequence[EvaluationDataset] = ()
    baselines: Sequence[str] = ()
    precision: str | None = "fp32"
    protocol: Protocol = field(default_factory=Protocol)
    max_bad_rows: float = 0.01
    tasks: Sequence[Any]

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that our results of a model on a task depend on."""
        names = ("targets", "calibration_split", "confidence", "removed", "foreign", "max_bad_rows")
        return {"metrics": self.protocol.metrics, **{name: getattr(self, name) for name in names}}

    @property
    def key(self) -> str:
        """Digest of `settings`."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()


@dataclass(kw_only=True)
class TaskSearch(MtebEncoder):
    """One model on one task of MTEB, in the form that `mteb.evaluate` accepts as a model.

    `retriever` was loaded with `config`, and `cache` is MTEB's `ResultCache`. `label` names the model in tables; MTEB
    also uses it for a local model."""

    config: ModelConfig
    retriever: Retriever
    label: str | None
    task: Any
    job: MtebJob
    cache: Any
    backend: RetrievalBackend = field(default_factory=RetrievalBackend)
    log: Callable[[str], None] = print

    @cached_property
    def folder(self) -> Path:
        """MTEB's folder of the model's results."""
        path: Path = self.cache.get_task_result_path(self.task.metadata.name, self.mteb_model_meta)
        return path.parent

    def index(self, corpus: Any, **about: Any) -> None:
        """Keep the corpus until the queries arrive, as MTEB's own wrapper does; see MTEB's `SearchProtocol`."""
        self._corpus = corpus

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Any = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Search the corpus and write our results; see MTEB's `SearchProtocol`.

        If `top_ranked` lists candidates for each query, only these are ranked. Settings of MTEB's own encoders are
        ignored. Return scores by query and document."""
        foreign = self.job.foreign
        if top_ranked is not None and foreign:
            self.log(f"{self.task.metadata.name}: queries of other data sets have no candidates, so they are left out")
            foreign = ()
        data = {**self._splits(hf_subset)[hf_split], "corpus": self._corpus, "queries": queries}
        opened = self._open(data, foreign, hf_split)
        ranked = RankedQueries.of(self._system(opened.dataset), top_k, top_ranked)
        self._evaluate(opened, ranked, hf_subset, hf_split, foreign)
        return ranked.results(list(queries["id"]))

    def label_of(self, subset: str, split: str) -> str:
        """Return the name of a subset and split of the task in tables and file names."""
        parts = [self.task.metadata.name, *([subset] if subset != "default" else [])]
        return safe_name("-".join([*parts, *([split] if len(self.task.eval_splits) > 1 else [])]))

    def directories(self) -> dict[str, Path]:
        """Return our evaluation directory of each subset and split of the task, by name."""
        labels = [self.label_of(subset, split) for split in self.task.eval_splits for subset in self.task.hf_subsets]
        return {label: self.folder / RETRIEVAL / label for label in labels}

    def our_results(self) -> dict[str, Results] | None:
        """Return the results of each directory, or None if a directory is missing or has other settings."""
        contents = {}
        for label, folder in self.directories().items():
            try:
                if read_manifest(folder, verify=False)["meta"].get("key") != self.job.key:
                    return None
                contents[label] = Results.read(folder)
            except StorageError:
                return None
        return contents

    def _splits(self, subset: str) -> Mapping[str, Any]:
        """Return the data of a subset by split. A task of MTEB without subsets may hold its splits directly."""
        return self.task.dataset.get(subset, self.task.dataset)

    @property
    def _protocol(self) -> Protocol:
        return replace(self.job.protocol, drop_own=self.task.ignore_identical_ids)

    def _open(self, data: Mapping[str, Any], foreign: Sequence[str], split: str) -> OpenPart:
        metadata, max_bad_rows = self.task.metadata, self.job.max_bad_rows
        dataset = open_split(data, metadata, safe_name(metadata.name)[:100], max_bad_rows)
        if dataset.quarantine.total:
            self.log(f"{metadata.name}: {dataset.quarantine.total:,} bad rows are left out, such as repeated ids")
        judged = {SPLIT: select_judged_queries(dataset, SPLIT, self._protocol)}
        return add_foreign_questions(OpenPart(metadata.name, dataset, judged), foreign, max_bad_rows, self.log, split)

    def _system(self, dataset: RetrievalDataset) -> DenseSystem:
        metadata = self.task.metadata
        prompts = self.retriever.prompts_of(*names_of_task(metadata.name), task_type=metadata.type)
        if str(prompts):
            self.log(f"{metadata.name}: {self.label}: {prompts}")
        return DenseSystem(dataset, self.config, self.retriever, self.backend, prompts)

    def _evaluate(
        self, opened: OpenPart, ranked: RankedQueries, subset: str, split: str, foreign: Sequence[str]
    ) -> None:
        label, model, protocol = self.label_of(subset, split), self.label or "model", self._protocol
        dataset, judged = opened.dataset, opened.judged[SPLIT]
        evaluation = evaluate(dataset, SPLIT, ranked, protocol, judged)
        chosen_on = self._calibrate(subset, split, foreign, (judged, evaluation))
        part = PartEvaluation(label, dataset, judged, {model: evaluation})
        if chosen_on:
            part = replace(part, calibration_judged=chosen_on[0], calibration={model: chosen_on[1]})
        source = EvaluationDataset(label, {label: str(dataset.location)}, split, self.task.metadata.name, protocol)
        evaluated = DatasetEvaluation(source, [part])
        targets = self.job.targets if chosen_on else ()
        try:
            decisions = decide_dataset(evaluated, targets, self.job.confidence, self.job.removed)
        except DataError as error:
            self.log(f"{error}, so there are no thresholds")
            decisions = []
        request = {"model": asdict(self.config), "task": self.task.metadata.name, "subset": subset, "split": split}
        request |= {**asdict(protocol), "metrics": list(protocol.metrics)}
        meta = {"kind": "evaluation", "key": self.job.key}
        with committed_directory(self.directories()[label], meta, replace=True) as folder:
            results = Results(request=as_read(request))
            directory = EvaluationDirectory(folder, results, self.job.calibration_split)
            directory.add(evaluated, decisions)
            directory.finish()

    def _calibrate(
        self, subset: str, split: str, foreign: Sequence[str], evaluated: tuple[JudgedQueries, Evaluation]
    ) -> tuple[JudgedQueries, Evaluation] | None:
        """Evaluate the split on which thresholds are chosen; it may be the `evaluated` split.

        Return None if there are no targets, or if the task has no such split."""
        chosen_on = self.job.calibration_split
        if not self.job.targets:
            return None
        data = self._splits(subset).get(chosen_on)
        is_same = chosen_on == split
        if data is None or (is_same and any(target in PAIR_TARGETS for target, _ in self.job.targets)):
            reason = f"is already evaluated on {chosen_on!r}" if is_same else f"has no split {chosen_on!r}"
            self.log(f"{self.label_of(subset, split)}: {reason}, so there are no thresholds")
            return None
        if is_same:
            return evaluated
        protocol, opened = replace(self._protocol, metrics=(AUC,)), self._open(data, foreign, chosen_on)
        judged = opened.judged[SPLIT]
        return judged, evaluate(opened.dataset, SPLIT, self._system(opened.dataset), protocol, judged)


@dataclass
class RankedQueries:
    """Results of all queries of a data set, searched once and as deep as MTEB or our metrics need.

    If a query has candidates, only these are ranked."""

    system: DenseSystem
    top_k: int
    candidates: list[ndarray] | None
    _ranking: tuple[ndarray, ndarray] | None = None

    @classmethod
    def of(cls, system: DenseSystem, top_k: int, top_ranked: Mapping[str, Sequence[str]] | None) -> RankedQueries:
        """Create the results for a system's data set. `top_ranked` has candidates of the queries, or is None."""
        dataset = system.dataset
        if top_ranked is None:
            return cls(system, top_k, None)
        position = {name: row for row, name in enumerate(dataset.documents.ids)}
        candidates = [
            np.array(
                sorted({position[document] for document in top_ranked.get(query, ()) if document in position}), np.int64
            )
            for query in dataset.queries.ids
        ]
        return cls(system, top_k, candidates)

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """See `evaluate_split.System.search`."""
        scores, documents = self._deepest(depth)
        return scores[queries, :depth], documents[queries, :depth]

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """See `evaluate_split.System.score`."""
        return self.system.score(queries, documents)

    def results(self, queries: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the `top_k` scores of each query by document, in MTEB's form."""
        ids, known = self.system.dataset.documents.ids, self.system.dataset.queries.ids
        best = self.search(np.arange(len(known)), self.top_k)
        rows = dict(zip(known, zip(*(values.tolist() for values in best), strict=True), strict=True))
        return {
            query: {str(ids[document]): score for score, document in zip(*rows[query], strict=True) if document >= 0}
            for query in queries
            if query in rows
        }

    def _deepest(self, depth: int) -> tuple[ndarray, ndarray]:
        if self.candidates is not None:
            return self._reranked
        dataset = self.system.dataset
        depth = min(len(dataset.documents), max(depth, self.top_k))
        if self._ranking is None or self._ranking[0].shape[1] < depth:
            self._ranking = self.system.search(np.arange(len(dataset.queries)), depth)
        return self._ranking

    @cached_property
    def _reranked(self) -> tuple[ndarray, ndarray]:
        assert self.candidates is not None
        counts = np.array([len(candidate) for candidate in self.candidates])
        owner, documents = np.repeat(np.arange(len(counts)), counts), np.concatenate(self.candidates)
        scores = self.score(owner, documents)
        order = np.lexsort((self.system.ties[documents], -scores, owner))
        column = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (len(counts), max(1, int(counts.max(initial=0))))
        table, ranking = np.full(shape, -np.inf, np.float32), np.full(shape, -1)
        table[owner, column], ranking[owner, column] = scores[order], documents[order]
        return table, ranking
