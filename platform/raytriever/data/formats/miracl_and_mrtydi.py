"""Parser of topics next to a corpus of JSON lines: MIRACL (Zhang et al. 2023, arXiv:2210.09984) and Mr. TyDi (Zhang et
al. 2021, arXiv:2108.08787). docs/reference/formats.md describes the files.

A file name ends in the split. A file for all splits, such as `topic.tsv`, is read only if no file names a split."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source, SourceFile
from raytriever.data.formats import plan
from raytriever.data.formats.beir import qrels_columns
from raytriever.data.records_and_bad_rows import BadRow, Document, Query, Records

NAME = "trec"
SIGNATURE = "trec: topics (topic.dev.tsv), judgements (qrels.dev.txt) and docs.jsonl.gz, as of MIRACL and Mr. TyDi"
_SPLIT = r"(?:[-.](?P<split>train|dev|test(?:-[ab])?))?"
_TOPICS = re.compile(rf"(?:.*/)?topics?(?P<set>[.-][^/]+?)??{_SPLIT}\.tsv(?:\.gz)?")
_QRELS = re.compile(rf"(?:.*/)?qrels(?P<set>[.-][^/]+?)??{_SPLIT}\.(?:tsv|txt)(?:\.gz)?")
_CORPUS = re.compile(r"(?:.*/)?(?:docs(?:-\d+)?|corpus)\.jsonl(?:\.gz)?")


def is_whole(source: Source) -> bool:
    """Return True if the source has topics, judgements and a corpus."""
    return all(plan.has_file(source, pattern) for pattern in (_TOPICS, _QRELS, _CORPUS))


def is_begun(source: Source) -> bool:
    """Return True if the source has topics, and judgements or a corpus."""
    return plan.has_file(source, _TOPICS) and (plan.has_file(source, _QRELS) or plan.has_file(source, _CORPUS))


def plan_folder(source: Source) -> plan.Plan:
    """Return the plan of a folder with topics. Raise `DataError` if it has no corpus or no judgements, or if it has
    several data sets."""
    topics, qrels = _by_split(source, _TOPICS), _by_split(source, _QRELS)
    if not qrels:
        what = f"has no judgements; it contains {plan.shown(source)}"
        raise DataError(what, source.where, "add qrels/qrels.NAME-dev.tsv or qrels.dev.txt")
    corpus = _corpus(source)
    parts = [plan.Part(file.where, "tsv", topic_columns) for file, _ in topics]
    parts += [plan.Part(file.where, "tsv", qrels_columns, split=split) for file, split in qrels]
    return plan.Plan(NAME, (*corpus, *parts))


def _corpus(source: Source) -> list[plan.Part]:
    files = plan.files_of(source, _CORPUS)
    if not files:
        what = f"has no corpus; it contains {plan.shown(source)}"
        raise DataError(what, source.where, "add docs-0.jsonl.gz or corpus.jsonl (docid, title, text)")
    return [plan.Part.of(file, pyserini_row) for file in files]


def _by_split(source: Source, pattern: re.Pattern[str]) -> list[tuple[SourceFile, str]]:
    """Return each file with the split in its name. If no name contains a split, return all files as `train`."""
    matches = [(file, match) for file in plan.files_of(source, pattern) if (match := pattern.fullmatch(file.path))]
    names = sorted({_set_of(match) for _, match in matches})
    if len(names) > 1:
        what = f"holds several data sets: {', '.join(names[:8])}"
        raise DataError(what, source.where, "give a folder with one of them")
    named = [(file, match["split"]) for file, match in matches if match["split"]]
    return named or [(file, "train") for file, _ in matches]


def _set_of(match: re.Match[str]) -> str:
    """Return the data set of a file: the folder, and the file name without kind and split."""
    folders = [part for part in match[0].split("/")[:-1] if part not in ("topics", "qrels")]
    return "/".join([*folders, (match["set"] or "").strip(".-")]).rstrip("/")


def topic_columns(row: Sequence[str], records: Records, _: str) -> None:
    """Parse a row of the id and the text of a query."""
    if len(row) < 2:
        raise BadRow("one column, not id and text separated by a tab")
    texts = {"id": row[0].strip(), "text": " ".join(row[1:])}
    records.queries.append(Query(plan.id_field(texts, "id"), plan.string_field(texts, "text")))


def pyserini_row(row: Mapping[str, Any], records: Records, _: str) -> None:
    """Parse a row `{"docid", "title", "text"}`, or `{"id", "contents"}` with the title before a blank line."""
    name = plan.id_field(row, next((key for key in ("docid", "_id", "id") if key in row), "docid"))
    if "contents" not in row:
        records.documents.append(Document(name, *plan.passage_of(row)))
        return
    title, _, text = plan.string_field(row, "contents").partition("\n\n")
    if not text.strip() or "\n" in title.strip():
        title, text = "", row["contents"]
    records.documents.append(Document(name, plan.encodable(title.strip(), "title"), text.strip()))
