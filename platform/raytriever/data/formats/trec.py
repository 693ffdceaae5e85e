"""Parser of the layout of MIRACL and Mr. TyDi: topics as TSV, judgements of TREC, and a corpus of JSON lines
(Zhang et al. 2023, arXiv:2210.09984; Zhang et al. 2021, arXiv:2108.08787).

1. Topics, `topics/topics.miracl-v1.0-sw-dev.tsv` or `topic.dev.tsv`: id and text of a query, without a header.
2. Judgements, `qrels/qrels.miracl-v1.0-sw-dev.tsv` or `qrels.dev.txt`: query id, `Q0`, document id and grade.
3. Corpus, `docs-0.jsonl.gz` of `{"docid", "title", "text"}`, or `collection/docs.jsonl.gz` of `{"id", "contents"}`,
   where a blank line ends the title.

The split is the end of the name. Files of all splits together, such as `topic.tsv`, are read if there are no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raytriever.data.formats.beir import add_judged
from raytriever.data.formats.plan import Part, Plan, kind_of, plain_before_packed, shown
from raytriever.data.formats.rows import encodable, id_field, optional_text, string_field
from raytriever.data.quarantine import BadRow
from raytriever.data.records import Document, Query, Records
from raytriever.data.sources import Source, SourceFile
from raytriever.errors import DataError

NAME = "trec"
SIGNATURE = "trec: topics (topic.dev.tsv), judgements (qrels.dev.txt) and docs.jsonl.gz, as of MIRACL and Mr. TyDi"
_SPLIT = r"(?:[-.](?P<split>train|dev|test(?:-[ab])?))?"
_TOPICS = re.compile(rf"(?:.*/)?topics?(?P<set>[.-][^/]+?)??{_SPLIT}\.tsv(?:\.gz)?")
_QRELS = re.compile(rf"(?:.*/)?qrels(?P<set>[.-][^/]+?)??{_SPLIT}\.(?:tsv|txt)(?:\.gz)?")
_CORPUS = re.compile(r"(?:.*/)?(?:docs(?:-\d+)?|corpus)\.jsonl(?:\.gz)?")
_GRADE = re.compile(r"-?[0-9]{1,9}")


def is_whole(source: Source) -> bool:
    """Return True if the source has topics, judgements and a corpus."""
    return all(any(map(pattern.fullmatch, _paths(source))) for pattern in (_TOPICS, _QRELS, _CORPUS))


def is_begun(source: Source) -> bool:
    """Return True if the source has topics, and judgements or a corpus."""
    has = [any(map(pattern.fullmatch, _paths(source))) for pattern in (_TOPICS, _QRELS, _CORPUS)]
    return has[0] and any(has[1:])


def plan(source: Source) -> Plan:
    """Return the plan of a folder with topics.

    Raises:
        DataError: there is no corpus, there are no judgements, or there are several data sets.
    """
    topics, qrels = _by_split(source, _TOPICS), _by_split(source, _QRELS)
    if not qrels:
        raise DataError(
            f"no judgements in it; it holds {shown(source)}",
            source.where,
            "add qrels/qrels.NAME-dev.tsv or qrels.dev.txt",
        )
    corpus = corpus_parts(source)
    parts = [Part(file.where, "tsv", TopicColumns()) for file, _ in topics]
    parts += [Part(file.where, "tsv", QrelsColumns(split), split=split) for file, split in qrels]
    return Plan(NAME, (*corpus, *parts), tuple(dict.fromkeys(split for _, split in qrels)))


def corpus_parts(source: Source) -> list[Part]:
    """Return the files of the corpus; raises `DataError` if there is none."""
    files = [file for file in plain_before_packed(source.files) if _CORPUS.fullmatch(file.path)]
    if not files:
        raise DataError(
            f"no corpus in it; it holds {shown(source)}",
            source.where,
            "add docs-0.jsonl.gz or corpus.jsonl (docid, title, text)",
        )
    return [Part(file.where, kind_of(file.path), PyseriniRow()) for file in files]


def _paths(source: Source) -> list[str]:
    return [file.path for file in source.files]


def _by_split(source: Source, pattern: re.Pattern[str]) -> list[tuple[SourceFile, str]]:
    """Return files with their splits: those that name one, or the others, which are `train`."""
    packed = {file.path for file in source.files}
    matches = [
        (file, match)
        for file in source.files
        if (match := pattern.fullmatch(file.path)) and not (file.path.endswith(".gz") and file.path[:-3] in packed)
    ]
    names = sorted({_set_of(match) for _, match in matches})
    if len(names) > 1:
        raise DataError(
            f"holds several data sets: {', '.join(names[:8])}", source.where, "give a folder with one of them"
        )
    named = [(file, match["split"]) for file, match in matches if match["split"]]
    return named or [(file, "train") for file, _ in matches]


def _set_of(match: re.Match[str]) -> str:
    """Return the data set of a file: its folder and what its name says, without the kind and the split."""
    folders = [part for part in match[0].split("/")[:-1] if part not in ("topics", "qrels")]
    return "/".join([*folders, (match["set"] or "").strip(".-")]).rstrip("/")


@dataclass(frozen=True)
class TopicColumns:
    """Id and text of a query."""

    def __call__(self, row: Sequence[str], records: Records) -> None:
        """Add the query."""
        if len(row) < 2:
            raise BadRow("one column, not id and text separated by a tab")
        texts = {"id": row[0].strip(), "text": " ".join(row[1:])}
        records.queries.append(Query(id_field(texts, "id"), string_field(texts, "text")))


@dataclass(frozen=True)
class QrelsColumns:
    """Query id, a word that is not read, document id and grade, separated by white space."""

    split: str

    def __call__(self, row: Sequence[str], records: Records) -> None:
        """Add the judged pair."""
        columns = " ".join(row).split()
        if len(columns) != 4:
            raise BadRow(f"{len(columns)} columns, not 4: query id, Q0, document id, grade")
        query, _, document, grade = columns
        if not _GRADE.fullmatch(grade):
            raise BadRow(f"grade {grade[:20]!r} is not an integer")
        add_judged(records, self.split, query, document, int(grade))


@dataclass(frozen=True)
class PyseriniRow:
    """Row `{"docid", "title", "text"}`, or `{"id", "contents"}` with the title before a blank line."""

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the document."""
        name = id_field(row, next((key for key in ("docid", "_id", "id") if key in row), "docid"))
        if "contents" not in row:
            records.documents.append(Document(name, optional_text(row, "title"), string_field(row, "text")))
            return
        title, _, text = string_field(row, "contents").partition("\n\n")
        if not text.strip() or "\n" in title.strip():
            title, text = "", row["contents"]
        records.documents.append(Document(name, encodable(title.strip(), "title"), text.strip()))
