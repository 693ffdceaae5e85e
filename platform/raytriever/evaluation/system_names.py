"""Names of retrieval systems, and the parser that turns a name into a tree of systems.

    bm25                       BM25
    minilm                     an encoder: minilm, a directory, a run, a hub name or openai:NAME
    vectors:FOLDER             embeddings that another program made; see `encoding.vectors_of_others`
    run:FILE                   rankings that another program made, as a TREC run
    A+B                        reciprocal rank fusion of two or more of the above
    A+B:weighted               weighted sum of normalized scores of two systems; its weight is chosen on the dev split
    SYSTEM>CROSS-ENCODER@50    the best 50 (by default 100) of any of these, ordered by a cross-encoder
    NAME=SYSTEM                any of these, called NAME in tables

`>` has the lowest precedence: `bm25+minilm>CROSS-ENCODER` reranks the fusion. A path that exists is an encoder, even if
it contains `+` or `>`. This module imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from raytriever.core.errors import ConfigError, setting
from raytriever.core.paths import FOLDER, MODEL, RANKING, TEACHER, PathKind, expanded
from raytriever.core.store.object_stores import address_of
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.external_encoders.endpoint_settings import EncoderConfig

BM25, WEIGHTED = "bm25", ":weighted"
VECTORS, RUN = "vectors:", "run:"
RERANKED = 100  # default number of documents of a query that a cross-encoder scores


@dataclass(frozen=True)
class Bm25:
    """BM25."""


@dataclass(frozen=True)
class VectorFolder:
    """Embeddings in a folder, compared by `cosine` or `dot`. None is cosine for embeddings of unit length, else dot."""

    folder: str
    similarity: str | None = None


@dataclass(frozen=True)
class RunFile:
    """TREC run."""

    file: str


@dataclass(frozen=True)
class Fusion:
    """Fusion of the rankings of two or more systems, by ranks or by weighted scores."""

    parts: tuple[SystemTree, ...]
    is_weighted: bool = False


@dataclass(frozen=True)
class Reranking:
    """Best `depth` documents of a system, ordered by a cross-encoder. `revision` is its commit on the hub."""

    first: SystemTree
    cross_encoder: str
    depth: int = RERANKED
    revision: str | None = None


# A leaf that is an encoder is represented by its settings.
SystemTree: TypeAlias = ModelConfig | Bm25 | VectorFolder | RunFile | Fusion | Reranking


def parse_system(word: str, settings: ModelConfig | None = None) -> SystemTree:
    """Return the tree of a name without `NAME=`. `settings` apply to all encoders, and their `similarity` also to
    vectors."""
    settings = settings or EncoderConfig()
    if _exists(word):
        return _parse_leaf(word, settings)
    first, mark, last = word.rpartition(">")
    if mark:
        name, at, number = last.rpartition("@")
        has_depth = bool(at) and number.isascii() and number.isdecimal()
        name, depth = (name, int(number)) if has_depth else (last, RERANKED)
        if not first or not name or not depth:
            what = "reranks no document" if first and name else f"has nothing {'after' if first else 'before'} '>'"
            raise _refused(word, what, "write SYSTEM>CROSS-ENCODER@100")
        return Reranking(parse_system(first, settings), name, depth)
    fused = word.removesuffix(WEIGHTED)
    names = fused.split("+")
    if len(names) == 1 and fused == word:
        return _parse_leaf(word, settings)
    if "" in names or len(names) < 2:
        raise _refused(word, "names fewer than two systems", "write A+B, such as bm25+minilm")
    if fused != word and len(names) > 2:
        raise _refused(word, f"gives weights to {len(names)} systems", f"write A+B{WEIGHTED}")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise _refused(word, f"fuses {repeated} with itself", "give two different systems")
    return Fusion(tuple(_parse_leaf(name, settings) for name in names), fused != word)


def split_label(word: str) -> tuple[str | None, str]:
    """Split `NAME=SYSTEM` into the name (None if there is none) and the system."""
    label, equals, source = word.partition("=")
    return (label, source) if equals and label and source and not Path(word).exists() else (None, word)


def system_text(tree: SystemTree, name_of: Callable[[str], str] = str) -> str:
    """Return the text that `parse_system` turns into this tree. `name_of` changes the paths and models in it."""
    match tree:
        case ModelConfig():
            return name_of(tree.model)
        case Bm25():
            return BM25
        case VectorFolder():
            return VECTORS + name_of(tree.folder)
        case RunFile():
            return RUN + name_of(tree.file)
        case Fusion():
            return "+".join(system_text(part, name_of) for part in tree.parts) + WEIGHTED * tree.is_weighted
        case Reranking():
            depth = "" if tree.depth == RERANKED else f"@{tree.depth}"
            return f"{system_text(tree.first, name_of)}>{name_of(tree.cross_encoder)}{depth}"


def paths_of(tree: SystemTree) -> list[str]:
    """Return the paths and models in a tree."""
    return [getattr(node, name) for node in nodes_of(tree) for name, _ in _fields_of(node)]


def short_text(tree: SystemTree, name_of: Callable[[str], str]) -> str:
    """Return the text of a tree without `vectors:` and `run:`. `name_of` shortens the paths and models in it."""
    return re.sub(f"{VECTORS}|{RUN}", "", system_text(tree, name_of))


def describe_system(tree: SystemTree) -> Any:
    """Return all that a system's results depend on, except the content of its files, as JSON."""
    match tree:
        case ModelConfig():
            return tree.identity() | {"model": address_of(tree.model) or tree.model}
        case Bm25():
            return BM25
        case Fusion():
            return {"fusion": [describe_system(part) for part in tree.parts], "weighted": tree.is_weighted}
        case Reranking():
            return vars(tree) | {"first": describe_system(tree.first)}
        case _:
            return asdict(tree)


def nodes_of(tree: SystemTree) -> Iterator[SystemTree]:
    """Yield a tree and all trees below it."""
    yield tree
    for part in tree.parts if isinstance(tree, Fusion) else (tree.first,) if isinstance(tree, Reranking) else ():
        yield from nodes_of(part)


def encoders_of(tree: SystemTree) -> list[ModelConfig]:
    """Return the encoders of a tree."""
    return [node for node in nodes_of(tree) if isinstance(node, ModelConfig)]


def has_weight(tree: SystemTree) -> bool:
    """Return whether a tree has a fusion whose weight must be chosen."""
    return any(isinstance(node, Fusion) and node.is_weighted for node in nodes_of(tree))


def check_questions(trees: Sequence[SystemTree], datasets: Sequence[str]) -> None:
    """Raise `ConfigError` if a system that knows only the queries of a file must rank those of other data sets."""
    for node in (node for tree in trees for node in nodes_of(tree)):
        if datasets and isinstance(node, VectorFolder | RunFile):
            what = f"{system_text(node)} has no results for the questions of {datasets[0]}"
            raise ConfigError(what, setting("unanswerable"), "leave them out, or use only 'removed'")


def replace_nodes(tree: SystemTree, change: Callable[[SystemTree], SystemTree]) -> SystemTree:
    """Return the tree with `change` applied to each node, children first."""
    if isinstance(tree, Fusion):
        tree = replace(tree, parts=tuple(replace_nodes(part, change) for part in tree.parts))
    elif isinstance(tree, Reranking):
        tree = replace(tree, first=replace_nodes(tree.first, change))
    return change(tree)


@dataclass(frozen=True)
class SystemPaths(PathKind):
    """Kind of path for `--model`: the paths in the name of a system."""

    def __call__(self, value: Any) -> str:
        """Expand `~` in the paths of a name; see `PathKind`."""
        if not isinstance(value, str) or not value.strip():
            return super().__call__(value)
        label, name = split_label(value)
        tree = replace_nodes(parse_system(name), _expand)
        return ("" if label is None else f"{label}=") + system_text(tree)

    def check(self, value: str, name: str, fetch: bool = False) -> None:
        """Check that the paths in a name exist; see `PathKind` for the errors."""
        for node in nodes_of(parse_system(split_label(value)[1])):
            for field, kind in _fields_of(node):
                kind.check(getattr(node, field), name, fetch)


SYSTEM = SystemPaths(optional=False)


# Fields of a tree that hold a path, with the kind of the path.
_FIELDS: tuple[tuple[type, str, PathKind], ...] = (
    (ModelConfig, "model", MODEL),
    (VectorFolder, "folder", FOLDER),
    (RunFile, "file", RANKING),
    (Reranking, "cross_encoder", TEACHER),
)


def _fields_of(tree: SystemTree) -> list[tuple[str, PathKind]]:
    return [(field, kind) for node, field, kind in _FIELDS if isinstance(tree, node)]


def _expand(tree: SystemTree) -> SystemTree:
    changed: dict[str, Any] = {field: kind(getattr(tree, field)) for field, kind in _fields_of(tree)}
    return replace(tree, **changed)


def _exists(word: str) -> bool:
    return expanded(word.removeprefix(VECTORS).removeprefix(RUN)).exists()


def _parse_leaf(word: str, settings: ModelConfig) -> SystemTree:
    if word == BM25:
        return Bm25()
    for prefix in (VECTORS, RUN):
        if word.startswith(prefix):
            if word == prefix:
                raise _refused(word, "names no path", f"write {prefix}PATH")
            path = word.removeprefix(prefix)
            return VectorFolder(path, settings.similarity) if prefix == VECTORS else RunFile(path)
    return replace(settings, model=word)


def _refused(word: str, what: str, remedy: str) -> ConfigError:
    return ConfigError(what, setting("model", word), remedy)
