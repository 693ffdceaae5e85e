"""Write a retriever as a model directory that other libraries can read.

A retriever with one transformer becomes a plain sentence-transformers directory, which `AutoModel.from_pretrained` can
read, too. Two transformers are written in sentence-transformers' Router layout, each in its own directory. The settings
of raytriever are stored in `raytriever.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from raytriever.models.directory.head import Dense, Normalize
from raytriever.models.directory.model_files import WEIGHTS
from raytriever.models.directory.modules import (
    DENSE,
    DROPOUT,
    LIBRARY_FILE,
    MODULES,
    NORMALIZE,
    OWN_FILE,
    POOLING,
    ROUTER,
    ROUTES,
    TRANSFORMER,
    pooling_settings,
)
from raytriever.models.encoder import Encoder
from raytriever.models.lora import merged_weights, write_adapters
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import SIDES, Side, fill_title
from raytriever.models.retriever import Retriever
from raytriever.models.tokenization import has_lowercase

# Package of the class paths in files since sentence-transformers 2.0. Newer releases still read these paths.
_PACKAGE = "sentence_transformers.models"


def write_model(retriever: Retriever, directory: Path, adapters_of: ModelConfig | None = None) -> None:
    """Write weights, tokenizer and settings into an existing, empty directory.

    Args:
        retriever: the model. Its adapters are merged into the written weights.
        adapters_of: settings that name the base model. If passed, only the adapters are written, in the format of
            `peft`, not the transformers' weights. Then sentence-transformers loads them onto the base model.
    """
    description = retriever.description
    if adapters_of is None:
        _write_json(directory / OWN_FILE, asdict(description))
    query, passage = retriever.query, retriever.passage
    towers: dict[Side, Encoder] = {"query": query, "passage": passage}
    if query.backbone is not passage.backbone:
        routes: dict[Side, list[tuple[str, str]]] = {}
        written: dict[int, str] = {}
        for side in SIDES:
            tower, prefix = towers[side], f"{ROUTES[side]}_"
            names = f"{prefix}0_{TRANSFORMER}", f"{prefix}1_{POOLING}"
            start = _write_start(retriever, tower, [side], directory, *names, adapters_of)
            routes[side] = start + _write_head(_whole_head(tower), directory, prefix, 2, written)
        _write_router(routes, directory)
        modules = [("", "Router")]
    else:
        modules = _write_start(retriever, passage, ["query", "passage"], directory, "", f"1_{POOLING}", adapters_of)
        if query is passage:
            modules += _write_head(_whole_head(passage), directory, "", 2, {})
        else:
            modules.append(("2_Router", "Router"))
            written = {}
            routes = {
                side: _write_head(_whole_head(tower), directory / "2_Router", f"{ROUTES[side]}_", 0, written)
                for side, tower in towers.items()
            }
            _write_router(routes, directory / "2_Router")
    paths = [(path, f"{_PACKAGE}.{kind}") for path, kind in modules]
    entries = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(paths)]
    _write_json(directory / MODULES, entries)
    prompts = {**description.prompts, "query": description.query_prompt, "document": description.passage_prompt}
    library: dict[str, Any] = {
        # sentence-transformers has no placeholder for the title.
        "prompts": {name: fill_title(prompt) for name, prompt in prompts.items()},
        "default_prompt_name": None,
        "similarity_fn_name": description.similarity,
        "model_type": "SentenceTransformer",
    }
    if description.truncate_dim:
        # sentence-transformers truncates after Normalize, so its embeddings are shorter, with the same direction.
        library["truncate_dim"] = description.truncate_dim
    _write_json(directory / LIBRARY_FILE, library)


def _write_start(
    retriever: Retriever,
    tower: Encoder,
    sides: Sequence[Side],
    directory: Path,
    transformer: str,
    pooling: str,
    adapters_of: ModelConfig | None,
) -> list[tuple[str, str]]:
    """Write the transformer and the pooling of a tower. Return their names and classes."""
    description, tokenizer = retriever.description, retriever.tokenizer
    folder = directory / transformer
    folder.mkdir(exist_ok=True)
    if adapters_of is not None:
        write_adapters(tower.backbone, adapters_of, folder)
    else:
        # Adapters are merged into the weights, so readers of the directory do not need `peft`.
        tower.backbone.save_pretrained(folder, state_dict=merged_weights(tower.backbone))  # type: ignore[operator]
    lengths: dict[Side, int] = {"query": description.query_length, "passage": description.passage_length}
    tokenizer.model_max_length = max(lengths[side] for side in sides)
    tokenizer.save_pretrained(folder)
    settings: dict[str, Any] = {"max_seq_length": lengths[sides[-1]], "do_lower_case": has_lowercase(tokenizer)}
    if len({lengths[side] for side in sides}) > 1:  # releases before 6 know only one length, and reject two
        settings |= {f"{ROUTES[side]}_length": lengths[side] for side in sides}
    _write_json(folder / "sentence_bert_config.json", settings)
    dim = tower.pooled_dim // len(tower.pooling.split("+"))
    _write_json(directory / pooling / "config.json", pooling_settings(tower.pooling, dim, description.pool_prompt))
    return [(transformer, TRANSFORMER), (pooling, POOLING)]


def _whole_head(tower: Encoder) -> list[nn.Module]:
    """Return the modules of a tower after pooling, including the normalization for cosine similarity."""
    return [*tower.head, *([Normalize()] if tower.normalize else [])]


def _write_head(
    head: Sequence[nn.Module], directory: Path, prefix: str, first: int, written: dict[int, str]
) -> list[tuple[str, str]]:
    """Write the modules after the pooling. Return their names and classes.

    Args:
        written: names, by `id`, of modules already written for the other tower. A shared module is not written again.
    """
    modules = []
    for number, module in enumerate(head, first):
        kind = DENSE if isinstance(module, Dense) else DROPOUT if isinstance(module, nn.Dropout) else NORMALIZE
        name = written.setdefault(id(module), f"{prefix}{number}_{kind}")
        modules.append((name, kind))
        # A Normalize module has no settings, but empty directories may be lost in copies and archives.
        settings: dict[str, Any] = {"dropout": module.p} if isinstance(module, nn.Dropout) else {}
        _write_json(directory / name / "config.json", module.settings() if isinstance(module, Dense) else settings)
        if isinstance(module, Dense):
            tensors = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
            save_file(tensors, directory / name / WEIGHTS, {"format": "pt"})
    return modules


def _write_router(routes: dict[Side, list[tuple[str, str]]], directory: Path) -> None:
    types = {name: f"{_PACKAGE}.{kind}" for modules in routes.values() for name, kind in modules}
    structure = {ROUTES[side]: [name for name, _ in modules] for side, modules in routes.items()}
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    _write_json(directory / ROUTER, {"types": types, "structure": structure, "parameters": parameters})


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
