"""Formats of question answering: SQuAD, the data sets of LlamaIndex, and the test sets of ragas.

A file of SQuAD or LlamaIndex is one JSON object. A function returns its rows: questions or passages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from raytriever.data.formats import plan
from raytriever.data.records_and_bad_rows import BadRow, Document, Records, content_id

Row = Mapping[str, Any]
CONTEXTS = "reference_contexts"
_CORPUS, _QUERIES, _RELEVANT = "corpus", "queries", "relevant_docs"
_HOP = re.compile(r"\A<\d+-hop>\s*")


def squad_rows(content: Row) -> Iterator[Row] | None:
    """Return the questions of `{"data": [{"title", "paragraphs": [{"context", "qas": [...]}]}]}`, each with its title
    and context. A paragraph without questions is also a row."""
    articles = content.get("data")
    if not isinstance(articles, list) or not any(
        "paragraphs" in article for article in articles if isinstance(article, Mapping)
    ):
        return None
    return (
        {
            **({} if question is None else {"question": None, "answers": None}),
            **(question if isinstance(question, Mapping) else {}),
            "title": article.get("title") if isinstance(article, Mapping) else None,
            "context": paragraph.get("context") if isinstance(paragraph, Mapping) else None,
        }
        for article in articles
        for paragraph in _items(article, "paragraphs")
        for question in _items(paragraph, "qas") or [None]
    )


def _items(value: Any, name: str) -> list[Any]:
    """Return a list that an object contains. Any other value is returned as one item, which becomes a bad row."""
    items = value.get(name) if isinstance(value, Mapping) else value
    return items if isinstance(items, list) else [items]


def squad_row(row: Row, records: Records, split: str) -> None:
    """Parse a question of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250; 2018, arXiv:1806.03822): `{"id", "title",
    "context", "question", "answers"}`, and `is_impossible` in version 2.

    `answers` is a list of `{"text", "answer_start"}`, or an object of two lists, as on the hub. The context must have
    the answer's text at `answer_start`. A question without an answer is a query that no document answers."""
    title, context = plan.optional_text(row, "title"), plan.string_field(row, "context")
    if row.keys() <= {"title", "context"}:
        records.documents.append(Document(content_id(title, context), title, context))
        return
    question = plan.string_field(row, "question")
    name = plan.id_field(row, "id") if row.get("id") is not None else None
    answers = [_answer(context, text, start) for text, start in _answers(row)]
    if answers and row.get("is_impossible"):
        raise BadRow('conflicting: "is_impossible" is true, but "answers" is not empty')
    if not answers and row.get("is_impossible") is False:
        raise BadRow('empty "answers", but "is_impossible" is false')
    group = plan.QueryGroup(records, split, question, name, answers=answers)
    document = group.document(title, context)
    if answers:
        group.judged(document)
    else:
        group.no_answer()


def _answers(row: Row) -> Iterable[tuple[Any, Any]]:
    answers = row.get("answers")
    if isinstance(answers, Mapping):
        texts = plan.list_of(answers, "text", plan.text_value)
        starts = plan.list_field(answers, "answer_start") or [None] * len(texts)
        if len(starts) != len(texts):
            raise BadRow(f'"answer_start" has {len(starts)} positions for {len(texts)} texts')
        return zip(texts, starts, strict=True)
    if answers is None:
        raise BadRow('no "answers"')
    objects = plan.list_of(row, "answers", plan.object_value)
    return [(plan.string_field(answer, "text"), answer.get("answer_start")) for answer in objects]


def _answer(context: str, text: str, start: Any) -> str:
    if start is not None and (type(start) is not int or start < 0 or context[start : start + len(text)] != text):
        raise BadRow(f'"answer_start" is {str(start)[:20]}, but the context does not have {text[:40]!r} there')
    if text not in context:
        raise BadRow(f"the context does not contain the answer {text[:40]!r}")
    return text


def llama_index_rows(content: Row) -> list[Row] | None:
    """Return the passages and the queries of `{"queries": {ID: TEXT}, "corpus": {ID: TEXT}, "relevant_docs": {ID:
    [ID]}}`. Raise `BadRow` if one of these three is not an object."""
    if not content.keys() >= {_QUERIES, _CORPUS}:
        return None
    queries, corpus, relevant = (
        plan.object_value(content.get(name, {}), name) for name in (_QUERIES, _CORPUS, _RELEVANT)
    )
    return [
        *({"_id": name, "text": text, _RELEVANT: None} for name, text in corpus.items()),
        *(
            {"_id": name, "text": queries.get(name), _RELEVANT: relevant.get(name) or []}
            for name in {**queries, **relevant}
        ),
    ]


def llama_index_row(row: Row, records: Records, split: str) -> None:
    """Parse a row of an `EmbeddingQAFinetuneDataset`: a passage `{"_id", "text", "relevant_docs": None}`, or a query,
    whose `relevant_docs` is a list of ids."""
    name = plan.id_field(row, "_id")
    if row.get("text") is None:
        raise BadRow(f"the id {name[:40]!r} has no text")
    text, documents = plan.string_field(row, "text"), plan.list_of(row, _RELEVANT, plan.id_value)
    if row[_RELEVANT] is None:
        records.documents.append(Document(name, "", text))
        return
    if not documents:
        raise BadRow(f'"{_RELEVANT}" names no passage for the query {name[:40]!r}')
    group = plan.QueryGroup(records, split, text, name)
    for document in documents:
        group.judged(document)


def contexts_rows(content: Row) -> list[Any] | None:
    """Return the examples of a `LabelledRagDataset` of LlamaIndex."""
    examples = content.get("examples")
    return examples if isinstance(examples, list) else None


def contexts_row(row: Row, records: Records, split: str) -> None:
    """Parse a row of a test set of ragas, `{"user_input", "reference_contexts"}`, or of LlamaIndex, `{"query",
    "reference_contexts"}`: each context is a positive. Marks before it, such as `<1-hop>` of ragas, are removed."""
    group = plan.QueryGroup(records, split, plan.string_field(row, "query" if "query" in row else "user_input"))
    for text in plan.texts_field(row, CONTEXTS):
        group.judged(group.document("", plan.text_value(_HOP.sub("", text), CONTEXTS)))
