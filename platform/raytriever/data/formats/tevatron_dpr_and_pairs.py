"""Formats that are recognized by the fields of a row: Tevatron, DPR, FlagEmbedding, sentence pairs, tuples of texts.

A row has a query and its passages. The order of the positives in the row gives their ranks: the first has rank 0."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from raytriever.data.formats import plan
from raytriever.data.records_and_bad_rows import RELEVANT_FROM, SOURCES, BadRow, Document, Records

Row = Mapping[str, Any]
PAIRS, SENTENCE_TRANSFORMERS = "pairs", "sentence-transformers"
_TEVATRON_ORIGIN = "bm25"
_DPR_NEGATIVES = {"hard_negative_ctxs": "bm25", "negative_ctxs": "random"}
_DPR_IDS = ("passage_id", "psg_id")
_LABELS = ("entailment", "neutral", "contradiction")
_ANCHORS = ("anchor", "query", "question", "sentence1")
_POSITIVES = ("positive", "answer", "sentence2")
_LISTS = ("docs", "documents", "passages")
SCORES = ("score", "scores", "label", "labels", "similarity_score")
VOTES = SCORES[:2]  # columns that often hold numbers of votes; they are grades only if the caller names them
_QUESTIONS = ("query", "question")
NEGATIVE = re.compile(r"negative(?:_\d+)?")


def tevatron_row(row: Row, records: Records, split: str) -> None:
    """Parse a row of Tevatron (Gao et al. 2022, arXiv:2203.05765), first generation: `{"query_id", "query",
    "positive_passages": [{"docid", "title", "text"}], "negative_passages"}`.

    A passage may have a `source` (human or llm). A negative may have a `score` and an `origin`, by default `bm25`."""
    text, name = plan.string_field(row, "query"), plan.id_field(row, "query_id")
    group = plan.QueryGroup(records, split, text, name, answers=plan.answers_in(row))
    for passage in plan.list_of(row, "positive_passages", plan.object_value):
        group.judged(_tevatron_passage(group, passage), source=_or(passage, "source", SOURCES[0]))
    for passage in plan.list_of(row, "negative_passages", plan.object_value):
        origin = _or(passage, "origin", _TEVATRON_ORIGIN)
        group.negative(_tevatron_passage(group, passage), origin, plan.optional_score(passage, "score"))


def tevatron_ids_row(row: Row, records: Records, split: str) -> None:
    """Parse a row of Tevatron, second generation: `{"query_id", "query_text", "positive_document_ids",
    "negative_document_ids"}`, next to a corpus; `positive_sources` and `negative_scores` are optional."""
    group = plan.QueryGroup(records, split, plan.string_field(row, "query_text"), plan.id_field(row, "query_id"))
    positives, negatives = (
        plan.list_of(row, name, plan.id_value) for name in ("positive_document_ids", "negative_document_ids")
    )
    sources = plan.list_field(row, "positive_sources") or [SOURCES[0]] * len(positives)
    if len(sources) != len(positives):
        raise BadRow(f'"positive_sources" has {len(sources)} values for {len(positives)} in "positive_document_ids"')
    scores = plan.score_list(row, "negative_scores", len(negatives), "negative_document_ids")
    for name, source in zip(positives, sources, strict=True):
        group.judged(name, source=source)
    for name, score in zip(negatives, scores, strict=True):
        group.negative(name, _TEVATRON_ORIGIN, score)


def corpus_row(row: Row, records: Records, _: str) -> None:
    """Parse a document of the corpus of Tevatron's second generation: `{"docid", "title", "text"}`."""
    name = plan.id_field(row, "docid")
    records.documents.append(Document(name, *plan.passage_of(row)))


def _tevatron_passage(group: plan.QueryGroup, passage: Row) -> str:
    name = plan.id_field(passage, "docid") if passage.get("docid") is not None else None
    return group.document(*plan.passage_of(passage), name)


def _or(passage: Row, name: str, otherwise: str) -> str:
    return otherwise if passage.get(name) is None else passage[name]


def tevatron(fields: frozenset[str]) -> plan.RowParser | None:
    """Return the parser of a row of Tevatron, or of its corpus, with these fields; None for other fields."""
    if {"query_id", "query", "positive_passages"} <= fields:
        return tevatron_row
    if {"query_id", "query_text", "positive_document_ids"} <= fields:
        return tevatron_ids_row
    if {"docid", "text"} <= fields and not any(name.startswith("query") for name in fields):
        return corpus_row
    return None


def dpr_row(row: Row, records: Records, split: str) -> None:
    """Parse a row of DPR (Karpukhin et al. 2020, arXiv:2004.04906): `{"question", "answers", "positive_ctxs",
    "negative_ctxs", "hard_negative_ctxs"}`, each context `{"title", "text", "score", "passage_id" or "psg_id"}`.

    Hard negatives have origin `bm25`, other negatives `random` (section 3.2). The scores are stored."""
    group = plan.QueryGroup(records, split, plan.string_field(row, "question"), answers=plan.answers_in(row))
    for context in plan.list_of(row, "positive_ctxs", plan.object_value):
        group.judged(_context(group, context))
    for name, origin in _DPR_NEGATIVES.items():
        for context in plan.list_of(row, name, plan.object_value):
            group.negative(_context(group, context), origin, plan.optional_score(context, "score"))


def _context(group: plan.QueryGroup, context: Row) -> str:
    name = next((plan.id_field(context, name) for name in _DPR_IDS if context.get(name) is not None), None)
    return group.document(*plan.passage_of(context), name)


def flag_embedding_row(row: Row, records: Records, split: str) -> None:
    """Parse a row of FlagEmbedding (Xiao et al. 2023, arXiv:2309.07597): `{"query", "pos": [], "neg": []}`.

    `neg_scores` are teacher scores, one for each text of `neg`; they are stored. `pos_scores` are only checked: every
    positive has grade 1. `prompt` is the text in front of the query; it replaces the prompt of the data set. `type`
    is not read. Negatives have origin `dense`, because FlagEmbedding mines with a dense retriever."""
    group = plan.QueryGroup(records, split, plan.string_field(row, "query"), prompt=plan.optional_text(row, "prompt"))
    positives, negatives = (plan.list_of(row, name, plan.text_value) for name in ("pos", "neg"))
    plan.score_list(row, "pos_scores", len(positives), "pos")
    for text in positives:
        group.judged(group.document("", text))
    for text, score in zip(negatives, plan.score_list(row, "neg_scores", len(negatives), "neg"), strict=True):
        group.negative(group.document("", text), "dense", score)


def pair_row(row: Row, records: Records, split: str) -> None:
    """Parse a pair of natural language inference: `{"premise", "hypothesis", "label"}`, and optionally `split`.

    The premise is a query and the hypothesis a document. With the label entailment, the hypothesis is a positive; with
    contradiction, a hard negative of origin `gold` (Gao et al. 2021, arXiv:2104.08821, section 4.2); with neutral,
    neither of these. Labels are words, or the numbers of the hub: 0 entailment, 1 neutral, 2 contradiction. A row with
    the label -1 is a bad row: the annotators did not agree."""
    label = _label(row)
    split = plan.split_of_row(row) if "split" in row else split
    group = plan.QueryGroup(records, split, plan.string_field(row, "premise"))
    document = group.document("", plan.string_field(row, "hypothesis"))
    if label == "entailment":
        group.judged(document)
    elif label == "contradiction":
        group.negative(document, "gold")


def _label(row: Row) -> str:
    label = row.get("label")
    if isinstance(label, str) and label in _LABELS:
        return label
    if type(label) is int and 0 <= label < len(_LABELS):
        return _LABELS[label]
    raise BadRow(f"label {str(label)[:20]!r} is not one of {', '.join(_LABELS)} or 0, 1, 2")


def tuple_row(
    anchor: str, positive: str, negatives: tuple[str, ...], scored: str, row: Row, records: Records, split: str
) -> None:
    """Parse columns of sentence-transformers (sbert.net, "Loss Overview"; Reimers and Gurevych 2019, arXiv:1908.10084):
    `anchor, positive`, and any of `negative`, `negative_1`, ..., which may be null or empty.

    A column may hold a list of passages. A list of numbers in `label` or `score` has teacher scores: first those of the
    positives, then those of the negatives; only the latter are stored. `anchor` may be called `query` or `question`,
    and `positive` may be called `answer`. The origin of the negatives is `dense`, because sentence-transformers mines
    with a dense retriever. If `answerable` is no and the positive is empty, no document answers the query.

    `anchor`, `positive` and `scored` are the names of the columns in these rows."""
    group = plan.QueryGroup(records, split, plan.string_field(row, anchor))
    if _has_no_answer(row, positive):
        group.no_answer()
        positives = [""]
    else:
        positives = plan.texts_field(row, positive)
        for text in positives:
            group.judged(group.document("", text))
    texts = [[] if _is_blank(row.get(name)) else plan.texts_field(row, name) for name in negatives]
    scores = [math.nan] * (len(positives) + sum(map(len, texts)))
    if isinstance(row.get(scored), list):  # a single number is a margin: the difference of two scores
        scores = plan.score_list(row, scored, len(scores), f"{positive} and negatives")
    for text, score in zip(chain.from_iterable(texts), scores[len(positives) :], strict=True):
        group.negative(group.document("", text), "dense", score)


def _is_blank(value: Any) -> bool:
    return not (value.strip() if isinstance(value, str) else value)


def _has_no_answer(row: Row, passages: str) -> bool:
    """Return True if no document answers the query of a row. Raise `BadRow` if such a row has a passage."""
    if plan.is_answerable(row) is not False:
        return False
    if not _is_blank(row.get(passages)):
        raise BadRow(f'conflicting: "{plan.ANSWERABLE}" is no, but "{passages}" is not empty')
    return True


def scored_row(anchor: str, others: str, scored: str, row: Row, records: Records, split: str) -> None:
    """Parse columns of sentence-transformers: two texts and their score (`sentence1, sentence2, score`, or `anchor,
    positive, label`), or a query and a list of texts with one score each (`query, docs, labels`).

    Other names are `documents` or `passages` for `docs` (or a list in the positive's column); `scores`, `label`,
    `labels` and `similarity_score` for `score`. An integer is a grade, relevant above 0; a number with a decimal point
    is a label, 0 to 1, and relevant from 0.5. Texts that are not relevant are hard negatives of origin `gold`.
    `anchor`, `others` and `scored` are the names of the columns. A row with `answerable` no must have no other text."""
    group = plan.QueryGroup(records, split, plan.string_field(row, anchor))
    if _has_no_answer(row, others):
        group.no_answer()
        return
    if isinstance(row.get(others), list):
        texts, scores = plan.list_of(row, others, plan.text_value), row.get(scored)
        if not isinstance(scores, list) or len(scores) != len(texts):
            raise BadRow(f'"{scored}" is not a list of {len(texts)} scores, one for each in "{others}"')
    else:
        texts, scores = [plan.string_field(row, others)], [row.get(scored)]
    for text, score in zip(texts, scores, strict=True):
        document = group.document("", text)
        grade = _grade(score, scored)
        group.judged(document, grade)
        if grade < RELEVANT_FROM:
            group.negative(document, "gold", float(score))


def _grade(score: Any, name: str) -> float:
    number = plan.score_value(score, name)
    if isinstance(score, int) and 0 <= score < 10**9:
        return score
    if isinstance(score, int) or not 0 <= number <= 1:
        raise BadRow(f'"{name}" is {str(score)[:20]}, neither a grade (0, 1, ...) nor in [0, 1]: divide by the largest')
    return number


def sentence_transformers(fields: frozenset[str]) -> plan.RowParser | None:
    """Return the parser of a row of sentence-transformers with these fields; None for other fields."""

    def first(names: Sequence[str]) -> str | None:
        return next((name for name in names if name in fields), None)

    anchor, positive, several, scores = map(first, (_ANCHORS, _POSITIVES, _LISTS, SCORES))
    negatives = [name for name in fields if NEGATIVE.fullmatch(name)]
    if anchor is None or (anchor == "sentence1") != (positive == "sentence2"):
        return None
    if several and scores and not positive:
        return partial(scored_row, anchor, several, scores)
    if positive and scores and not negatives:
        return partial(scored_row, anchor, positive, scores)
    if positive and anchor != "sentence1":
        ordered = tuple(sorted(negatives, key=lambda name: int(name.partition("_")[2] or 0)))
        return partial(tuple_row, anchor, positive, ordered, scores or "")
    return None


def grades_note(path: str, parse: plan.RowParser) -> str:
    """Return a note on scores that are read as grades. In published answers, such scores are often numbers of votes."""
    if not isinstance(parse, partial) or parse.func is not scored_row:
        return ""
    anchor, _, scored = parse.args
    if anchor not in _QUESTIONS or scored not in VOTES:
        return ""
    return f"{path}: {scored!r} is read as the grade of the passage: 0 makes it a negative"
