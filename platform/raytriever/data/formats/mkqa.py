"""Parser of MKQA, questions in 26 languages with their answers (Longpre et al. 2021, arXiv:2007.15207).

`mkqa.jsonl.gz`: `{"example_id", "queries": {"de": text}, "answers": {"de": [{"type", "text", "aliases"}]}}`, next to
the files of any corpus, as in `trec`. A language is a split. A question has the answers of its language and of
English, with their aliases. Questions that have no answer, a long one, or yes or no, are left out, because no passage
can be recognised by it. No passage is judged: acc@K counts the passages that contain an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raytriever.data.formats.group import list_field, object_list
from raytriever.data.formats.plan import Part, Plan, kind_of, plain_before_packed
from raytriever.data.formats.rows import encodable, id_field, string_field
from raytriever.data.formats.trec import corpus_parts
from raytriever.data.quarantine import BadRow
from raytriever.data.records import ANY_ANSWER, Judgement, Query, Records
from raytriever.data.sources import Source

NAME = "mkqa"
SIGNATURE = "mkqa: mkqa.jsonl.gz and a corpus (docs.jsonl.gz or corpus.jsonl)"
_FILE = re.compile(r"(?:.*/)?mkqa\.jsonl(?:\.gz)?")
_TYPES = ("entity", "number", "number_with_unit", "date", "short_phrase")
_LANGUAGE = re.compile(r"[a-z]{2}(?:_[a-z]{2})?")


def is_whole(source: Source) -> bool:
    """Return True if the source has the questions."""
    return any(_FILE.fullmatch(file.path) for file in source.files)


def plan(source: Source) -> Plan:
    """Return the plan of MKQA with a corpus; raises `DataError` if there is none."""
    files = [file for file in plain_before_packed(source.files) if _FILE.fullmatch(file.path)]
    parts = [Part(file.where, kind_of(file.path), MkqaRow()) for file in files]
    return Plan(NAME, (*corpus_parts(source), *parts), None)


@dataclass(frozen=True)
class MkqaRow:
    """Row of a question in all languages."""

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the question in each language in which it has an answer."""
        name, questions, answers = id_field(row, "example_id"), _object(row, "queries"), _object(row, "answers")
        texts = {language: list(_answers(answers, language)) for language in {*answers, "en"}}
        added = Records()
        for language in questions:
            if not _LANGUAGE.fullmatch(language):
                raise BadRow(f"{language[:20]!r} is no language")
            query = Query(f"{language}-{name}", string_field(questions, language))
            if texts.get(language):
                added.queries.append(query)
                added.judgements.append(Judgement(language, query.id, ANY_ANSWER, 1))
                added.answers += [(query.id, text) for text in dict.fromkeys((*texts[language], *texts["en"]))]
        for column in ("queries", "judgements", "answers"):
            getattr(records, column).extend(getattr(added, column))


def _object(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    if not isinstance(value, Mapping):
        raise BadRow(f'"{name}" is {type(value).__name__}, not an object of languages')
    return value


def _answers(answers: Mapping[str, Any], language: str) -> Iterator[str]:
    for answer in object_list(answers, language):
        if answer.get("type") in _TYPES:
            for text in (answer.get("text"), *list_field(answer, "aliases")):
                if isinstance(text, str) and text.strip():
                    yield encodable(text, "answers")
