"""Earlier import in the output folder. A new import replaces it, but its files and questions keep their splits.

A file of the earlier import stays in its split. A new file joins the split of the earlier questions that it answers,
or of the files with which it shares a question. A question that would then be in two splits is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from raytriever.core.errors import ConfigError, StorageError, setting
from raytriever.core.reading.json_and_yaml import parse_json
from raytriever.core.store.commit import MANIFEST, read_manifest, refuse_existing
from raytriever.core.store.disk import files_below
from raytriever.data.documents.document_questions import Questions
from raytriever.data.formats.beir import UNANSWERABLE

KIND = "documents"
_REMEDY = f"give another {setting('output')}"


class _File(TypedDict):
    file: str
    split: str


@dataclass(frozen=True)
class EarlierImport:
    """Splits of an earlier import: of files by path, and of questions by id. They were divided with `seed`."""

    folder: Path
    seed: int
    files: Mapping[str, str] = field(default_factory=dict)
    questions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, output: Path) -> EarlierImport | None:
        """Return the import at `output`; None if nothing is there.

        Raises:
            StorageError: something else is there, or the data set is damaged, was changed, or has further files.
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
        """Check that an import may replace this one; `where` is its folder, and `paths` are its files.

        Raises:
            ConfigError: the seed differs, no file is in both imports, or the questions are missing.
        """
        if seed != self.seed:
            remedy = f"give {setting('seed', str(self.seed))}, or another {setting('output')}"
            what = f"is {seed}, and {self.folder} was divided with {self.seed}"
            raise ConfigError(what, setting("seed"), remedy)
        if self.questions and not has_questions:
            remedy = f"give {setting('questions')}, or another {setting('output')}"
            raise ConfigError("has questions, and this import names none", str(self.folder), remedy)
        if self.files.keys().isdisjoint(paths):
            what = f"none of its {len(self.files):,} files is in {where}"
            raise ConfigError(what, str(self.folder), f"import its folder, or {_REMEDY}")

    def splits_of(self, questions: Questions | None) -> dict[str, str]:
        """Return the splits of earlier files, and of new files that answer an earlier question, by path."""
        splits = dict(self.files)
        for path, of_file in questions.by_file.items() if questions else ():
            for question in of_file:
                if not question.split and question.id in self.questions:
                    splits.setdefault(path, self.questions[question.id])
        return splits

    def refuse_divided(self, questions: Questions, splits: Mapping[str, str]) -> None:
        """Make a question a bad row if the files that answer it and its earlier split are not in one split."""
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
