"""Summary of an import: what was read and written, and the lines that a user sees."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from raytriever.core.errors import flag_of
from raytriever.core.terminal import one_line, text_table
from raytriever.data.data_settings import ImportConfig
from raytriever.data.documents.document_questions import NO_FILE, Questions
from raytriever.data.documents.passage_chunking import Passage
from raytriever.data.formats.train_dev_test import SPLITS, Fractions, few_questions, fractions_of

_SHOWN = 10  # maximum number of entries of a list that are printed
_CHARACTERS = 160  # maximum length of an example; longer texts are cut


@dataclass
class ImportSummary:
    """Statistics of an import."""

    path: Path  # the folder that was written
    files: Counter[str] = field(default_factory=Counter)  # number of files that were read, by kind
    # For each kind of file: how many passages there are, by their number of tokens.
    lengths: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    # `documents`, `passages`: number of files and number of passages, by split.
    documents: Counter[str] = field(default_factory=Counter)
    passages: Counter[str] = field(default_factory=Counter)
    # Documents that could not be read, and skipped names, each with the reason.
    skipped: dict[str, str] = field(default_factory=dict)
    # Number of files that are not documents, by the ending of their names.
    others: Counter[str] = field(default_factory=Counter)
    # Some passages to print. The same folder always gives the same ones.
    examples: list[Passage] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)  # files with the same text as another file
    questions: Questions | None = None  # the questions that were read; None without a file of questions
    judged: Counter[str] = field(default_factory=Counter)  # number of questions with an answer, by split
    unanswerable: Counter[str] = field(default_factory=Counter)  # number of questions without an answer, by split
    shared: int = 0  # number of files that answer questions of several splits
    replaces: bool = False  # whether an earlier import was replaced


def summary_lines(summary: ImportSummary, config: ImportConfig, model: str) -> Iterator[str]:
    """Yield the lines that `raytriever import` prints."""
    rows = [("", "files", "passages", "tokens: median", "longest")]
    rows += [(kind, *_statistics(count, summary.lengths[kind])) for kind, count in sorted(summary.files.items())]
    if len(summary.files) > 1:
        everything = sum(summary.lengths.values(), Counter[int]())
        rows.append(("all", *_statistics(sum(summary.files.values()), everything)))
    yield text_table(rows, left=0)
    yield from _listed("files or folders skipped", [f"{path}: {reason}" for path, reason in summary.skipped.items()])
    if summary.others:
        endings = ", ".join(f"{ending} ({count:,})" for ending, count in summary.others.most_common(_SHOWN))
        yield f"\nFiles that are not documents: {one_line(endings)}"
    yield from _listed("files with the text of another file (remove one of them)", summary.repeated)
    yield "\nExamples:"
    for passage in summary.examples:
        yield f"  {one_line(passage.id)}  [{one_line(passage.title)}]"
        text = one_line(passage.text)
        yield f"    {text[:_CHARACTERS]}{' ...' if len(text) > _CHARACTERS else ''}"
    parts = [f"{split} {summary.documents[split]:,} files ({summary.passages[split]:,} passages)" for split in SPLITS]
    apart = "No file is in two splits."
    if summary.shared:
        apart = f"{summary.shared:,} of the files answer questions of several splits, because rows name the splits."
    yield f"\nSplits by document, seed {config.seed}: {', '.join(parts)}. {apart}"
    if summary.replaces:
        yield f"{summary.path} was replaced. Files and questions of the earlier import keep their splits."
    yield from _questions(summary, fractions_of(config))
    yield _next(summary, config, model)


def _statistics(files: int, lengths: Counter[int]) -> tuple[str, str, str, str]:
    ordered = sorted(lengths)
    count, seen = lengths.total(), 0
    for median in ordered:
        seen += lengths[median]
        if 2 * seen >= count:
            break
    return f"{files:,}", f"{count:,}", f"{median:,}", f"{ordered[-1]:,}"


def _listed(what: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"\n{len(lines):,} {what}:"
        yield from (f"  {one_line(line)}" for line in lines[:_SHOWN])
        if len(lines) > _SHOWN:
            yield f"  and {len(lines) - _SHOWN:,} more"


def _questions(summary: ImportSummary, fractions: Fractions) -> Iterator[str]:
    questions = summary.questions
    if questions is None:
        return
    parts = ", ".join(f"{split} {summary.judged[split]:,}" for split in SPLITS)
    yield f"{questions.where}: {questions.rows:,} rows, read with {questions.description}."
    yield f"Questions with an answer: {parts}. Questions are in the split of the file that answers them."
    if summary.unanswerable:
        parts = ", ".join(f"{split} {summary.unanswerable[split]:,}" for split in SPLITS)
        yield f"Questions without an answer: {parts}."
    if questions.unjudged:
        yield (
            f"Questions without a file: {len(questions.unjudged):,}; they are in no split. If the folder does not "
            f"answer a question, write `{NO_FILE}` as its file."
        )
    # Fractions do not change the splits of an earlier import, so do not suggest them.
    if (
        not summary.replaces
        and summary.judged
        and (line := few_questions(summary.judged + summary.unanswerable, fractions))
    ):
        yield line
    if questions.bad:
        first, count = questions.bad[0], len(questions.bad)
        yield (
            f"{count:,} row{'s' * (count > 1)} left out, listed in {summary.path}/quarantine.jsonl; "
            f"the first in line {first['row']}: {one_line(first['reason'])}"
        )


def _next(summary: ImportSummary, config: ImportConfig, model: str) -> str:
    folder = shlex.quote(str(summary.path))
    arguments = f"{flag_of('dataset')} {folder} {flag_of('model')} {shlex.quote(model)}"
    if summary.judged["train"] and summary.judged["test"]:
        line = f"\nContinue with: raytriever train {arguments}"
        if not summary.replaces:
            return line
        return f"{line} {flag_of('output')} DIR (a new folder: a finished run does not train again)"
    if summary.judged["test"] and not fractions_of(config).has_train:
        arguments = f"{flag_of('model')} {shlex.quote(model)} {flag_of('datasets')} {folder}"
        return f"\nContinue with: raytriever evaluate {arguments} {flag_of('output')} DIR"
    if summary.judged:
        empty = " and ".join(split for split in ("train", "test") if not summary.judged[split])
        return (
            f"\nNo question is in {empty}: import more documents with questions, or give another "
            f"{flag_of('test_fraction')} or {flag_of('seed')}."
        )
    if summary.unanswerable:
        return (
            "\nNo question has an answer, so there is nothing to train on and nothing to evaluate: add questions whose "
            "file answers them."
        )
    if summary.questions is not None:
        command = f"raytriever annotate {flag_of('dataset')} {folder} {flag_of('help')}"
        return f"\nNo question has an answer yet. Find answers with: {command}"
    return (
        "\nThere are no questions, so there is nothing to train on. "
        f"Search now with: raytriever search {arguments} 'a question'. "
        f"To train, give {flag_of('questions')}: a CSV file with the columns question and file; with the column "
        "question alone, `raytriever annotate` finds the answers."
    )
