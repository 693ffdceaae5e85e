"""Built-in data set `pydocs`: the docstrings of Python's standard library as questions and answers.

1. Every source file of the standard library is parsed; nothing is imported.
2. The first sentence of a docstring is a query. Its passage has the qualified name, the signature and the other text.
3. Of equal sentences or passages, only one is used, so no sentence is in two splits. A pair whose passage repeats
   the sentence is left out, because it is too easy.
4. A hash of the qualified name decides the split. The corpus contains the passages of all splits.
5. The result is a folder in BEIR layout in the cache. It depends only on the version of Python."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from raytriever.core.progress import activity
from raytriever.core.store.cache import cache_folder
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.core.store.disk import walk
from raytriever.core.store.unfinished_pieces import make_once
from raytriever.data.formats.beir import QRELS_HEADER

PYDOCS = "pydocs"
_FORMAT = 4  # increase it if the same docstrings give other files; then the cache is built again
_TEST_BELOW, _DEV_BELOW = 0.1, 0.17  # bounds for a name's hash in [0, 1): 10 % of the names are test, 7 % dev
_FEWEST_QUERY_WORDS, _MOST_QUERY_WORDS = 4, 40
_FEWEST_REST_WORDS, _MOST_CHARACTERS = 8, 1_200
# Folders of the standard library that are not public, or that some distributions leave out.
_SKIPPED = (
    *("test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "distutils"),
    *("site-packages", "dist-packages", "__pycache__"),
)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, order=True)
class Pair:
    """Query and its passage."""

    name: str
    query: str
    passage: str

    @property
    def split(self) -> str:
        """Split by the hash of the name."""
        fraction = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8]) / 2**64
        return "test" if fraction < _TEST_BELOW else "dev" if fraction < _DEV_BELOW else "train"


@activity("reading the docstrings of this Python")
def pydocs_folder() -> Path:
    """Return the folder of `pydocs` for this version of Python. Build it if the cache has no complete folder."""
    folder = cache_folder() / f"{PYDOCS}-{platform.python_version()}-{_FORMAT}"

    def build() -> None:
        with committed_directory(folder, replace=folder.exists()) as temporary:
            write_pairs(distinct(pairs_of(Path(sysconfig.get_path("stdlib")))), temporary)

    return make_once(folder, build, read_manifest)


def pairs_of(root: Path) -> Iterator[Pair]:
    """Yield the pair of each public class and function below a folder whose docstring is long enough."""
    for here, folders, files in walk(root):
        folders[:] = sorted(name for name in folders if name.isidentifier() and name not in _SKIPPED)
        for file in sorted(name for name in files if name.endswith(".py")):
            stem = file.removesuffix(".py")
            parts = [*Path(here).relative_to(root).parts, *([] if stem == "__init__" else [stem])]
            if any(part.startswith("_") for part in parts):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler warns about invalid escapes
                module = ast.parse(Path(here, file).read_bytes())
            for name, node in _definitions(module.body, ".".join(parts)):
                docstring = ast.get_docstring(node)
                question = question_and_answer(docstring) if docstring else None
                if question is not None:
                    pair = Pair(name, question[0], f"{_signature(node)} {question[1]}")
                    if normalized(pair.query) not in normalized(f"{pair.name} {pair.passage}"):
                        yield pair


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, _Definition]]:
    """Yield the public classes and functions of a module, and those of its classes, with their qualified names."""
    for node in body:
        if isinstance(node, _Definition) and not node.name.startswith("_"):
            name = f"{prefix}.{node.name}"
            yield name, node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, name)


def _signature(node: _Definition) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    return f"{node.name}({ast.unparse(node.args).removeprefix('self').removeprefix(', ')})"


def question_and_answer(docstring: str) -> tuple[str, str] | None:
    """Return the first sentence and the rest, each on one line; None if they cannot be a query and a passage."""
    first, _, after = docstring.partition("\n\n")
    sentence, _, left = _one_line(first).partition(". ")
    rest = _one_line(f"{left} {after}")[:_MOST_CHARACTERS]
    is_sentence = sentence[:1].isupper() and sentence[-1:] not in ":,;"
    if not is_sentence or not _FEWEST_QUERY_WORDS <= len(sentence.split()) <= _MOST_QUERY_WORDS:
        return None
    return (sentence, rest) if len(rest.split()) >= _FEWEST_REST_WORDS else None


def _one_line(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def normalized(text: str) -> str:
    """Return the letters and digits in lower case, with spaces between words, for comparison."""
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def distinct(pairs: Iterable[Pair]) -> list[Pair]:
    """Remove pairs until all names, sentences and passages differ. Keep pairs whose names have the fewest dots."""
    seen: set[tuple[str, str]] = set()
    unique = []
    for pair in sorted(pairs, key=lambda pair: (pair.name.count("."), pair)):
        marks = {("name", pair.name.lower()), ("query", normalized(pair.query)), ("passage", normalized(pair.passage))}
        if not marks & seen:
            seen |= marks
            unique.append(pair)
    return sorted(unique)


def write_pairs(pairs: list[Pair], folder: Path) -> None:
    """Write the pairs in BEIR layout. Query and passage have different ids: BEIR drops a result with its query's id."""
    with (folder / "corpus.jsonl").open("w", encoding="utf-8", newline="\n") as corpus:
        corpus.writelines(_line(_id=p.name, title=p.name, text=p.passage) for p in pairs)
    with (folder / "queries.jsonl").open("w", encoding="utf-8", newline="\n") as queries:
        queries.writelines(_line(_id=f"q:{p.name}", text=p.query) for p in pairs)
    (folder / "qrels").mkdir()
    for split in ("train", "dev", "test"):
        with (folder / "qrels" / f"{split}.tsv").open("w", encoding="utf-8", newline="\n") as qrels:
            qrels.write("\t".join(QRELS_HEADER) + "\n")
            qrels.writelines(f"q:{p.name}\t{p.name}\t1\n" for p in pairs if p.split == split)


def _line(**fields: str) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
