"""Modules of a model directory in their order, for each side.

`modules.json` of sentence-transformers names the modules. A Router, or an Asym of earlier releases, has modules for
each route. The routes `query` and `document` become the two sides. A module that both sides name is one module.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from raytriever.errors import ModelError
from raytriever.models.files import read_model_file
from raytriever.prompts import Side

MODULES, ROUTER = "modules.json", "router_config.json"
TRANSFORMER, POOLING, DENSE, NORMALIZE, DROPOUT = "Transformer", "Pooling", "Dense", "Normalize", "Dropout"
_ROUTERS = ("Router", "Asym")
_HEAD = (DENSE, NORMALIZE, DROPOUT)
_KNOWN = (TRANSFORMER, POOLING, *_HEAD)
# Routes of sentence-transformers' encode_query and encode_document.
ROUTES: dict[Side, str] = {"query": "query", "passage": "document"}
_REMEDY = "copy the model again"

# Modes of pooling by their names in both generations of files. Their order decides concatenations of earlier releases.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}


@dataclass(frozen=True)
class Module:
    """One module: the name of its class, such as `Dense`, and its folder."""

    kind: str
    folder: Path


@dataclass(frozen=True)
class Pipeline:
    """Modules of one side.

    Args:
        transformer: directory of the transformer and the tokenizer.
        pooling: folder of the Pooling module; None in a plain transformers checkpoint.
    """

    transformer: Path
    pooling: Path | None = None
    head: tuple[Module, ...] = ()


class _Entry(TypedDict):
    """One entry of `modules.json`."""

    type: str
    path: str


class _Parameters(TypedDict, total=False):
    default_route: str | None
    allow_empty_key: bool
    route_mappings: dict[str, str] | None


class _Routes(TypedDict):
    """`router_config.json` of a Router, or `config.json` of an Asym."""

    types: dict[str, str]
    structure: dict[str, list[str]]
    parameters: NotRequired[_Parameters]


class _Pooling(TypedDict, total=False):
    """`config.json` of a Pooling module."""

    pooling_mode: str | list[str] | None
    pooling_mode_cls_token: bool
    pooling_mode_max_tokens: bool
    pooling_mode_mean_tokens: bool
    pooling_mode_mean_sqrt_len_tokens: bool
    pooling_mode_weightedmean_tokens: bool
    pooling_mode_lasttoken: bool
    include_prompt: bool | None
    word_embedding_dimension: int
    embedding_dimension: int


def read_pipeline(directory: Path, side: Side) -> Pipeline:
    """Read which modules encode one side.

    Raises:
        ModelError: a file or folder is missing, damaged or outside of the directory, a module is not supported, or the
            order of the modules is unusual.
    """
    file = directory / MODULES
    if not file.is_file():
        return Pipeline(directory)
    modules: list[Module] = []
    for entry in read_model_file(file, list[_Entry]):
        modules += _routed(directory, _module(directory, entry["type"], entry["path"], file), side)
    for kind in (TRANSFORMER, POOLING):
        if sum(module.kind == kind for module in modules) > 1:
            raise ModelError(f"names two {kind} modules", str(file), _REMEDY)
    kinds = [module.kind for module in modules]
    if TRANSFORMER not in kinds:
        raise ModelError("does not name a Transformer module", str(file), _REMEDY)
    if kinds[0] != TRANSFORMER or kinds[1:2] not in ([], [POOLING]):
        order = ", ".join(kinds)
        raise ModelError(f"has the modules {order}", str(file), "use a model of Transformer, Pooling and then others")
    return Pipeline(modules[0].folder, modules[1].folder if len(modules) > 1 else None, tuple(modules[2:]))


def read_pooling(folder: Path) -> tuple[str, bool]:
    """Return the pooling of a Pooling module, and whether the tokens of a prompt are pooled.

    Raises:
        ModelError: the file is missing or damaged, or a mode is unknown.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError("is missing", str(file), _REMEDY)
    settings: dict[str, Any] = dict(read_model_file(file, _Pooling))
    named = settings.get("pooling_mode")
    if named is None:
        modes = [mode for switch, mode in _SWITCHES.items() if settings.get(switch)] or ["mean"]
    else:
        names = [named] if isinstance(named, str) else named
        unknown = [name for name in names if name not in _NAMES]
        if unknown or not names:
            wrong = repr(unknown[0]) if unknown else "of no name"
            raise ModelError(f"pooling mode {wrong} is not supported", str(file), f"use {', '.join(_NAMES)}")
        modes = [_NAMES[name] for name in names]
    return "+".join(modes), settings.get("include_prompt") is not False


def pooling_settings(pooling: str, width: int, pool_prompt: bool) -> dict[str, Any]:
    """Return the settings of a Pooling module that releases 5 and 6 of sentence-transformers read alike."""
    modes = pooling.split("+")
    switches = {switch: mode in modes for switch, mode in _SWITCHES.items()}
    settings: dict[str, Any] = {"word_embedding_dimension": width, **switches, "include_prompt": pool_prompt}
    if [mode for mode in _SWITCHES.values() if mode in modes] != modes:  # only release 6 has other orders
        settings["pooling_mode"] = [name for mode in modes for name, own in _NAMES.items() if own == mode]
    return settings


def _module(directory: Path, kind: str, path: str, file: Path) -> Module:
    """Check the class and the folder of a module."""
    name = kind.rsplit(".", 1)[-1]
    if not kind.startswith("sentence_transformers."):
        reason = f"has the module {kind}, whose code is not part of sentence-transformers and never runs"
        raise ModelError(reason, str(file), f"use a model of {', '.join(_KNOWN)} modules")
    if name not in (*_KNOWN, *_ROUTERS):
        raise ModelError(
            f"has a {name} module, which raytriever does not train",
            str(file),
            f"use a model of {', '.join(_KNOWN)} modules",
        )
    if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
        raise ModelError(f"path {path!r} leaves the model's directory", str(file), _REMEDY)
    # A Normalize module has no files, and its empty directory may be lost in a copy.
    if name != NORMALIZE and not _is_folder(directory / path):
        raise ModelError(f"names the directory {path!r}, which is missing", str(file), _REMEDY)
    return Module(name, directory / path)


def _routed(directory: Path, module: Module, side: Side) -> list[Module]:
    """Return a module, or the modules of a router's route for one side."""
    if module.kind not in _ROUTERS:
        return [module]
    file = module.folder / ROUTER
    if not file.is_file():
        file = module.folder / "config.json"
    if not file.is_file():
        raise ModelError(f"has no {ROUTER}", str(module.folder), _REMEDY)
    settings = read_model_file(file, _Routes)
    routes = settings["structure"]
    route = _route(settings, ROUTES[side])
    if route not in routes:
        raise ModelError(
            f"has the routes {', '.join(routes)}, and none for {ROUTES[side]}",
            str(file),
            "use a model with the routes query and document",
        )
    modules = []
    for name in routes[route]:
        if name not in settings["types"]:
            raise ModelError(f"does not name the type of the module {name!r}", str(file), _REMEDY)
        modules.append(_module(module.folder, settings["types"][name], name, file))
        if modules[-1].kind in _ROUTERS:
            raise ModelError("has a router in a router", str(file), "use a model with one router")
    return modules


def _route(settings: _Routes, task: str) -> str:
    """Return the name of the route of a task for texts, by the order of sentence-transformers' `Router`."""
    mappings: dict[Any, str] = {}
    for key, route in (settings.get("parameters", {}).get("route_mappings") or {}).items():
        try:
            mappings[ast.literal_eval(key)] = route
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue  # sentence-transformers skips them too
    for pair in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if pair in mappings:
            return mappings[pair]
    return task if task in settings["structure"] or "text" not in settings["structure"] else "text"


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # the name is not a valid file name
        return False
