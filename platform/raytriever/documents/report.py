"""Lines about an import: files, passages, what was skipped, the splits, the questions, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

from raytriever.documents.config import ImportConfig
from raytriever.documents.job import SPLITS, ImportSummary
from raytriever.errors import flag_of
from raytriever.terminal import one_line, text_table

_SHOWN = 10
_CHARACTERS = 160


def summary_lines(summary: ImportSummary, config: ImportConfig, model: str) -> Iterator[str]:
    """Yield the lines that `raytriever import` prints."""
    rows = [("", "files", "passages", "tokens: median", "longest")]
    rows += [(kind, *_figures(count, summary.lengths[kind])) for kind, count in sorted(summary.files.items())]
    if len(summary.files) > 1:
        everything = sum(summary.lengths.values(), Counter[int]())
        rows.append(("all", *_figures(sum(summary.files.values()), everything)))
    yield text_table(rows, left=0)
    yield from _listed("skipped", [f"{path}: {reason}" for path, reason in summary.skipped.items()])
    if summary.others:
        endings = ", ".join(f"{ending} ({count:,})" for ending, count in summary.others.most_common(_SHOWN))
        yield f"\nFiles that are no documents: {one_line(endings)}"
    yield from _listed("with the text of another file (remove one of them)", summary.repeated)
    yield "\nExamples:"
    for passage in summary.examples:
        yield f"  {one_line(passage.id)}  [{one_line(passage.title)}]"
        text = one_line(passage.text)
        yield f"    {text[:_CHARACTERS]}{' ...' if len(text) > _CHARACTERS else ''}"
    parts = [f"{split} {summary.documents[split]:,} files ({summary.passages[split]:,} passages)" for split in SPLITS]
    yield f"\nSplits by document, seed {config.seed}: {', '.join(parts)}. No file is in two splits."
    yield from _questions(summary)
    yield _next(summary, model)


def _figures(files: int, lengths: Counter[int]) -> tuple[str, str, str, str]:
    ordered = sorted(lengths)
    count, seen = lengths.total(), 0
    for median in ordered:
        seen += lengths[median]
        if 2 * seen >= count:
            break
    return f"{files:,}", f"{count:,}", f"{median:,}", f"{ordered[-1]:,}"


def _listed(what: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"\n{len(lines):,} file{'s' * (len(lines) > 1)} {what}:"
        yield from (f"  {one_line(line)}" for line in lines[:_SHOWN])
        if len(lines) > _SHOWN:
            yield f"  and {len(lines) - _SHOWN:,} more"


def _questions(summary: ImportSummary) -> Iterator[str]:
    questions = summary.questions
    if questions is None:
        return
    parts = ", ".join(f"{split} {summary.judged[split]:,}" for split in SPLITS)
    yield f"{questions.where}: {questions.rows:,} rows, read with {questions.description}."
    yield f"Questions with an answer: {parts}. Questions are in the split of the file that answers them."
    if questions.unjudged:
        yield f"Questions without a file: {len(questions.unjudged):,}; they are in no split."
    if questions.bad:
        first, count = questions.bad[0], len(questions.bad)
        yield (
            f"{count:,} row{'s' * (count > 1)} left out, listed in {summary.path}/quarantine.jsonl; "
            f"the first in line {first['row']}: {one_line(first['reason'])}"
        )


def _next(summary: ImportSummary, model: str) -> str:
    """Return the last line: the command that makes sense for what there is."""
    folder = shlex.quote(str(summary.path))
    arguments = f"{flag_of('dataset')} {folder} {flag_of('model')} {shlex.quote(model)}"
    if summary.judged["train"] and summary.judged["test"]:
        return f"\nContinue with: raytriever train {arguments}"
    if summary.judged:
        empty = " and ".join(split for split in ("train", "test") if not summary.judged[split])
        return f"\nNo question is in {empty}: import more documents with questions, or give another {flag_of('seed')}."
    if summary.questions is not None:
        command = f"raytriever annotate {flag_of('dataset')} {folder} {flag_of('help')}"
        return f"\nNo question has an answer yet. Find answers with: {command}"
    return (
        "\nThere are no questions, so there is nothing to train on. "
        f"Search now with: raytriever search {arguments} 'a question'. "
        f"To train, give {flag_of('questions')}: a CSV file with the columns question and file; with the column "
        "question alone, `raytriever annotate` finds the answers."
    )
