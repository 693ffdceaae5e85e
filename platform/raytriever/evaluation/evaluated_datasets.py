"""Data sets of an evaluation: with one part or several, the BEIR suite, and samples of a corpus.

Names of data sets and models are short, distinct and safe in file names. They are derived from paths and hub names.

A folder that contains data sets in BEIR layout, but is not a data set itself, is one data set of several parts. Its
metrics are means over the parts, as for CQADupStack in BEIR.

Encoding a whole corpus for every checkpoint is expensive. A sample contains all judged documents and a chosen number of
other documents. Half of the others are BM25's best results for the queries, rank by rank; the rest is random. Metrics
on a sample are higher than on the whole corpus; compare them only with each other."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, UserError, setting
from raytriever.core.paths import expanded
from raytriever.data.data_sources import IR_DATASETS
from raytriever.data.dataset import Documents, Judgements, RetrievalDataset
from raytriever.evaluation.protocol import Protocol
from raytriever.models.prompts import PromptTable
from raytriever.retrieval.mining.bm25 import Bm25Index

CORPUS = ("corpus.jsonl", "corpus.jsonl.gz")
# Largest number of characters of the reason why a data set of a suite is missing.
REASON_CHARACTERS = 160


@dataclass(frozen=True)
class EvaluationDataset:
    """Data set of an evaluation, with the settings for reading it.

    `parts` maps the name of each part to its path or hub name. An undivided data set has one part with its own name.
    `task` is the name in MTEB, for data sets of BEIR. If `bm25_language` is None, the language is detected."""

    name: str
    parts: dict[str, str]
    split: str
    task: str | None = None
    protocol: Protocol = field(default_factory=Protocol)
    bm25_language: str | None = None
    max_bad_rows: float = 0.01

    @property
    def is_divided(self) -> bool:
        """True if metrics are means over parts."""
        return list(self.parts) != [self.name]

    def label(self, part: str) -> str:
        """Return the name of a part in paths; for an undivided data set, its own name."""
        return f"{self.name}/{part}" if self.is_divided else self.name

    def prompt_names(self, part: str) -> tuple[str, ...]:
        """Return the names under which a model may store prompts of a part, the most specific one first."""
        names = (part, self.name, self.task) if self.is_divided else (self.name, self.task)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def labels(self) -> list[str]:
        """Names of the parts in paths."""
        return [self.label(part) for part in self.parts]

    @property
    def sources(self) -> list[str]:
        """Absolute paths or hub names of the parts."""
        return [os.path.abspath(expanded(part)) if expanded(part).exists() else part for part in self.parts.values()]

    @property
    def folder(self) -> str:
        """Path of the data set; for a divided data set, the folder of its parts."""
        return os.path.dirname(self.sources[0]) if self.is_divided else self.sources[0]

    def rename(self, name: str) -> EvaluationDataset:
        """Return the data set under another name."""
        parts = self.parts if self.is_divided else {name: next(iter(self.parts.values()))}
        return replace(self, name=name, parts=parts)


@dataclass(frozen=True)
class _Member:
    """Data set of BEIR: the split with judgements, and its names in other libraries if they differ from BEIR's.

    `task`: name in MTEB. `registered`: name below `beir/` in `ir_datasets`. `hub`: name below `mteb/` on the hub.
    """

    task: str
    registered: str | None = None
    hub: str | None = None
    split: str = "test"


BEIR = {
    "msmarco": _Member("MSMARCO", split="dev"),
    "trec-covid": _Member("TRECCOVID"),
    "nfcorpus": _Member("NFCorpus"),
    "nq": _Member("NQ"),
    "hotpotqa": _Member("HotpotQA"),
    "fiqa": _Member("FiQA2018"),
    "arguana": _Member("ArguAna"),
    "webis-touche2020": _Member("Touche2020", "webis-touche2020/v2", "touche2020"),
    "cqadupstack": _Member("CQADupstackRetrieval"),
    "quora": _Member("QuoraRetrieval"),
    "dbpedia-entity": _Member("DBPedia", hub="dbpedia"),
    "scidocs": _Member("SCIDOCS"),
    "fever": _Member("FEVER"),
    "climate-fever": _Member("ClimateFEVER"),
    "scifact": _Member("SciFact"),
}


def describe_datasets(
    sources: Sequence[str],
    split: str,
    protocol: Protocol | None = None,
    max_bad_rows: float = 0.01,
    bm25_language: str | None = None,
) -> list[EvaluationDataset]:
    """Describe each data set that a user named, without opening it."""
    described = []
    for source in sources:
        path, parts = expanded(source), find_parts(source)
        registered = source.rstrip("/").removeprefix(IR_DATASETS).split("/")[-1].split("@")[0]
        name = safe_name(Path(os.path.abspath(path)).name if path.exists() else registered)
        files = dict(zip(unique_names(distinct_names(parts)), parts, strict=True)) or {name: source}
        task, rules = BEIR[name].task if name in BEIR else None, protocol or Protocol()
        described.append(EvaluationDataset(name, files, split, task, rules, bm25_language, max_bad_rows))
    return described


def rename_duplicates(datasets: Sequence[EvaluationDataset]) -> list[EvaluationDataset]:
    """Return the data sets with names that differ in tables and file names.

    If names are equal, the names of parent folders are put before them, or a number is added if these are equal too."""
    for index, dataset in enumerate(datasets):
        evaluated = dataset.sources, dataset.split, dataset.protocol
        if any(evaluated == (other.sources, other.split, other.protocol) for other in datasets[:index]):
            remedy = f"give each data set once, or evaluate them one by one, each with its own {setting('output')}"
            raise ConfigError(f"two data sets are called {dataset.name!r}", setting("datasets"), remedy)
    names = [dataset.name for dataset in datasets]
    longer = distinct_names([dataset.folder for dataset in datasets])
    new_names = [name if names.count(name) == 1 else other for name, other in zip(names, longer, strict=True)]
    new_names = unique_names(new_names)
    return [
        dataset if dataset.name == name else dataset.rename(name)
        for dataset, name in zip(datasets, new_names, strict=True)
    ]


def check_prompts(prompts: Mapping[str, str], datasets: Sequence[EvaluationDataset]) -> None:
    """Raise `ConfigError` if the user passed prompts by data set, but none of them is for these data sets."""
    PromptTable(own=prompts).check(
        name for dataset in datasets for part in dataset.parts for name in dataset.prompt_names(part)
    )


def find_beir(
    root: Path | None,
    describe: Callable[[Sequence[str], str], list[EvaluationDataset]],
    check: Callable[[EvaluationDataset], object],
) -> tuple[list[EvaluationDataset], list[str]]:
    """Find the public data sets of BEIR (Thakur et al., 2021, arXiv:2104.08663), in the order of its tables.

    Each is looked up as a folder of `root` with the name of BEIR's archive, then in `ir_datasets`, then below `mteb/`
    on the hub. The last two steps may download data. If the folder exists, nothing else is tried, so that errors of the
    folder are reported. The four data sets that are not public, such as BioASQ and Robust04, do not belong to the
    suite. Return the data sets, and for each missing data set a line with its name and the reasons. `describe` is
    `describe_datasets`. `check` opens a data set, and raises a `UserError` if that fails."""
    datasets, missing = [], []
    for name, member in BEIR.items():
        reasons = [f"no folder {root / name}"] if root is not None and not (root / name).is_dir() else []
        for source in _sources(root, name, member):
            try:
                [one] = describe([source], member.split)
                one = replace(one.rename(name), task=member.task)
                check(one)
            except UserError as error:
                reasons.append(textwrap.shorten(str(error), REASON_CHARACTERS, placeholder=" ..."))
            else:
                datasets.append(one)
                break
        else:
            missing.append(f"{name} ({'; '.join(dict.fromkeys(reasons))})")
    return datasets, missing


def find_parts(source: str) -> list[str]:
    """Return the parts of a data set, as folders or names in `ir_datasets`. Return [] for an undivided data set."""
    if source.startswith(IR_DATASETS):
        return _registered_parts(source.removeprefix(IR_DATASETS))
    folder = expanded(source)
    if not folder.is_dir() or _is_beir(folder):
        return []
    visible = [path for path in folder.iterdir() if not path.name.startswith((".", "_"))]
    # A file may be a data set, unless it is a note such as README.md.
    if any(path.is_file() and path.suffix not in ("", ".md", ".txt") for path in visible):
        return []
    return sorted(str(path) for path in visible if _is_beir(path))


def _registered_parts(name: str) -> list[str]:
    """Return the names below a name in `ir_datasets` that has no documents itself, such as `beir/cqadupstack`."""
    try:
        import ir_datasets
    except ImportError:
        return []  # opening the data set reports the missing package
    registry = set(ir_datasets.registry)
    if name in registry:
        return []
    return [f"{IR_DATASETS}{entry}" for entry in sorted(registry) if entry.startswith(f"{name}/")]


def _is_beir(folder: Path) -> bool:
    return any((folder / name).is_file() for name in CORPUS)


def _sources(root: Path | None, name: str, member: _Member) -> list[str]:
    if root is not None and (root / name).is_dir():
        return [str(root / name)]
    hub = f"hf://datasets/mteb/{member.hub or name}"
    return [f"{IR_DATASETS}beir/{member.registered or name}", *([hub] if name != "cqadupstack" else [])]


# Number of BM25 results per query: the usual depth of the metrics.
DEPTH = 100


def sample_corpus(
    dataset: RetrievalDataset, split: str, others: int, seed: int, index_of: Callable[[RetrievalDataset], Bm25Index]
) -> RetrievalDataset:
    """Return the data set with only the judged documents of the split and `others` more documents, in corpus order.

    A smaller corpus is left whole. The result is in memory, without tokens and negatives; queries keep their
    positions. `index_of` builds the BM25 index of a data set; it is called only if needed."""
    judged = np.unique(dataset.judgements[split].documents)
    total = len(dataset.documents)
    if total <= len(judged) + others:
        return dataset
    chosen = judged
    if others >= 2:
        ranked = _best_documents(dataset, split, index_of(dataset))
        hard = ranked[~np.isin(ranked, judged)][: others // 2]
        chosen = np.union1d(judged, hard)
    rest = np.setdiff1d(np.arange(total), chosen)
    sample = np.random.default_rng(seed).choice(rest, len(judged) + others - len(chosen), replace=False)
    return _select_documents(dataset, split, np.union1d(chosen, sample))


def _best_documents(dataset: RetrievalDataset, split: str, index: Bm25Index) -> Int64[ndarray, " documents"]:
    """Return the documents that BM25 finds for the queries of a split, each document once: first the best one of every
    query, then the second best, and so on."""
    queries = np.unique(dataset.judgements[split].queries)
    _, documents = index.search([dataset.queries.texts[int(query)] for query in queries], DEPTH)
    by_rank = documents.T.reshape(-1)
    _, first = np.unique(by_rank, return_index=True)
    return by_rank[np.sort(first)]


def _select_documents(
    dataset: RetrievalDataset, split: str, positions: Int64[ndarray, " documents"]
) -> RetrievalDataset:
    documents, rows = dataset.documents, dataset.judgements[split]
    ids, titles, texts = (
        [column[position] for position in positions.tolist()]
        for column in (documents.ids, documents.titles, documents.texts)
    )
    moved = Judgements(
        rows.queries, np.searchsorted(positions, rows.documents).astype(np.int64), rows.scores, rows.sources, rows.ranks
    )
    return replace(
        dataset,
        documents=Documents(ids, titles, texts),
        judgements={split: moved},
        tokens=None,
        negatives=None,
        location=None,
    )


def distinct_names(sources: Sequence[str]) -> list[str]:
    """Return the last component of each path or hub name, after as many parent components as make the names distinct.

    Components are joined by `_`. A last component `model` is replaced by the name of its run directory. Each character
    that is not allowed in both file names and MLflow's metric names becomes `_`. Equal sources get equal names."""
    all_parts = [_parts(source) for source in sources]
    names = []
    for parts in all_parts:
        others = [other for other in all_parts if other != parts]
        length = next(
            (n for n in range(1, len(parts)) if all(other[-n:] != parts[-n:] for other in others)), max(1, len(parts))
        )
        names.append(safe_name("_".join(parts[-length:])))
    return names


def unique_names(names: Sequence[str]) -> list[str]:
    """Return distinct names: a repeated name gets a number, such as `a`, `a-2`, `a-3`."""
    unique: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in unique or (number > 1 and candidate in names):
            number += 1
            candidate = f"{name}-{number}"
        unique.append(candidate)
    return unique


def safe_name(name: str) -> str:
    """Replace everything but letters, digits, `-`, `.` and `_`."""
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"


def _parts(source: str) -> list[str]:
    parts = [part for part in PurePath(source).parts if part not in ("/", "..")]
    return parts[:-1] if len(parts) > 1 and parts[-1] == "model" else parts or [source]
