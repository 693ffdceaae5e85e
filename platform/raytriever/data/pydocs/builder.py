"""Embedded data set: the documentation of the installed Python packages, as questions and answers.

1. Every source file of the standard library and of the installed packages is read; nothing is imported.
2. The first sentence of a docstring is the query; qualified name, signature and the rest are its only passage.
3. Equal sentences and equal passages count once, so no sentence is in two splits. A sentence that its own passage
   repeats is left out, because copying would answer it.
4. A hash of the qualified name decides the split; all passages are the corpus.
5. `pydocs-part` has the same splits, but at most `PART_PAIRS` pairs: those of the standard library, then those of the
   packages with the most source. Other packages are not read.
6. The result is a folder in BEIR layout in the cache, named by a key of all installed versions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from raytriever.activity import activity
from raytriever.data.formats.beir import QRELS_HEADER
from raytriever.data.pydocs.docstrings import documented, normalised, question_and_answer
from raytriever.store.cache import cache_folder
from raytriever.store.commit import committed_directory, read_manifest
from raytriever.store.disk import walk
from raytriever.store.parts import make_once

log = logging.getLogger(__name__)

PYDOCS, PYDOCS_PART = "pydocs", "pydocs-part"
PART_PAIRS = 4_000
BUILDER_VERSION = 3
_TEST_BELOW, _DEV_BELOW = 0.035, 0.07


@dataclass(frozen=True, order=True)
class Pair:
    """Query and its passage."""

    name: str
    query: str
    passage: str

    @property
    def share(self) -> float:
        """Hash of the name as a number from 0 to 1."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8]) / 2**64

    @property
    def split(self) -> str:
        """Split by the hash of the name."""
        return "test" if self.share < _TEST_BELOW else "dev" if self.share < _DEV_BELOW else "train"


@activity("reading the docstrings of this Python")
def pydocs_folder(name: str = PYDOCS) -> Path:
    """Return the folder of `pydocs` or `pydocs-part` of this environment; build it if the cache has no complete one."""
    versions = installed_versions()
    decides = [BUILDER_VERSION, *([PART_PAIRS] if name == PYDOCS_PART else []), *versions]
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()
    folder = cache_folder() / f"{name}-{key[:16]}"

    def build() -> None:
        log.info("building %s from the docstrings of %d installed packages", name, len(versions) - 1)
        with committed_directory(folder, {"versions": versions}, replace=folder.exists()) as aside:
            roots = source_roots()
            pairs = part_of(roots, PART_PAIRS) if name == PYDOCS_PART else distinct(pairs_of(modules_of(*roots)))
            write_pairs(pairs, aside)

    return make_once(folder, build, read_manifest)


def part_of(roots: list[Path], limit: int) -> list[Pair]:
    """Return at most `limit` pairs: those of the first root, then those of the packages with the most source.

    The last package that is read contributes the pairs with the smallest hashes.
    """
    pairs: list[Pair] = []
    for package in (modules_of(roots[0]), *packages_by_size(roots[1:])):
        before, together = set(pairs), distinct([*pairs, *pairs_of(package)])
        new = sorted((pair for pair in together if pair not in before), key=lambda pair: pair.share)
        pairs = [pair for pair in together if pair in before]
        pairs = sorted([*pairs, *new[: limit - len(pairs)]])
        if len(pairs) == limit:
            break
    return pairs


def pairs_of(modules: Iterable[tuple[str, Path]]) -> Iterator[Pair]:
    """Yield every usable pair of modules, given by name and file; all modules of a package must be among them."""
    sources, public = [], PublicNames()
    for module, file in modules:
        source = file.read_bytes().decode(errors="ignore")
        if file.name == "__init__.py":
            public.read(module, module, source)
        elif file.name == "api.py":
            public.read(module, module.rpartition(".")[0], source)
        if '"""' in source or "'''" in source:
            sources.append((module, source))
    for module, source in sources:
        for item in documented(source):
            head, _, inside = item.name.partition(".")
            name = public.of(module, head)
            question = question_and_answer(item.docstring) if name else None
            if question is not None:
                pair = Pair(f"{name}.{inside}".rstrip("."), question[0], f"{item.signature} {question[1]}")
                if normalised(pair.query) not in normalised(f"{pair.name} {pair.passage}"):
                    yield pair


def distinct(pairs: Iterable[Pair]) -> list[Pair]:
    """Return one pair for each name, sentence and passage: of several, the one with the shortest name."""
    seen: set[tuple[str, str]] = set()
    unique = []
    for pair in sorted(pairs, key=lambda pair: (pair.name.count("."), pair)):
        marks = {("name", pair.name.lower()), ("query", normalised(pair.query)), ("passage", normalised(pair.passage))}
        if not marks & seen:
            seen |= marks
            unique.append(pair)
    return sorted(unique)


def write_pairs(pairs: list[Pair], folder: Path) -> None:
    """Write the pairs in BEIR layout. Query and passage have different ids: BEIR drops documents with equal ids."""
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


_OWN = "raytriever"  # editing the project must not change its data
_SITES = ("site-packages", "dist-packages")
_SKIPPED = re.compile(
    r"_?(?:tests?|testing|vendor|vendored|_vendor|third_party|externals|thirdparty|examples?|benchmarks?|"
    r"conformance|idlelib|idle_test|lib2to3|turtledemo|__pycache__|node_modules|site-packages|dist-packages)"
)
_SKIPPED_FILE = re.compile(r"(?:test_.*|.*_tests?|conftest|.*_pb2|.*_pb2_grpc|setup)\.py")


def installed_versions() -> list[str]:
    """This Python and every installed distribution with its version, sorted, without raytriever itself."""
    versions = {
        f"{distribution.name.lower()} {distribution.version}"
        for distribution in distributions(path=[str(site) for site in source_roots()[1:]])
        if distribution.name and distribution.name.lower() != _OWN
    }
    return [f"python {platform.python_version()}", *sorted(versions)]


def source_roots() -> list[Path]:
    """Return the standard library, then the folders that packages are installed in."""
    sites = [Path(entry) for entry in sys.path if Path(entry).name in _SITES and Path(entry).is_dir()]
    return [Path(sysconfig.get_path("stdlib")), *dict.fromkeys(sites)]


def modules_of(*roots: Path) -> Iterator[tuple[str, Path]]:
    """Yield dotted name and file of each module that is part of an interface, in the order of their names."""
    for root in roots:
        for here, folders, files in walk(root):
            folders[:] = sorted(name for name in folders if _is_package(name))
            inside = Path(here).relative_to(root).parts
            for file in sorted(files):
                if file.endswith(".py") and not _SKIPPED_FILE.fullmatch(file):
                    parts = inside if file == "__init__.py" else (*inside, file.removesuffix(".py"))
                    if parts and all(part.isidentifier() for part in parts):
                        yield ".".join(parts), Path(here, file)


def packages_by_size(roots: list[Path]) -> list[list[tuple[str, Path]]]:
    """Return the modules of each package below the roots, the packages with the most source first."""
    packages: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for module, file in modules_of(*roots):
        packages[module.partition(".")[0]].append((module, file))
    return sorted(packages.values(), key=lambda package: -sum(file.stat().st_size for _, file in package))


def _is_package(name: str) -> bool:
    return name.isidentifier() and name != _OWN and not _SKIPPED.fullmatch(name)


_IMPORT = re.compile(r"^from[ ]+(\.*)([\w.]*)[ ]+import[ ]+(?:\(([^)]*)\)|([^\n(]+))", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")
_STAR = "*"


def is_public(name: str) -> bool:
    """Return True if no part of a dotted name is private."""
    return not any(part.startswith("_") for part in name.split("."))


class PublicNames:
    """Public names: the imports of packages and of their `api` modules, for definitions of other modules."""

    def __init__(self) -> None:
        self._importers: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)

    def read(self, exporter: str, package: str, source: str) -> None:
        """Add the source of the module `exporter`, whose relative imports start at `package`."""
        for dots, module, several, one in _IMPORT.findall(source):
            parts = package.split(".")
            if dots:
                base = parts[: len(parts) - len(dots) + 1]
                module = ".".join([*base, module]) if module else ".".join(base)
            # Names of another package are its own to publish.
            if module.split(".")[0] != parts[0]:
                continue
            for item in _COMMENT.sub("", several or one).replace("\\", " ").split(","):
                name, _, alias = item.strip().partition(" as ")
                if name:
                    self._importers[module, name].append((exporter, alias.strip() or name))

    def of(self, module: str, name: str) -> str | None:
        """Return the shortest public dotted name of what `module` defines as `name`; None if it has none."""
        seen, todo = {(module, name)}, [(module, name)]
        while todo:
            where, called = todo.pop()
            further = [*self._importers.get((where, called), ())]
            further += [(exporter, called) for exporter, _ in self._importers.get((where, _STAR), ())]
            todo += (fresh := set(further) - seen)
            seen |= fresh
        names = sorted((f"{where}.{called}" for where, called in seen), key=lambda n: (n.count("."), len(n), n))
        return next(filter(is_public, names), None)
