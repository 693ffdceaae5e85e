"""Retrieval data set: columns of texts (in memory or in shards), and judgements as arrays of positions.

Other modules refer to a query or a document by its position. Ids are used only in files and messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int64
from numpy import ndarray

from raytriever.data.columns import Answers, Column, QueryPrompts, TokenColumn, texts_at
from raytriever.data.hashed_ids import Copies, TextHashes, digest_of, hash_texts, key_of
from raytriever.data.records_and_bad_rows import Quarantine
from raytriever.models.prompts import TITLE, fill_title


@dataclass(frozen=True)
class Documents:
    """Corpus: three columns of equal length. The title or the text of a passage may be empty, but not both.

    `stored_digest` and `stored_hashes` are the values of `digest` and `hashes` that the writer of the columns computed
    (see `hashed_ids`). `bm25_language` is a code of `languages.LANGUAGES`; None to detect the language."""

    ids: Sequence[str]
    titles: Sequence[str]
    texts: Sequence[str]
    stored_digest: str | None = None
    bm25_language: str | None = None
    stored_hashes: TextHashes | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids, titles and texts. It identifies results that depend on the corpus only."""
        contents = (key_of(title, text) for title, text in zip(self.titles, self.texts, strict=True))
        return self.stored_digest or digest_of(map(key_of, self.ids), contents)

    @cached_property
    def hashes(self) -> TextHashes:
        """Text hashes of the passages. If they are not stored, every passage is read to compute them."""
        return hash_texts(Passages(self)) if self.stored_hashes is None else self.stored_hashes

    @cached_property
    def copies(self) -> Copies:
        """Passages that are copies of earlier ones; see `hashed_ids`."""
        return Copies.of(self.hashes)


@dataclass(frozen=True)
class Queries:
    """Queries of all splits: two columns of equal length; `stored_digest` and `stored_hashes` as in `Documents`."""

    ids: Sequence[str]
    texts: Sequence[str]
    stored_digest: str | None = None
    stored_hashes: TextHashes | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids and texts."""
        return self.stored_digest or digest_of(map(key_of, self.ids), map(key_of, self.texts))

    @cached_property
    def hashes(self) -> TextHashes:
        """Text hashes of the queries, without their prompts."""
        return hash_texts(self.texts) if self.stored_hashes is None else self.stored_hashes

    @cached_property
    def copies(self) -> Copies:
        """Queries that are copies of earlier ones; see `hashed_ids`."""
        return Copies.of(self.hashes)


@dataclass(frozen=True)
class TextPrompts:
    """Prompts of the texts of a column, stored as runs of consecutive texts with the same prompt."""

    runs: tuple[tuple[int, str], ...]  # for each run, its number of texts and its prompt
    # Prompts of single texts, by position in the column. They replace the prompt of the text's run.
    own: QueryPrompts | None = None

    @classmethod
    def chained(cls, columns: Sequence[TextPrompts]) -> TextPrompts:
        """Return the prompts of several columns, one after another."""
        starts = np.cumsum([0, *(sum(size for size, _ in column.runs) for column in columns)])
        runs = tuple(run for column in columns for run in column.runs)
        own = [(start, column.own) for start, column in zip(starts, columns, strict=False) if column.own is not None]
        if not own:
            return cls(runs)
        queries = np.concatenate([start + prompts.queries for start, prompts in own])
        return cls(runs, QueryPrompts(queries, [str(text) for _, prompts in own for text in prompts.texts]))

    def of(self, positions: ndarray) -> list[str]:
        """Return the prompt of the text at each position."""
        ends = np.cumsum([size for size, _ in self.runs])
        prompts = [self.runs[run][1] for run in np.searchsorted(ends, positions, side="right")]
        if self.own is None:
            return prompts
        return [
            of_query or prompt for of_query, prompt in zip(self.own.of(positions.tolist(), ""), prompts, strict=True)
        ]


@dataclass(frozen=True)
class Tokens:
    """Token ids of all texts, without special tokens and not truncated.

    `digest` is the digest of the tokenizer and the prompts, `tokenizer` the digest of the tokenizer alone. If a data
    set was opened without a tokenization, `tokenizer` is empty and the prompts are unknown."""

    queries: TokenColumn
    documents: TokenColumn
    digest: str
    tokenizer: str = ""
    query_prompts: TextPrompts = field(default_factory=lambda: TextPrompts(()))
    document_prompts: TextPrompts = field(default_factory=lambda: TextPrompts(()))


@dataclass(frozen=True)
class Judgements:
    """Judged pairs of one split, sorted by query position, then document position."""

    queries: Int64[ndarray, " rows"]
    documents: Int64[ndarray, " rows"]
    scores: Int64[ndarray, " rows"]  # grades; a document with a grade above 0 is relevant
    # Source of each judgement, as an index in `SOURCES`; by default all are human.
    sources: Int64[ndarray, " rows"] = None  # type: ignore[assignment]
    # Rank of each positive of a query, from 0 (the most useful); by default all are 0.
    ranks: Int64[ndarray, " rows"] = None  # type: ignore[assignment]
    # Label that the data has for each pair, between 0 and 1; NaN for a pair without a label. By default all are NaN.
    labels: Float32[ndarray, " rows"] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, default in (("sources", 0), ("ranks", 0), ("labels", np.float32(np.nan))):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(len(self.queries), default))

    def __len__(self) -> int:
        return len(self.queries)

    def where(self, keep: ndarray) -> Judgements:
        """Return the rows for which `keep`, a mask, is true."""
        columns = (self.queries, self.documents, self.scores, self.sources, self.ranks, self.labels)
        return Judgements(*(column[keep] for column in columns))


@dataclass(frozen=True)
class AbsentDocuments:
    """Relevant documents of one split that are not in the corpus: one row for each, sorted by query position.

    No search can find them. Recall, MAP, R-precision and the ideal order of nDCG include them in the number of
    relevant documents, as trec_eval and BEIR do. Training does not use them. `documents` are ids; scores are above 0.
    """

    queries: Int64[ndarray, " rows"]
    documents: Sequence[str]
    scores: Int64[ndarray, " rows"]

    def __len__(self) -> int:
        return len(self.queries)

    def where(self, keep: ndarray) -> AbsentDocuments:
        """Return the rows for which `keep`, a mask, is true."""
        chosen = [self.documents[int(row)] for row in np.flatnonzero(keep)]
        return AbsentDocuments(self.queries[keep], chosen, self.scores[keep])


@dataclass(frozen=True)
class Positives:
    """Relevant documents of each query of a split. The documents of `queries[i]` are `documents[offsets[i]:offsets[i +
    1]]`: at least one, ascending. `sources` and `ranks` are aligned with `documents`."""

    queries: Int64[ndarray, " queries"]
    offsets: Int64[ndarray, " queries+1"]
    documents: Int64[ndarray, " positives"]
    sources: Int64[ndarray, " positives"]
    ranks: Int64[ndarray, " positives"]

    def __len__(self) -> int:
        return len(self.queries)

    def of(self, index: int) -> Int64[ndarray, " positives"]:
        """Return the positives of the query `queries[index]`."""
        return self.documents[self.offsets[index] : self.offsets[index + 1]]

    def where(self, keep: Bool[ndarray, " queries"]) -> Positives:
        """Return the queries for which `keep` is true, with all their positives."""
        counts = np.diff(self.offsets)
        rows = np.repeat(keep, counts)
        offsets = np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.int64)
        return Positives(self.queries[keep], offsets, self.documents[rows], self.sources[rows], self.ranks[rows])


@dataclass(frozen=True)
class NegativeRows:
    """Hard negatives that are part of a data set, one per row.

    A row has the position of the query, the position of the document, and the index of the origin in `ORIGINS`. Its
    rank among the query's negatives begins at 0. Its score is NaN if the data set has no score."""

    queries: Int64[ndarray, " rows"]
    documents: Int64[ndarray, " rows"]
    origins: Int64[ndarray, " rows"]
    ranks: Int64[ndarray, " rows"]
    scores: Float32[ndarray, " rows"]


def positions_of_slices(starts: ndarray, counts: ndarray) -> Int64[ndarray, " positions"]:
    """Return the positions of concatenated slices. Slice i begins at `starts[i]` and has `counts[i]` positions."""
    return np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)


def joined(title: str, text: str) -> str:
    """Join the title and the text of a passage as BEIR does. Models and BM25 read the result."""
    return (title + " " + text).strip()


@dataclass(frozen=True)
class Passages(Column):
    """Column of the joined title and text of each document. They are joined on access, to save memory."""

    documents: Documents

    def __len__(self) -> int:
        return len(self.documents)

    def take(self, positions: ndarray) -> list[str]:
        """See `Column.take`."""
        return list(
            map(joined, *(texts_at(column, positions) for column in (self.documents.titles, self.documents.texts)))
        )

    def __iter__(self) -> Iterator[str]:
        return map(joined, self.documents.titles, self.documents.texts)


def prompted(documents: Documents, rows: Sequence[int], prompt: str) -> tuple[list[str], str | list[str]]:
    """Return the texts of some passages, and their prompt: one prompt for all, or a list with one for each. The title
    precedes the text, unless the prompt has a placeholder for the title."""
    part = slice(rows.start, rows.stop) if isinstance(rows, range) and rows.step == 1 else None
    titles, texts = (
        column[part] if part else [column[row] for row in rows] for column in (documents.titles, documents.texts)
    )
    if TITLE in prompt:
        return list(texts), [fill_title(prompt, title) for title in titles]
    return [joined(title, text) for title, text in zip(titles, texts, strict=True)], prompt


@dataclass(frozen=True)
class RetrievalDataset:
    """Documents, queries, and the judgements of the opened splits.

    `location` is the path or URI at which any process can open the prepared data set. `absent` has, by split, the
    relevant documents that are not in the corpus. `unanswerable` has, by split, the ascending positions of the queries
    that are known to have no answer in the corpus. These queries have no judgement above 0 in the split, so training,
    mining and ranking metrics do not use them. A split without such documents or queries has no entry. The last
    `added_queries` queries exist only in memory, not at `location`. `has_lent_dev` is true if `dev` was held out from
    `train`."""

    name: str
    documents: Documents
    queries: Queries
    judgements: Mapping[str, Judgements]
    quarantine: Quarantine = field(default_factory=Quarantine)
    tokens: Tokens | None = None
    negatives: NegativeRows | None = None
    answers: Answers | None = None
    prompts: QueryPrompts | None = None
    location: str | None = None
    absent: Mapping[str, AbsentDocuments] = field(default_factory=dict)
    unanswerable: Mapping[str, Int64[ndarray, " queries"]] = field(default_factory=dict)
    added_queries: int = 0
    has_lent_dev: bool = False

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the opened content. It does not depend on names or compression of the files."""
        parts = [self.documents.digest, self.queries.digest]
        for split in sorted(self.judgements):
            rows = self.judgements[split]
            table = np.stack([rows.queries, rows.documents, rows.scores, rows.sources, rows.ranks]).astype("<i8")
            parts += [split, hashlib.sha256(table.tobytes()).hexdigest()]
            if not np.isnan(rows.labels).all():
                parts += [hashlib.sha256(rows.labels.astype("<f4").tobytes()).hexdigest()]
            if split in self.absent:
                absent = self.absent[split]
                numbers = np.stack([absent.queries, absent.scores]).astype("<i8").tobytes()
                parts += [hashlib.sha256(numbers).hexdigest(), *absent.documents]
            if split in self.unanswerable:
                positions = self.unanswerable[split].astype("<i8").tobytes()
                parts += ["unanswerable", hashlib.sha256(positions).hexdigest()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def passage_text(self, document: int) -> str:
        """Title and text of one document, joined as BEIR does."""
        return joined(self.documents.titles[document], self.documents.texts[document])

    def passages(self) -> Sequence[str]:
        """`passage_text` of every document, read on access."""
        return Passages(self.documents)

    def positives(self, split: str) -> Positives:
        """Return the queries of a split that have a document with a grade above 0, with these documents."""
        rows = self.judgements[split].where(self.judgements[split].scores > 0)
        queries, starts = np.unique(rows.queries, return_index=True)
        offsets = np.append(starts, len(rows)).astype(np.int64)
        return Positives(queries, offsets, rows.documents, rows.sources, rows.ranks)

    def relevant_queries(self, split: str) -> Int64[ndarray, " queries"]:
        """Return, ascending, the queries of a split that have a document graded above 0, in the corpus or not."""
        rows = self.judgements[split]
        there = np.unique(rows.queries[rows.scores > 0])
        return np.union1d(there, self.absent[split].queries) if split in self.absent else there

    def prompts_of(self, queries: Iterable[int], default: str) -> str | list[str]:
        """Return the prompt of each query: its own, or `default`. If no query has its own, return only `default`."""
        return default if self.prompts is None else self.prompts.of(queries, default)

    def counts(self) -> dict[str, int]:
        """Return, for tracking, the numbers of documents, of queries and, for each split, of judged queries,
        judgements, positives and (if there are any) queries without an answer."""
        counts = {"documents": len(self.documents), "queries": len(self.queries)}
        for split, rows in self.judgements.items():
            counts[f"{split}_queries"] = len(np.unique(rows.queries))
            counts[f"{split}_judgements"] = len(rows)
            counts[f"{split}_positives"] = int((rows.scores > 0).sum())
            if split in self.absent:
                counts[f"{split}_absent_positives"] = len(self.absent[split])
            if split in self.unanswerable:
                counts[f"{split}_unanswerable"] = len(self.unanswerable[split])
        return counts | {"bad_rows": self.quarantine.total}
