"""Paths from a user. `~` is expanded, an empty path is refused, and a missing file is reported before long work.

A setting declares its kind of path: `option(default, help, reads=DATASET, metavar="PATH")`. The command line and the
configuration files read the value as that kind says. `fetch_paths` checks that the path exists before torch, Ray or
transformers are imported. This module imports none of them."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from raytriever.core.errors import ConfigError, DataError, ModelError, UserError, setting
from raytriever.core.reading.regular_files import irregular
from raytriever.core.store.commit import complete
from raytriever.core.store.object_stores import address_of, is_uri
from raytriever.core.store.remote_folders import copy_of, has_object
from raytriever.core.unknown_names import did_you_mean

_LOCAL = "file://"
# Prefixes of the names of encoders without files: services with OpenAI's interface, and functions of a program.
OPENAI, FUNCTION = "openai:", "function:"
_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
_EMPTY = "the path is empty"


@dataclass(frozen=True)
class PathKind:
    """Kind of path that a setting or flag accepts. Calling it checks a value, and expands `~` and `~user`."""

    missing: str = ""  # message for a path that does not exist; empty for an output, which may be missing
    remedy: str = "give the path of an existing file or folder"  # instruction that corrects the error
    error: type[UserError] = ConfigError
    names: tuple[str, ...] = ()  # patterns of values that are names, not paths
    hub: bool = False  # whether `NAME` and `OWNER/NAME` may be a model of the Hugging Face hub
    separator: str = ""  # text between the paths, if a value may hold several paths; empty if a value is one path
    pattern: str = "(.*)"  # pattern of a value such as `NAME=PATH`; its group is the path
    optional: bool = True  # whether a configuration file may give an empty value; the setting is then unset
    # Whether the files of any URI are streamed without a copy. If not, only a URI of an object store is allowed;
    # the path of its copy on this machine replaces it.
    streams: bool = False

    def __call__(self, value: Any) -> str:
        """Expand the paths in a value; raises `ValueError` if the value is not a string, or is empty but required."""
        if not isinstance(value, str):
            raise ValueError("give a path")
        if not value.strip() and not self.optional:
            raise ValueError(f"{_EMPTY}: give a path")
        return self.separator.join(self._expanded(part) for part in self._parts(value))

    def read_flag(self, value: str, name: str) -> str:
        """Read the value of a flag. Raise `ConfigError` if it is empty: the usual cause is an unset shell
        variable."""
        if not value.strip():
            remedy = f"give a path, or leave {'the flag' if name else 'it'} out"
            raise ConfigError(_EMPTY, setting(name) if name else None, remedy)
        return self(value)

    def check(self, value: str, name: str, fetch: bool = False) -> None:
        """Raise this kind's error if a local path or an object does not exist. Names and other URIs are not checked.

        Args:
            value: What `__call__` returned.
            name: Name of the setting.
            fetch: True to download all files too, if the path is in an object store.
        """
        for part in self._parts(value) if self.missing else ():
            bare = self._bare(part)
            path = self.local(bare)
            if path is not None and fetch:
                complete(path)
            uri = bare if path is None else address_of(path)
            if not ((path is not None and _is_there(path)) or (uri is not None and has_object(uri))):
                raise self.error_of_missing(bare, name)

    def error_of_missing(self, path: str, name: str | None = None) -> UserError:
        """Return the error for a path that does not exist. Its remedy names the most similar existing path, if any."""
        parent = Path(path).parent
        near = [known for known in self.names if known.isalnum()]
        if parent.is_dir() and os.access(parent, os.R_OK | os.X_OK):
            near += [str(parent / name) for name in os.listdir(parent) if not name.startswith(".")]
        hint = did_you_mean(path, near)
        remedy = hint if hint.startswith("did") else self.remedy
        return self.error(self.missing, setting(name, path) if name else path, remedy)

    def local(self, word: str) -> Path | None:
        """Return the local path that a value means; None for a name, a URI other than `file://`, or a hub model."""
        if not word or any(re.fullmatch(name, word) for name in self.names):
            return None
        if word.startswith(_LOCAL):
            return Path(unquote(word.removeprefix(_LOCAL)))
        if "://" in word or word.startswith("ir_datasets:"):
            return None
        path = expanded(word)
        if self.hub and _HUB.fullmatch(word) and not word.startswith(".") and not os.path.lexists(path):
            return None
        return path

    def is_moved(self, before: object, now: object) -> bool:
        """Return whether files were moved: both paths end in the same name, and only `now` exists."""
        if not (isinstance(before, str) and isinstance(now, str)):
            return False
        old, new = self._parts(before), self._parts(now)
        return len(old) == len(new) and all(map(self._is_part_moved, old, new))

    def _is_part_moved(self, before: str, now: str) -> bool:
        old, new = self._bare(before), self._bare(now)
        # The text around a path, such as the split of `PATH#SPLIT`, must be equal, because a move does not change it.
        if before.replace(old, "", 1) != now.replace(new, "", 1):
            return False
        return old == new or (Path(old).name == Path(new).name and self._is_gone(old) and not self._is_gone(new))

    def _is_gone(self, path: str) -> bool:
        local = self.local(path)
        return local is not None and not local.exists()

    def _parts(self, value: str) -> list[str]:
        return value.split(self.separator) if self.separator else [value]

    def _bare(self, part: str) -> str:
        part = part.strip() if self.separator else part
        match = re.fullmatch(self.pattern, part, re.DOTALL)
        return part if match is None or os.path.exists(part) else match[1]

    def _expanded(self, part: str) -> str:
        bare = self._bare(part)
        if is_uri(bare) and not self.streams:
            return part.replace(bare, copy_of(bare), 1)
        return part.replace(bare, os.path.expanduser(bare), 1) if bare.startswith("~") else part


def fetch_paths(*settings: Any) -> None:
    """Raise an error if a path in the settings does not exist. Download the files of paths in an object store."""
    for config in settings:
        for field in dataclasses.fields(config):
            kind, value = field.metadata.get("reads"), getattr(config, field.name)
            if isinstance(kind, PathKind) and value:
                kind.check(value, field.name, fetch=True)


def expanded(path: Path | str) -> Path:
    """Return a path with `~` and `~user` expanded. If this machine has no such user, the path is unchanged."""
    return Path(os.path.expanduser(path))


def runs_folder() -> Path:
    """Return the folder in which runs are stored: `RAYTRIEVER_RUNS`, or `runs`."""
    return expanded(copy_of(os.environ.get("RAYTRIEVER_RUNS") or "runs"))


def _is_there(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, ValueError):  # ValueError: the path contains a null byte
        return False
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise irregular(path)
    return True


PATH = PathKind()  # an output, or an input that its reader checks
FILE = PathKind("no such file", "give the path of a file", DataError)
QUESTIONS = replace(FILE, remedy="give the path of a CSV, TSV or JSONL file of questions")
FOLDER = PathKind("no such folder", "give the path of a folder")
DOCUMENTS = PathKind("no such folder", "give the path or URI of a folder of documents", DataError, streams=True)
DATASET = PathKind(
    "no data set of this name and no such folder",
    "give 'pydocs', or the path or URI of a data set; see docs/reference/formats.md",
    DataError,
    names=("pydocs",),
    optional=False,
    streams=True,
)
UNANSWERABLE = replace(DATASET, names=("removed", "removed=.*", *DATASET.names))
DATASETS = replace(DATASET, separator=",", optional=True)
DEV_DATASETS = replace(DATASETS, names=("own", *DATASET.names), pattern="([^#]*)(?:#.*)?")
MODEL = PathKind(
    "no such directory",
    "give a model directory, a hub name, or 'minilm'",
    ModelError,
    names=("minilm", f"{OPENAI}.*", f"{FUNCTION}.*"),
    hub=True,
    optional=False,
)
TEACHER = replace(MODEL, remedy="give the directory of a cross-encoder, or a hub name", names=(), optional=True)
NEGATIVES = PathKind("there is no negatives table", "give the directory or the Parquet file of a table", DataError)
SCORES = PathKind(
    "there are no scores",
    "give a directory that `raytriever score` wrote, or a Parquet file with the columns query, document and score",
    DataError,
    separator=",",
)
RANKING = replace(FILE, remedy="give the path of a TREC run")
CANDIDATES = replace(RANKING, names=("bm25", "dense"), separator=",")
EMBEDDINGS = PathKind("no such embeddings", "give a directory that `raytriever encode` wrote", DataError)
EVALUATION = PathKind("no such evaluation", "give a directory that `raytriever evaluate` wrote", DataError)
PROMPTS = replace(FOLDER, remedy="give a folder with files such as relevance.txt")
SEARCH_SPACE = PathKind("no such file", "give a YAML file", names=(r"(?!.*/|.*\.ya?ml$).*",), optional=False)
