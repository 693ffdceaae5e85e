"""Splits of an import. Documents, and the questions that they answer, are divided into train, dev and test.

Documents that answer the same question form a group, and all documents of a group get the same split. Groups are
assigned in the order of a hash of seed and path, until test and dev have their fractions of the questions.

A new import replaces an earlier one in its output folder, but files and questions of the earlier one keep their splits.
A new file joins the split of the earlier questions that it answers, or of the files with which it shares a question. A
question that would then be in two splits is left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from raytriever.core.errors import ConfigError, StorageError, setting
from raytriever.core.reading.json_and_yaml import parse_json
from raytriever.core.store.commit import MANIFEST, read_manifest, refuse_existing
from raytriever.core.store.disk import files_below
from raytriever.data.documents.document_questions import Questions
from raytriever.data.formats.beir import UNANSWERABLE
from raytriever.data.formats.train_dev_test import (
    DEV,
    SPLITS,
    TEST,
    TRAIN,
    Fractions,
    HashSplit,
    hash_of,
    split_by_hash,
)

KIND = "documents"
_REMEDY = f"give another {setting('output')}"


class _File(TypedDict):
    file: str
    split: str


@dataclass(frozen=True)
class EarlierImport:
    """Splits of an earlier import, made with `seed`: the splits of files by path, and of questions by id."""

    folder: Path
    seed: int
    files: Mapping[str, str] = field(default_factory=dict)
    questions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, output: Path) -> EarlierImport | None:
        """Return the import at `output`; None if the path does not exist.

        Raises:
            StorageError: the path is not an import, or the import is damaged, was changed, or has other files too.
        """
        if not output.exists():
            return None
        if not (output / MANIFEST).is_file():
            refuse_existing(output)
        if read_manifest(output, verify=None)["meta"].get("kind") != KIND:
            raise StorageError("was not written by `raytriever import`", str(output), _REMEDY)
        manifest = read_manifest(output)
        own = {*manifest["files"], MANIFEST}
        for file in files_below(output):
            if (name := file.relative_to(output).as_posix()) not in own:
                raise StorageError(f"has {name}, which the import would remove", str(output), f"move it, or {_REMEDY}")
        rows = (parse_json(line, str(output), _File, _REMEDY) for line in _lines(output / "documents.jsonl"))
        questions = {
            line.split(b"\t")[0].decode(): file.stem
            for kind in ("qrels", UNANSWERABLE)
            for file in sorted((output / kind).glob("*.tsv"))
            for line in _lines(file)[1:]
        }
        return cls(output, manifest["meta"]["seed"], {row["file"]: row["split"] for row in rows}, questions)

    def check(self, where: str, paths: Sequence[str], seed: int, has_questions: bool) -> None:
        """Check that a new import (of the files `paths` of the folder `where`) may replace this one.

        Raises:
            ConfigError: the seed differs, no file is in both imports, or the questions are missing.
        """
        if seed != self.seed:
            remedy = f"give {setting('seed', str(self.seed))}, or another {setting('output')}"
            what = f"is {seed}, but {self.folder} was divided into splits with {self.seed}"
            raise ConfigError(what, setting("seed"), remedy)
        if self.questions and not has_questions:
            remedy = f"give {setting('questions')}, or another {setting('output')}"
            raise ConfigError("has questions, but this import names no file of questions", str(self.folder), remedy)
        if self.files.keys().isdisjoint(paths):
            what = f"none of its {len(self.files):,} files is in {where}"
            raise ConfigError(what, str(self.folder), f"import its folder, or {_REMEDY}")

    def splits_of(self, questions: Questions | None) -> dict[str, str]:
        """Return, by path, the splits of earlier files, and of new files that answer a question from before."""
        splits = dict(self.files)
        for path, of_file in questions.by_file.items() if questions else ():
            for question in of_file:
                if not question.split and question.id in self.questions:
                    splits.setdefault(path, self.questions[question.id])
        return splits

    def refuse_divided(self, questions: Questions, splits: Mapping[str, str]) -> None:
        """Make a question a bad row if its files are in several splits, or not in the question's earlier split."""
        there: dict[str, set[str]] = defaultdict(set)
        for path, of_file in questions.by_file.items():
            for question in of_file:
                there[question.id].add(splits[path])
        for of_file in questions.by_file.values():
            for question in [*of_file]:
                earlier = self.questions.get(question.id)
                if question.split or len(there[question.id] | ({earlier} if earlier else set())) == 1:
                    continue
                of_file.remove(question)
                was = f"was a question of {earlier}, and " if earlier else ""
                where = " and ".join(sorted(there[question.id]))
                questions.refuse(question, f"{was}the files that answer it are in {where}; remove one of the files")


def _lines(file: Path) -> list[bytes]:
    return [line for line in file.read_bytes().split(b"\n") if line]


_FRACTION = 0.1  # default fraction of the documents without questions that are test, and that are dev


def split_import(
    paths: Iterable[str],
    questions: Questions | None,
    seed: int,
    fractions: Fractions,
    earlier: EarlierImport | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the split of each document by its path, and of each question without an answer by its id. Documents and
    questions of an earlier import keep their splits. A question that would then be in two splits is a bad row."""
    known = earlier.splits_of(questions) if earlier else {}
    if questions is None:
        return assign_splits(paths, seed, (), fractions, known) | known, {}
    groups, without = list(questions.groups()), questions.unanswerable
    named = {name: questions.split for name, questions in without.items() if questions.split}
    texts = {name: questions.text for name, questions in without.items() if not questions.split}
    total = len(groups) + len(texts)
    splits = assign_splits(paths, seed, groups, fractions, {**questions.named_splits(), **known}, total) | known
    if earlier is not None:
        earlier.refuse_divided(questions, splits)
    known_questions = earlier.questions if earlier else {}
    return splits, named | split_by_hash(texts, fractions.sizes(len(texts), total), seed, known_questions)


def assign_splits(
    paths: Iterable[str],
    seed: int,
    groups: Iterable[Sequence[str]] = (),
    fractions: Fractions | None = None,
    known: Mapping[str, str] | None = None,
    total: int | None = None,
) -> dict[str, str]:
    """Return the split of each document, by its path.

    Args:
        paths: documents, relative to their folder.
        groups: for each question, the documents that answer it.
        known: splits that documents keep, such as those of an earlier import. If documents of a group have different
            splits, the group gets the first of train, dev, test: training questions never move to dev or test.
        total: number of all questions, including those that no document answers; it determines the default fractions.
            By default it is the number of groups.

    Returns:
        Splits by path. First, a split gets groups that fit. Then it gets one group that is too large, if this brings it
        nearer to its target number of questions. If train has a fraction, it gets at least one group. The split of
        a document without questions depends only on its own hash, so adding documents never changes it.
    """
    fractions, known = fractions or Fractions(), known or {}
    ordered, groups = list(paths), list(groups)
    first_of = _groups_of([*ordered, *chain.from_iterable(groups)], groups)
    members: dict[str, list[str]] = defaultdict(list)
    for path in ordered:
        members[first_of[path]].append(path)
    questions = Counter(first_of[group[0]] for group in groups)
    splits = {
        first: next(split for split in SPLITS if split in kept)
        for first, paths_of in members.items()
        if (kept := {known[path] for path in paths_of if path in known})
    }
    have = Counter({split: sum(questions[first] for first in splits if splits[first] == split) for split in SPLITS})
    waiting = sorted((path for path in questions if path not in splits), key=lambda path: hash_of(path, seed))
    for split, size in zip((TEST, DEV), fractions.sizes(len(groups), total), strict=True):
        for most in (1, 2):  # first groups that fit; then a larger one, if this brings the split nearer to `size`
            for first in list(waiting):
                missing = size - have[split]
                if missing <= 0 or (fractions.has_train and len(waiting) == 1 and not have[TRAIN]):
                    break
                if questions[first] <= most * missing:
                    waiting.remove(first)
                    splits[first] = split
                    have[split] += questions[first]
    splits |= dict.fromkeys(waiting, TRAIN if fractions.has_train else DEV if fractions.dev else TEST)
    test, dev = (_FRACTION if fraction is None else fraction for fraction in (fractions.test, fractions.dev))
    by_hash = HashSplit.of_fractions(test, dev, seed)
    return {path: splits.get(first_of[path]) or by_hash(path) for path in ordered}


def _groups_of(paths: Iterable[str], groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return, for each document, the alphabetically first path of its group."""
    names = sorted(set(paths))
    number = {path: index for index, path in enumerate(names)}
    pairs = np.array([(number[group[0]], number[path]) for group in groups for path in group], np.int64).reshape(-1, 2)
    links = coo_array((np.ones(len(pairs)), pairs.T), (len(names), len(names)))
    component = connected_components(links, directed=False)[1].tolist()
    first = dict(zip(reversed(component), reversed(names), strict=True))
    return {path: first[group] for path, group in zip(names, component, strict=True)}
