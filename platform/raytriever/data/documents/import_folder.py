"""Import of a folder. Each file is read once, divided into passages and written, so memory holds at most one file.

The same folder, questions, settings and seed give the same bytes. The output folder has the BEIR layout, which every
command reads. It appears as a whole, or not at all. All passages of a document, and all questions that it answers,
belong to one split. An earlier import is replaced, and its splits are kept (`document_splits`)."""

from __future__ import annotations

import heapq
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, DataError, UserError, setting
from raytriever.core.reading.documents import read_document as kinds
from raytriever.core.reading.documents.sections import ParsedDocument
from raytriever.core.store.capacity import format_size
from raytriever.core.store.commit import committed_directory
from raytriever.core.store.disk import check_writable
from raytriever.data.data_settings import ImportConfig
from raytriever.data.data_sources import SourceFile
from raytriever.data.documents.document_questions import Questions
from raytriever.data.documents.document_splits import KIND, EarlierImport, split_import
from raytriever.data.documents.folder_of_documents import DocumentFolder
from raytriever.data.documents.import_summary import ImportSummary
from raytriever.data.documents.passage_chunking import Chunker, Passage
from raytriever.data.documents.reader_process import DocumentReader
from raytriever.data.formats.beir import QRELS_HEADER, UNANSWERABLE, UNANSWERABLE_HEADER
from raytriever.data.formats.train_dev_test import SPLITS, fractions_of
from raytriever.data.hashed_ids import key_of
from raytriever.data.records_and_bad_rows import Quarantine, bad_entry
from raytriever.models.description import describe, prompt_table
from raytriever.models.model_settings import ModelConfig
from raytriever.models.resolve_model import read_files
from raytriever.models.tokenization import Template, content_tokenizer_json, load_tokenizer

_LOG_SECONDS = 10
_EXAMPLES = 3
_OVERLAP = 8  # by default, a passage repeats this part of its maximum tokens from the previous passage: 1 / 8


def import_folder(
    folder: str, output: Path, config: ImportConfig, model: ModelConfig, log: Callable[[str], None]
) -> ImportSummary:
    """Write the passages of a folder of documents, and the questions that they answer, as a data set.

    The tokenizer and the maximum length of the encoder `model` determine the passages. `log` is called with progress
    lines. Raise `UserError` if the folder, the questions, the model or the output cannot be used."""
    check_writable(output)
    if config.test_questions and not config.questions:
        raise ConfigError("has no effect", setting("test_questions"), f"give {setting('questions')} too")
    fractions, earlier = fractions_of(config), EarlierImport.at(output)
    source = DocumentFolder.of(folder)
    questions_files = [os.path.abspath(file) for file in (config.questions, config.test_questions) if file]
    files = [file for file in source.files if file.where not in questions_files]
    paths = [file.path for file in _readable(files, source.where)]
    kinds.require_parsers({str(kinds.kind_of_document(path)) for path in paths})
    chunker = _chunker(config, model)
    columns, tests = config.columns, config.test_questions
    questions = Questions(config.questions, columns, paths, source.where, tests) if config.questions else None
    if earlier is not None:
        earlier.check(source.where, paths, config.seed, questions is not None)
    splits, of_questions = split_import(paths, questions, config.seed, fractions, earlier)
    summary = ImportSummary(
        output,
        skipped={_printable(path): reason for path, reason in source.left_out.items()},
        others=Counter(
            _ending(file) for file in files if kinds.ending_of(file.path) not in {*kinds.KINDS, *kinds.OTHER_KINDS}
        ),
        questions=questions,
        replaces=earlier is not None,
    )
    meta: dict[str, Any] = {"kind": KIND, "source": source.where, "seed": config.seed}
    meta |= {"chunk_tokens": chunker.tokens, "overlap_tokens": chunker.overlap}
    with committed_directory(output, meta, replace=earlier is not None) as aside:
        work = _Import(aside, summary, chunker, splits)
        work.write_corpus([file for file in files if kinds.kind_of_document(file.path)], log)
        if questions is not None:
            work.write_questions(questions, of_questions)
        entries = [bad_entry(name, 0, reason, b"") for name, reason in summary.skipped.items()]
        Quarantine((*entries, *(questions.bad if questions else ()))).write(aside)
    return summary


class _Import:
    def __init__(self, folder: Path, summary: ImportSummary, chunker: Chunker, splits: dict[str, str]) -> None:
        self._folder, self._summary, self._chunker, self._splits = folder, summary, chunker, splits
        self._positives: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
        self._texts: dict[bytes, str] = {}
        self._nearest: list[tuple[bytes, str, Passage]] = []

    def write_corpus(self, files: Sequence[SourceFile], log: Callable[[str], None]) -> None:
        """Write `corpus.jsonl`, and `documents.jsonl` with a row for each file."""
        with (
            (self._folder / "corpus.jsonl").open("wb") as corpus,
            (self._folder / "documents.jsonl").open("wb") as table,
        ):
            for path, document, passages in self._documents(files, log):
                corpus.writelines(
                    _line({"_id": passage.id, "title": passage.title, "text": passage.text}) for passage in passages
                )
                kind, split = str(kinds.kind_of_document(path)), self._splits[path]
                row = {"file": path, "kind": kind, "title": document.title, "split": split, "passages": len(passages)}
                table.write(_line(row))
                self._count(path, kind, split, passages)
                self._note_copy(path, document)
                self._match(path, split, passages)
        if not self._summary.files:
            skipped = self._summary.skipped.items()
            path, reason = next((path, reason) for path, reason in skipped if kinds.kind_of_document(path))
            what = f"none of the {len(files):,} files has text that can be read; {path} {reason}"
            raise DataError(what, str(files[0].where))

    def _documents(
        self, files: Sequence[SourceFile], log: Callable[[str], None]
    ) -> Iterator[tuple[str, ParsedDocument, list[Passage]]]:
        """Yield path, content and passages of each document with passages. Record the others with the reason."""
        last = time.monotonic()
        with DocumentReader() as reader:
            for number, file in enumerate(files):
                if time.monotonic() - last > _LOG_SECONDS:
                    log(f"{number:,} of {len(files):,} files read, next {file.path} ({format_size(file.size)})")
                    last = time.monotonic()
                try:
                    if not _is_utf8(file.path):
                        raise DataError("its name is not UTF-8", None, "rename it")
                    document = reader.read(file)
                    passages = list(self._chunker.passages(file.path, document))
                    if not passages:
                        raise DataError("has no text", None, "remove it")
                except UserError as error:
                    reason = "; ".join(filter(None, (error.what, error.remedy)))
                    self._summary.skipped[_printable(file.path)] = reason
                else:
                    yield file.path, document, passages

    def _count(self, path: str, kind: str, split: str, passages: Sequence[Passage]) -> None:
        summary = self._summary
        summary.files[kind] += 1
        summary.documents[split] += 1
        summary.passages[split] += len(passages)
        summary.lengths[kind].update(passage.tokens for passage in passages)
        self._nearest += [(key_of(passage.id), path, passage) for passage in passages]
        self._nearest = heapq.nsmallest(_EXAMPLES, self._nearest, key=lambda entry: entry[:2])
        summary.examples = [passage for *_, passage in self._nearest]

    def _note_copy(self, path: str, document: ParsedDocument) -> None:
        """Record a file whose headings and text equal an earlier file's. Ignore titles, as some are file names."""
        texts = [text for section in document.sections for text in (*section.headings, section.text)]
        first = self._texts.setdefault(key_of(*texts), path)
        if first != path:
            self._summary.repeated.append(f"{path} repeats {first}")

    def _match(self, path: str, split: str, passages: Sequence[Passage]) -> None:
        matched = self._summary.questions.match(path, passages) if self._summary.questions else []
        for question, ids in matched:
            self._positives[question.split or split].setdefault(question.id, []).extend(ids)
        self._summary.shared += len({question.split or split for question, _ in matched}) > 1

    def write_questions(self, questions: Questions, splits: dict[str, str]) -> None:
        """Write `queries.jsonl`, `qrels/SPLIT.tsv` and `unanswerable/SPLIT.tsv`. Rows of skipped files are bad rows.
        `splits` has the splits of the questions without an answer, by id."""
        for path, reason in self._summary.skipped.items():
            for question in questions.by_file.get(path, ()):
                questions.refuse(question, f"{path} was skipped: {reason}")
        judged = {name for by_query in self._positives.values() for name in by_query}
        asked = [question for by_file in questions.by_file.values() for question in by_file if question.id in judged]
        without = questions.unanswerable
        used = sorted(
            [*asked, *questions.unjudged, *without.values()], key=lambda question: (question.split, question.line)
        )
        texts = {question.id: question for question in used}
        if not texts:
            first = min(questions.bad, key=lambda entry: entry["row"])
            what = f"no question can be used: {first['reason']}"
            raise DataError(what, f"{questions.where} line {first['row']}", "correct the rows")
        questions.bad.sort(key=lambda entry: entry["row"])
        lines = [_line({"_id": name, "text": question.text}) for name, question in texts.items()]
        (self._folder / "queries.jsonl").write_bytes(b"".join(lines))
        for split, positives in self._positives.items():
            if not positives:
                continue
            rows = [f"{name}\t{document}\t1" for name in texts for document in dict.fromkeys(positives.get(name, ()))]
            self._write_split("qrels", split, ["\t".join(QRELS_HEADER), *rows])
            self._summary.judged[split] = len(positives)
        for split in SPLITS:
            names = [name for name in without if splits[name] == split]
            if names:
                self._write_split(UNANSWERABLE, split, [*UNANSWERABLE_HEADER, *names])
                self._summary.unanswerable[split] = len(names)

    def _write_split(self, kind: str, split: str, lines: Sequence[str]) -> None:
        (self._folder / kind).mkdir(exist_ok=True)
        (self._folder / kind / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _readable(files: Sequence[SourceFile], where: str) -> list[SourceFile]:
    readable = [file for file in files if kinds.kind_of_document(file.path) and _is_utf8(file.path)]
    if not readable:
        endings = Counter(map(_ending, files))
        there = ", ".join(f"{ending} ({count:,})" for ending, count in endings.most_common(8)) or "nothing else"
        remedy = f"give a folder with files that end in {', '.join(kinds.KINDS)}"
        raise DataError(f"has no documents; its files end in {there}", where, remedy)
    return readable


def _chunker(config: ImportConfig, model: ModelConfig) -> Chunker:
    """Return a chunker whose passages, with special tokens and prompt, fit the encoder of `model`."""
    files = read_files(model)
    description = describe(files, model)
    tokenizer = load_tokenizer(files.sides["passage"].transformer)
    template = Template.of(tokenizer)
    serialized = content_tokenizer_json(tokenizer)
    prompt = prompt_table(description, model).passage
    around = len(template.before) + len(template.after) + len(tokenizer.encode(prompt, add_special_tokens=False))
    tokens = config.chunk_tokens or max(16, description.passage_length - around)
    overlap = tokens // _OVERLAP if config.overlap_tokens is None else config.overlap_tokens
    return Chunker(serialized, tokens, overlap)


def _printable(path: str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


def _ending(file: SourceFile) -> str:
    return kinds.ending_of(_printable(file.path)) or "no ending"


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _line(row: dict[str, Any]) -> bytes:
    """Return a row as JSON in bytes; halves of surrogate pairs, which some PDF files contain, become `?`."""
    return json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n"
