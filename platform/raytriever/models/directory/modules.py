"""Read the settings in the files of a model directory: the modules of each side, in their order.

`modules.json` of sentence-transformers names the modules. A Router (an Asym in earlier releases) has modules for each
route. The routes `query` and `document` become the two sides. A module is shared if both sides name it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from raytriever.core.errors import ModelError
from raytriever.models.directory.model_files import CONFIG, REMEDY, read_model_file
from raytriever.models.directory.transformer_settings import Transformer
from raytriever.models.prompts import SIDES, Side

OWN_FILE, LIBRARY_FILE = "raytriever.json", "config_sentence_transformers.json"
MODULES, ROUTER = "modules.json", "router_config.json"
TRANSFORMER, POOLING, DENSE, NORMALIZE, DROPOUT = "Transformer", "Pooling", "Dense", "Normalize", "Dropout"
_ROUTERS = ("Router", "Asym")
_HEAD = (DENSE, NORMALIZE, DROPOUT)
_KNOWN = (TRANSFORMER, POOLING, *_HEAD)
# Routes that encode_query and encode_document of sentence-transformers use.
ROUTES: dict[Side, str] = {"query": "query", "passage": "document"}

# Pooling modes by their names in old and new files. Earlier releases concatenate several modes in this order.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {"cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean_sqrt_len"}
_NAMES |= {"weightedmean": "weightedmean", "lasttoken": "last"}


class _Entry(TypedDict):
    type: str
    path: str


class _Parameters(TypedDict, total=False):
    route_mappings: dict[str, str] | None


class _Router(TypedDict):
    structure: dict[str, list[str]]
    types: dict[str, str]
    parameters: NotRequired[_Parameters | None]


class _Pooling(TypedDict, total=False):
    pooling_mode: str | list[str] | None


class _Named(TypedDict, total=False):
    module_input_name: str | None
    module_output_name: str | None


class _Dense(_Named):
    in_features: int
    out_features: int
    activation_function: NotRequired[str | None]


class _Dropout(TypedDict, total=False):
    dropout: float


class Library(TypedDict, total=False):
    """Settings of `config_sentence_transformers.json` that are used here."""

    model_type: str | None
    similarity_fn_name: str | None
    truncate_dim: int | None
    prompts: dict[str, str | None] | None
    default_prompt_name: str | None
    activation_fn: str | None


_SETTINGS: dict[str, Any] = {POOLING: _Pooling, DENSE: _Dense, NORMALIZE: _Named, DROPOUT: _Dropout}


@dataclass(frozen=True)
class Module:
    """One module: the name of its class, such as `Dense`, its folder, and its settings."""

    kind: str
    folder: Path
    settings: dict[str, Any]

    @property
    def file(self) -> Path:
        """Path of the file with the module's settings."""
        return self.folder / CONFIG


@dataclass(frozen=True)
class Pipeline:
    """Modules of one side. A plain transformers checkpoint has no pooling and no head."""

    transformer: Transformer
    pooling: Module | None = None
    head: tuple[Module, ...] = ()


@dataclass(frozen=True)
class ModelFiles:
    """Settings in the files of a model directory. Each file is read once."""

    directory: Path
    own: dict[str, Any] | None  # `raytriever.json`; None in a directory of another library
    library: Library  # `config_sentence_transformers.json`; empty if there is none
    has_modules: bool  # True if `modules.json` names the modules of each side
    sides: dict[Side, Pipeline]  # modules of each side

    @classmethod
    def read(cls, directory: Path) -> ModelFiles:
        """Read the files of a directory. Raise `ModelError` if a file or folder is missing, damaged or outside of the
        directory, a module is not supported, or the order of the modules is unusual."""
        own, library, modules = (directory / name for name in (OWN_FILE, LIBRARY_FILE, MODULES))
        return cls(
            directory,
            read_model_file(own, dict[str, Any]) if own.is_file() else None,
            read_model_file(library, Library) if library.is_file() else {},
            modules.is_file(),
            _read_sides(modules) if modules.is_file() else dict.fromkeys(SIDES, Pipeline(Transformer.read(directory))),
        )


def _read_sides(file: Path) -> dict[Side, Pipeline]:
    entries = [
        _read_entry(file.parent, entry["type"], entry["path"], file) for entry in read_model_file(file, list[_Entry])
    ]
    sides = {side: [module for entry in entries for module in entry[side]] for side in SIDES}
    for modules in sides.values():
        _check_order([module.kind for module in modules], file)
    folders = {modules[0].folder for modules in sides.values()}
    transformers = {folder: Transformer.read(folder) for folder in folders}
    return {
        side: Pipeline(transformers[modules[0].folder], modules[1] if len(modules) > 1 else None, tuple(modules[2:]))
        for side, modules in sides.items()
    }


def _check_order(kinds: Sequence[str], file: Path) -> None:
    for kind in (TRANSFORMER, POOLING):
        if kinds.count(kind) > 1:
            raise ModelError(f"names two {kind} modules", str(file), REMEDY)
    if TRANSFORMER not in kinds:
        raise ModelError("does not name a Transformer module", str(file), REMEDY)
    if kinds[0] != TRANSFORMER or kinds[1:2] not in ([], [POOLING]):
        order = ", ".join(kinds)
        raise ModelError(f"has the modules {order}", str(file), "use a model with Transformer, Pooling, then others")


def _read_entry(directory: Path, kind: str, path: str, file: Path) -> dict[Side, list[Module]]:
    module = _read_module(directory, kind, path, file)
    if module.kind not in _ROUTERS:
        return {side: [module] for side in SIDES}
    file = module.folder / ROUTER
    if not file.is_file():
        file = module.file
    if not file.is_file():
        raise ModelError(f"has no {ROUTER}", str(module.folder), REMEDY)
    settings = read_model_file(file, _Router)
    routes: dict[Side, list[str]] = {}
    for side, task in ROUTES.items():
        route = _route(settings, task)
        if route not in settings["structure"]:
            reason = f"has the routes {', '.join(settings['structure'])}, but none for {task}"
            raise ModelError(reason, str(file), "use a model with the routes query and document")
        routes[side] = settings["structure"][route]
    names = dict.fromkeys(name for names in routes.values() for name in names)
    if untyped := [name for name in names if name not in settings["types"]]:
        raise ModelError(f"does not name the class of its module {untyped[0]!r}", str(file), REMEDY)
    modules = {name: _read_module(module.folder, settings["types"][name], name, file) for name in names}
    if any(module.kind in _ROUTERS for module in modules.values()):
        raise ModelError("has a router in a router", str(file), "use a model with one router")
    return {side: [modules[name] for name in names] for side, names in routes.items()}


def _read_module(directory: Path, kind: str, path: str, file: Path) -> Module:
    name = kind.rsplit(".", 1)[-1]
    supported = f"use a model of {', '.join(_KNOWN)} modules"
    if not kind.startswith("sentence_transformers."):
        reason = f"has the module {kind}, whose code is not part of sentence-transformers and never runs"
        raise ModelError(reason, str(file), supported)
    if name not in (*_KNOWN, *_ROUTERS):
        raise ModelError(f"has a {name} module, which raytriever does not support", str(file), supported)
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ModelError(f"path {path!r} leaves the model's directory", str(file), REMEDY)
    folder = directory / path
    # A Normalize module has no files, so a copy may lack its empty directory.
    if name != NORMALIZE and not folder.is_dir():
        raise ModelError(f"names the directory {path!r}, which is missing", str(file), REMEDY)
    if name in (POOLING, *_HEAD):
        config = folder / CONFIG
        if config.is_file():
            return Module(name, folder, read_model_file(config, _SETTINGS[name]))
        if name in (POOLING, DENSE):
            raise ModelError("is missing", str(config), REMEDY)
    return Module(name, folder, {})


def _route(settings: _Router, task: str) -> str:
    """Return the name of the route for texts of a task, as the `Router` of sentence-transformers chooses it."""
    mappings: dict[Any, str] = {}
    parameters = settings.get("parameters") or _Parameters()
    for key, route in (parameters.get("route_mappings") or {}).items():
        try:
            mappings[ast.literal_eval(key)] = route
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue  # sentence-transformers skips invalid keys too
    for pair in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if pair in mappings:
            return mappings[pair]
    return task if task in settings["structure"] or "text" not in settings["structure"] else "text"


def read_pooling(module: Module) -> tuple[str, bool]:
    """Return the pooling of a Pooling module, and whether the tokens of a prompt are pooled. Raise `ModelError` if a
    mode is unknown."""
    named = module.settings.get("pooling_mode")
    if named is None:
        modes = [mode for switch, mode in _SWITCHES.items() if module.settings.get(switch)] or ["mean"]
    else:
        names = [named] if isinstance(named, str) else named
        unknown = [name for name in names if name not in _NAMES]
        if unknown or not names:
            reason = f"pooling mode {repr(unknown[0]) if unknown else 'without a name'} is not supported"
            raise ModelError(reason, str(module.file), f"use {', '.join(_NAMES)}")
        modes = [_NAMES[name] for name in names]
    return "+".join(modes), module.settings.get("include_prompt") is not False


def pooling_settings(pooling: str, dim: int, pool_prompt: bool) -> dict[str, Any]:
    """Return settings of a Pooling module that releases 5 and 6 of sentence-transformers interpret in the same way."""
    modes = pooling.split("+")
    switches = {switch: mode in modes for switch, mode in _SWITCHES.items()}
    settings: dict[str, Any] = {"word_embedding_dimension": dim, **switches, "include_prompt": pool_prompt}
    if [mode for mode in _SWITCHES.values() if mode in modes] != modes:  # only release 6 can use another order
        settings["pooling_mode"] = [name for mode in modes for name, known in _NAMES.items() if known == mode]
    return settings
