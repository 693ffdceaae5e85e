"""Questions with and without an answer in the corpus: data sets of the study `abstain`.

Queries that share a relevant document form a group, and a group is used whole: for testing if one of its queries is a
test query, else for the dev split, else for training. Of a group that is measured, one query is asked, so no document
is relevant to two questions. Questions without an answer are of three kinds:

- `removed`: the question of every second group. All of its relevant documents, and documents with the same text, are
  not in the corpus.
- `foreign`: questions of data sets of another domain.
- `hard`: questions with an answer in which one entity is replaced, see `hard_questions`. Its rules
  read the corpus that is searched. A question and its original are in the same split.

The id of a question begins with its kind, that of a question with an answer with `answerable`. Questions without an
answer are judged relevant to a document that the corpus lacks, as in a test collection whose corpus is incomplete.

Groups, questions and documents are chosen by the SHA-256 of their ids: the same packs give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from hard_questions import hard_questions
from packs import id_hash
from raytriever.core.errors import DataError
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import committed_directory
from raytriever.data.dataset import Documents, Judgements, RetrievalDataset
from raytriever.data.hashed_ids import normalize
from raytriever.evaluation.annotation.annotated_dataset import write_beir
from raytriever.evaluation.protocol import FOREIGN, REMOVED

TRAIN, DEV, TEST = "train", "dev", "test"
MIXTURE, COUNTS = "mixture", "counts.json"
ANSWERABLE, HARD = "answerable", "hard"
# Fewest questions with and without an answer in a dev split on which a threshold is chosen.
FEWEST = 8
Counts = dict[str, dict[str, int]]  # number of questions of each kind, of training queries and documents, by data set


@dataclass(frozen=True)
class StudySize:
    """Largest numbers of queries and documents taken from each data set.

    Args:
        dev, test: own questions, half of them without an answer.
        foreign_dev, foreign_test: questions of data sets of another domain.
        documents: documents; all relevant documents are kept even if they are more.
    """

    train: int
    dev: int
    test: int
    foreign_dev: int
    foreign_test: int
    documents: int


@dataclass(frozen=True)
class StudySource:
    """Data set of the study.

    Args:
        domain: questions of other domains have no answer in this corpus.
        splits: splits of the pack for training, validation and measuring. The groups of an empty one are taken from
            `train`, or from `test` if there is no `train`.
    """

    name: str
    domain: str
    splits: tuple[str, str, str]


@dataclass(frozen=True)
class _Question:
    """Question of a data set: the position of its query, and whether its relevant documents are kept."""

    query: int
    has_answer: bool


@dataclass(frozen=True)
class _Chosen:
    """Queries of a data set by their use, with the relevant documents of each query."""

    dataset: RetrievalDataset
    train: Sequence[int]
    questions: Mapping[str, Sequence[_Question]]
    relevant: Mapping[int, Sequence[int]]

    def asked(self, has_answer: bool, role: str = "") -> list[int]:
        """Return the queries with or without an answer of a role, or of all."""
        roles = [role] if role else list(self.questions)
        return [
            question.query for role in roles for question in self.questions[role] if question.has_answer == has_answer
        ]

    def documents_of(self, queries: Iterable[int]) -> set[int]:
        """Return the relevant documents of queries."""
        return {document for query in queries for document in self.relevant[query]}

    def text(self, document: int) -> str:
        """Return title and text of a document, without case and white space."""
        documents = self.dataset.documents
        return normalize(f"{documents.titles[document]} {documents.texts[document]}")


def write_questions(
    folder: Path, sources: Mapping[StudySource, Callable[[], RetrievalDataset]], size: StudySize
) -> Counts:
    """Write one data set for each source, and `mixture` to train on, unless the folder exists.

    Args:
        folder: folder of the data sets.
        sources: function that opens each data set with the splits of the source; called only if nothing is stored.

    Returns:
        Numbers of questions and documents by data set, `mixture` included.
    """
    if not folder.exists():
        chosen = {source: choose(open_source(), source, size) for source, open_source in sources.items()}
        for source, selection in chosen.items():
            _check_enough(source, selection)
        with committed_directory(folder) as temporary:
            _write(temporary, chosen, size)
    return read_json(folder / COUNTS, Counts, f"remove {folder}; it is written again", needed=True)


def choose(dataset: RetrievalDataset, source: StudySource, size: StudySize) -> _Chosen:
    """Choose training queries and questions of a data set."""
    splits = {role: split for role, split in zip((TRAIN, DEV, TEST), source.splits, strict=True) if split}
    relevant: dict[int, list[int]] = {}
    role_of: dict[int, str] = {}
    for role, split in splits.items():
        rows = dataset.judgements[split]
        rows = rows.where(rows.scores > 0)
        for query, document in zip(rows.queries.tolist(), rows.documents.tolist(), strict=True):
            relevant.setdefault(query, []).append(document)
            role_of[query] = role
    asked = sorted(role_of, key=lambda query: id_hash(dataset.queries.ids[query]))
    by_role: dict[str, list[list[int]]] = {TEST: [], DEV: [], TRAIN: []}
    for group in _groups(asked, relevant):
        role = next(role for role in by_role if role in {role_of[query] for query in group})
        by_role[role].append([query for query in group if role_of[query] == role])
    questions = {}
    for role, most in ((TEST, size.test), (DEV, size.dev)):
        pool = next((by_role[name] for name in (role, TRAIN, TEST) if by_role[name]), [])
        questions[role] = [_Question(group[0], has_answer=not at % 2) for at, group in enumerate(pool[:most])]
        del pool[:most]
    texts = {normalize(dataset.queries.texts[part.query]) for question in questions.values() for part in question}
    train = {query for group in by_role[TRAIN if TRAIN in splits else TEST] for query in group}
    own = [query for query in asked if query in train and normalize(dataset.queries.texts[query]) not in texts]
    return _Chosen(dataset, own[: size.train], questions, relevant)


def _groups(queries: Sequence[int], relevant: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the groups of queries that share relevant documents, in the order of their first queries."""
    pairs = np.array([(query, document) for query in queries for document in relevant[query]]).reshape(-1, 2)
    first = int(pairs[:, 0].max(initial=-1)) + 1
    count = first + int(pairs[:, 1].max(initial=-1)) + 1
    graph = coo_matrix((np.ones(len(pairs)), (pairs[:, 0], first + pairs[:, 1])), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for query in queries:
        groups.setdefault(int(labels[query]), []).append(query)
    return list(groups.values())


def _check_enough(source: StudySource, chosen: _Chosen) -> None:
    for role in chosen.questions:
        fewest = min(len(chosen.asked(has_answer, role)) for has_answer in (True, False))
        if fewest < FEWEST:
            raise DataError(
                f"has {fewest} {role} questions with or without an answer, too few to choose and check a threshold",
                source.name,
                f"give a data set with at least {2 * FEWEST} queries that share no relevant document",
            )


def _write(folder: Path, chosen: Mapping[StudySource, _Chosen], size: StudySize) -> None:
    counts: Counts = {}
    mixed = _Folder()
    for source, selection in chosen.items():
        evaluated, prefix = _Folder(), f"{source.name}:"
        foreign = _foreign_questions(source, chosen, size)
        texts = {selection.text(document) for document in selection.documents_of(selection.asked(has_answer=False))}
        texts |= {
            other.text(document)
            for role in foreign.values()
            for _, other, query in role
            for document in other.relevant[query]
        }
        corpus = _corpus(selection, selection.documents_of(selection.asked(has_answer=True)), texts, size.documents)
        hard = _hard_questions(selection, corpus)
        count: dict[str, int] = {"documents": len(corpus), "training queries": len(selection.train)}
        for role in selection.questions:
            answerable, removed = selection.asked(True, role), selection.asked(False, role)
            replaced = [query for query in answerable if query in hard]
            for query in answerable:
                evaluated.add(selection, query, role, corpus, f"{ANSWERABLE}:")
                mixed.add(selection, query, role, corpus, prefix, prefix)
            for query in removed:
                evaluated.add(selection, query, role, set(), f"{REMOVED}:")
            for other_source, other, query in foreign[role]:
                evaluated.add(other, query, role, set(), f"{FOREIGN}:{other_source.name}:")
            for query in replaced:
                evaluated.add(selection, query, role, set(), f"{HARD}:", text=hard[query])
            count |= {
                f"{role}: with an answer": len(answerable),
                f"{role}: answer removed": len(removed),
                f"{role}: of another domain": len(foreign[role]),
                f"{role}: entity replaced": len(replaced),
            }
        trained = selection.documents_of(selection.train)
        for query in selection.train:
            mixed.add(selection, query, TRAIN, trained, prefix, prefix)
        mixed.add_documents(selection, corpus | trained, prefix)
        counts[source.name] = count
        evaluated.add_documents(selection, corpus)
        evaluated.write(folder / source.name)
    counts[MIXTURE] = {"documents": len(mixed.documents), "training queries": len(mixed.judgements[TRAIN])}
    mixed.write(folder / MIXTURE)
    (folder / COUNTS).write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


def _hard_questions(chosen: _Chosen, corpus: set[int]) -> dict[int, str]:
    """Return the text with another entity of each question that has an answer, if there is one.

    No text is a query of the whole data set."""
    documents, rows = chosen.dataset.documents, sorted(corpus)
    position = {row: at for at, row in enumerate(rows)}
    asked = chosen.asked(has_answer=True)
    pairs = sorted((query, position[document]) for query in asked for document in chosen.relevant[query])
    queries, relevant = np.array(pairs, np.int64).T
    ids, titles, texts = (
        [column[row] for row in rows] for column in (documents.ids, documents.titles, documents.texts)
    )
    judgements = {TEST: Judgements(queries, relevant, np.ones(len(pairs), np.int64))}
    searched = RetrievalDataset(chosen.dataset.name, Documents(ids, titles, texts), chosen.dataset.queries, judgements)
    return hard_questions(searched, asked, seed=0)


def _corpus(chosen: _Chosen, answers: set[int], excluded: set[str], count: int) -> set[int]:
    """Return the documents of a corpus: the answers, and others of the smallest hashes without an excluded text."""
    ids = chosen.dataset.documents.ids
    corpus = set(answers)
    for document in sorted(range(len(ids)), key=lambda row: id_hash(ids[row])):
        if len(corpus) >= count:
            break
        if document not in corpus and chosen.text(document) not in excluded:
            corpus.add(document)
    return corpus


def _foreign_questions(
    source: StudySource, chosen: Mapping[StudySource, _Chosen], size: StudySize
) -> dict[str, list[tuple[StudySource, _Chosen, int]]]:
    """Return the questions of other domains by role: equally many of each data set, those of the smallest hashes."""
    others = [other for other in chosen if other.domain != source.domain]
    return {
        role: [
            (other, chosen[other], query)
            for other in others
            for query in sorted(
                (question.query for question in chosen[other].questions[role]),
                key=lambda query: id_hash(f"{source.name}:{chosen[other].dataset.queries.ids[query]}"),
            )[: most // len(others)]
        ]
        for role, most in ((DEV, size.foreign_dev), (TEST, size.foreign_test))
        if others
    }


class _Folder:
    """Data set in BEIR layout that is collected before it is written."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, str]] = {}
        self._queries: dict[str, dict[str, str]] = {}
        self.judgements: dict[str, dict[str, list[str]]] = {TRAIN: {}, DEV: {}, TEST: {}}

    def add(
        self,
        chosen: _Chosen,
        query: int,
        role: str,
        corpus: set[int],
        prefix: str,
        document_prefix: str = "",
        text: str | None = None,
    ) -> None:
        """Add a query, with another text if given; its relevant documents outside the corpus have ids of no document.

        Its id and those of its documents begin with the prefixes."""
        name = f"{prefix}{chosen.dataset.queries.ids[query]}"
        self._queries[name] = {"_id": name, "text": chosen.dataset.queries.texts[query] if text is None else text}
        ids = chosen.dataset.documents.ids
        self.judgements[role][name] = [
            f"{document_prefix if document in corpus else 'absent:'}{ids[document]}"
            for document in chosen.relevant[query]
        ]

    def add_documents(self, chosen: _Chosen, corpus: set[int], prefix: str = "") -> None:
        documents = chosen.dataset.documents
        for row in sorted(corpus):
            name = f"{prefix}{documents.ids[row]}"
            self.documents[name] = {"_id": name, "title": documents.titles[row], "text": documents.texts[row]}

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        judgements = {
            role: [(query, name, 1) for query, names in judged.items() for name in names]
            for role, judged in self.judgements.items()
            if judged
        }
        write_beir(folder, self.documents.values(), self._queries.values(), judgements)
