"""Update of an imported data set: ids of unchanged passages stay, and so do the splits of files and questions.

1. A passage whose title and text are those of an earlier passage of its file has the id of that one. Any other passage
   has the id that a new import gives it, or the next free number where an unchanged passage has that id.
2. A file that was imported before stays in its split. A new file is in the split of the files with which it shares a
   question, or in that of the question itself. A question that would then be in two splits is left out.

The new data set replaces the earlier one in one step, so a reader and a kill find one of the two.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, TypedDict

from raytriever.data.config import ImportConfig
from raytriever.data.formats.beir import UNANSWERABLE
from raytriever.documents.passages import Passage, passage_id
from raytriever.documents.questions import Questions
from raytriever.errors import ConfigError, StorageError, setting
from raytriever.paths import QUESTIONS
from raytriever.reading.structured import parse_json
from raytriever.store.commit import MANIFEST, read_manifest, refuse_existing
from raytriever.store.disk import files_below

KIND = "documents"
_REMEDY = f"give another {setting('output')}"
# Entries of the manifest that an update may change.
_FREE = ("kind", "source", "questions", "columns", "test_questions")


class _File(TypedDict):
    file: str
    split: str
    passages: int


class _Row(TypedDict):
    _id: str
    title: str
    text: str


@dataclass
class PassageChanges:
    """Numbers of passages that an update has added, changed (same id, other content), removed, and kept."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0

    def __str__(self) -> str:
        return (
            f"{self.added:,} passages added, {self.changed:,} changed, {self.removed:,} removed, "
            f"{self.unchanged:,} unchanged"
        )


class EarlierImport:
    """Data set of an earlier import that is updated; `changes` counts the passages so far, see `keep_ids`."""

    def __init__(self, folder: Path) -> None:
        manifest = read_manifest(folder)
        self.meta = manifest["meta"]
        self.changes = PassageChanges()
        self._folder, self._own = folder, {*manifest["files"], MANIFEST}
        self._splits: dict[str, str] = {}
        self._passages: dict[str, tuple[int, int]] = {}  # offset in the corpus, and number, for each file
        rows = (parse_json(line, str(folder), _File, _REMEDY) for line in _lines(folder / "documents.jsonl"))
        with (folder / "corpus.jsonl").open("rb") as corpus:
            for row in rows:
                self._splits[row["file"]] = row["split"]
                self._passages[row["file"]] = corpus.tell(), row["passages"]
                for _ in range(row["passages"]):
                    corpus.readline()
        self._questions, self._without = (
            {
                line.split(b"\t")[0].decode(): file.stem
                for file in sorted((folder / kind).glob("*.tsv"))
                if f"{kind}/{file.name}" in self._own
                for line in _lines(file)[1:]
            }
            for kind in ("qrels", UNANSWERABLE)
        )

    @property
    def splits(self) -> dict[str, str]:
        """Splits of the files, by path, and of the questions, by id."""
        return {**self._questions, **self._without, **self._splits}

    @classmethod
    def at(cls, output: Path) -> EarlierImport | None:
        """Open the data set at `output`; return None if nothing is there.

        Raises:
            StorageError: something else is there, or the data set is damaged or was changed by hand.
        """
        if not output.exists():
            return None
        if not (output / MANIFEST).is_file():
            refuse_existing(output)
        kind = read_manifest(output, verify=None)["meta"].get("kind")
        if kind != KIND:
            raise StorageError("was not written by `raytriever import`", str(output), _REMEDY)
        return cls(output)

    def config(self, config: ImportConfig) -> ImportConfig:
        """Return the settings with the questions of the earlier import where none are given.

        Raises:
            ConfigError: these questions are unknown or no longer there.
        """
        if config.questions:
            return config
        file = str(self.meta.get("questions", ""))
        if not file and "queries.jsonl" in self._own:
            raise ConfigError("has questions, and this import names none", str(self._folder), _name_questions())
        if file and (path := QUESTIONS.local(file)) is not None and not path.is_file():
            what = f"its questions were read from {file}, which is gone"
            raise ConfigError(what, str(self._folder), _name_questions())
        test_questions = config.test_questions or str(self.meta.get("test_questions", ""))
        columns = str(self.meta.get("columns", ""))
        return replace(config, questions=file, columns=columns, test_questions=test_questions)

    def check(self, meta: Mapping[str, Any], paths: Sequence[str]) -> None:
        """Check that an import can update this one: `meta` is that of its manifest, `paths` are its files.

        Raises:
            ConfigError: a setting differs, or no file is in both.
        """
        for name, value in meta.items():
            earlier = self.meta.get(name, value)
            if name not in _FREE and earlier != value:
                remedy = f"give {setting(name, str(earlier))}, or another {setting('output')}"
                raise ConfigError(f"is {value}, and {self._folder} was imported with {earlier}", setting(name), remedy)
        if self._splits and self._splits.keys().isdisjoint(paths):
            what = f"none of its {len(self._splits):,} files is in {meta['source']}"
            raise ConfigError(what, str(self._folder), f"import its folder, or {_REMEDY}")

    def keep_splits(self, splits: Mapping[str, str], questions: Questions | None) -> dict[str, str]:
        """Return the splits of a new import with those of earlier files, and refuse questions of two splits."""
        known = {path: self._splits[path] for path in splits if path in self._splits}
        if questions is None:
            return {**splits, **known}
        files: dict[str, list[str]] = defaultdict(list)
        for path, of_file in questions.by_file.items():
            for question in of_file:
                files[question.id].append(path)
        waiting = dict(files)
        while linked := [name for name, paths in waiting.items() if self._split_of(name, paths, known)]:
            for name in linked:
                paths = waiting.pop(name)
                split = str(self._split_of(name, paths, known))
                for path in paths:
                    known.setdefault(path, split)
        kept = {**splits, **known}
        for path, of_file in questions.by_file.items():
            for question in [*of_file]:
                there = {kept[each] for each in files[question.id]}
                earlier = self._questions.get(question.id)
                if len(there | {earlier or kept[path]}) > 1:
                    of_file.remove(question)
                    was = f"was a question of {earlier}, and " if earlier else ""
                    where = " and ".join(sorted(there))
                    questions.refuse(question, f"{was}the files that answer it are in {where}; remove one of the files")
        return kept

    def _split_of(self, question: str, paths: Sequence[str], known: Mapping[str, str]) -> str | None:
        return next((known[path] for path in paths if path in known), self._questions.get(question))

    def keep_ids(self, path: str, passages: Sequence[Passage]) -> list[Passage]:
        """Return the passages of a file with the ids of equal earlier passages, and count the changes."""
        earlier = {row["_id"]: (row["title"], row["text"]) for row in self._rows(path)}
        ids: dict[tuple[str, str], list[str]] = defaultdict(list)
        for of_content, content in earlier.items():
            ids[content].append(of_content)
        names: list[str | None] = [None] * len(passages)
        for is_same_id in (True, False):  # equal passages keep their own ids first
            for index, passage in enumerate(passages):
                there = ids[_stored(passage.title), _stored(passage.text)]
                if names[index] is None and there and (passage.id in there or not is_same_id):
                    names[index] = passage.id if is_same_id else there[0]
                    there.remove(str(names[index]))
        taken = {name for name in names if name is not None}
        self.changes.unchanged += len(taken)
        kept = []
        for passage, name in zip(passages, names, strict=True):
            if name is None:
                others = chain([passage.id], (passage_id(path, passage.anchor, number) for number in count(2)))
                name = next(other for other in others if other not in taken)
                taken.add(name)
                self.changes.changed += name in earlier
                self.changes.added += name not in earlier
            kept.append(replace(passage, id=name))
        self.changes.removed += len(earlier.keys() - taken)
        return kept

    def finish(self, aside: Path) -> PassageChanges:
        """Count the passages of files that are gone, and copy files that a user has put next to those of the import."""
        self.changes.removed += sum(number for _, number in self._passages.values())
        for file in files_below(self._folder):
            name = file.relative_to(self._folder).as_posix()
            if name not in self._own and not (aside / name).exists():
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, aside / name)
        return self.changes

    def _rows(self, path: str) -> Iterator[_Row]:
        start, number = self._passages.pop(path, (0, 0))
        with (self._folder / "corpus.jsonl").open("rb") as corpus:
            corpus.seek(start)
            for _ in range(number):
                yield parse_json(corpus.readline(), str(self._folder / "corpus.jsonl"), _Row, _REMEDY)


def source_of_questions(config: ImportConfig) -> dict[str, str]:
    """Return the entries of the manifest from which an update reads the questions again."""
    if not config.questions:
        return {}
    named = {"questions": config.questions, "test_questions": config.test_questions}
    files = {name: file if "://" in file else os.path.abspath(file) for name, file in named.items() if file}
    return {**files, "columns": config.columns}


def _name_questions() -> str:
    return f"give {setting('questions')}, or another {setting('output')}"


def _lines(file: Path) -> list[bytes]:
    return [line for line in file.read_bytes().split(b"\n") if line]


def _stored(text: str) -> str:
    """Return a text as the corpus has it: halves of surrogate pairs become `?`."""
    return text.encode(errors="replace").decode()
