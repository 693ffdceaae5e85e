"""Resolve the name of a model to a directory with a complete model.

A checkpoint of a run (`checkpoint_model`), and a directory of LoRA adapters without a model, are converted once to a
complete model in the cache. So all code that reads a model can read them too.

`peft`, sentence-transformers and `--save-adapters` write directories that hold only LoRA adapters. Their
`adapter_config.json` names the base model in `base_model_name_or_path`. `peft` merges the adapters into it. The cache
key of the complete model is a digest of the adapters and the state of the base model's files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, ModelError
from raytriever.core.paths import expanded
from raytriever.core.progress import activity
from raytriever.core.reading.arrays import open_tensors
from raytriever.core.store.cache import cache_folder, hold
from raytriever.core.store.commit import MANIFEST, committed_directory, complete, sha256_of
from raytriever.core.store.disk import files_below
from raytriever.core.store.remote_folders import copy_of
from raytriever.core.store.unfinished_pieces import make_once
from raytriever.models.directory.hub_or_local import ADAPTER, CHECKPOINTS, MINILM, check_revision, find_model, has_files
from raytriever.models.directory.model_files import CONFIG, INDEX, read_model_file, stored_tensors
from raytriever.models.directory.modules import MODULES, ModelFiles
from raytriever.models.directory.transformer_settings import Transformer
from raytriever.models.model_settings import ModelConfig

_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve_model(name: str, revision: str | None = None, weights: bool = True) -> Path:
    """Return the local directory of a model. Raise `ModelError` if the model does not exist, its digest is wrong, or
    the hub cannot be reached. Raise `StorageError` if the checkpoint is damaged, or does not fit the model that its run
    names.

    Args:
        name: `minilm`, a local directory, a checkpoint of a run, or a hub name such as `intfloat/e5-base-v2`.
        revision: commit, tag or branch of a hub model.
        weights: if False, the weights of a hub model are not downloaded, only its other files.
    """
    name = copy_of(name)
    complete(Path(name))
    path = expanded(name)
    if re.fullmatch(r"step-\d+", path.name) and (path.parent / CHECKPOINTS).is_file():
        from raytriever.models.checkpoint_model import whole_model

        check_revision([name], revision)
        return whole_model(path)
    directory = find_model(name, revision, weights)
    return merged_model(directory, weights) if (directory / ADAPTER).is_file() else directory


def read_files(config: ModelConfig, weights: bool = True) -> ModelFiles:
    """Find the model that a configuration names, and read its settings files; see `resolve_model`."""
    return ModelFiles.read(resolve_model(config.model, config.revision, weights))


def commit_of(name: str, revision: str | None = None) -> str | None:
    """Return the commit to which a hub model's revision resolves; None for a local model."""
    if name == MINILM or not has_files(name) or expanded(name).exists():
        return None
    path = resolve_model(name, revision, weights=False)
    # The last folder in the hub's cache is named after the commit.
    return path.name if _COMMIT.fullmatch(path.name) else revision


WEIGHTS = "adapter_model.safetensors"
# Suffixes of the files that are copied from the base model. Weights are not copied: merging the adapters writes them.
_COPIED = (".json", ".txt", ".model", ".jinja")
_PREFIX = re.compile(r"^base_model\.model\.(model\.)?")
_LEFT_OUT = (ADAPTER, INDEX, MANIFEST)


def merged_model(directory: Path, weights: bool = True) -> Path:
    """Return the directory of the base model with the adapters of `directory` merged into it. Raise `ModelError` if a
    file is missing or damaged, the base model cannot be found, or the adapters belong to another model.

    Args:
        weights: if False, return the directory of the base model itself: its layers have the same shapes.
    """
    settings = read_model_file(directory / ADAPTER, dict[str, Any])
    if settings.get("peft_type") != "LORA":
        raise ModelError(f"holds adapters of type {settings.get('peft_type')!r}", str(directory), "give LoRA adapters")
    base = _base_of(directory, settings, weights)
    if not weights:
        return base
    if not (directory / WEIGHTS).is_file():
        raise ModelError(f"has no {WEIGHTS}", str(directory), "copy the adapters again, as safetensors")
    decides = [sha256_of(directory / ADAPTER), sha256_of(directory / WEIGHTS), _state_of(base), _state_of(directory)]
    meta = {"kind": "merged adapters", "adapters": str(directory), "base": str(base)}
    return keep_model(decides, meta, lambda aside: _write(directory, base, aside))


def keep_model(decides: Any, meta: dict[str, str], write: Callable[[Path], None]) -> Path:
    """Return the directory of a complete model in the cache. It is marked as in use while this process runs.

    Args:
        decides: JSON value of everything that the content depends on. The cache key is its digest.
        meta: origin of the model, for the manifest.
        write: function that writes the model to an empty directory. It is called only if the cache has no such model.
    """
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder() / "merged" / key

    def make() -> None:
        with activity("writing the whole model"), committed_directory(folder, meta, replace=folder.exists()) as aside:
            write(aside)

    make_once(folder, make)
    _hold(folder)
    return folder


@cache
def _hold(folder: Path) -> None:
    """Mark a model of the cache as in use. `cache` limits this to one open file per model."""
    hold(folder, keep_model)


def _base_of(directory: Path, settings: dict[str, Any], weights: bool) -> Path:
    name, remedy = str(settings.get("base_model_name_or_path") or ""), f"correct base_model_name_or_path in {ADAPTER}"
    if not name:
        raise ModelError("does not name the model that its adapters belong to", str(directory), remedy)
    try:
        return find_model(name, None if Path(name).is_dir() else settings.get("revision"), weights)
    except ModelError as error:
        what = f"its adapters belong to {name}, which cannot be read ({error.args[0]})"
        raise ModelError(what, str(directory), f"make that model available, or {remedy}") from error


def _write(directory: Path, base: Path, aside: Path) -> None:
    """Write the complete model: files of the base model, merged weights, other files of the adapters' directory."""
    transformer = ModelFiles.read(base).sides["passage"].transformer
    folder = transformer.folder
    if (directory / MODULES).is_file():  # the directory of the adapters has its own modules, such as the pooling
        target = aside / ModelFiles.read(directory).sides["passage"].transformer.folder.relative_to(directory)
        _copy((file for file in folder.iterdir() if file.is_file()), folder, target)
    else:
        target = aside / folder.relative_to(base)
        _copy(files_below(base), base, aside)
    _merge(directory, transformer, target)
    shutil.copyfile(folder / CONFIG, target / CONFIG)  # restores what `save_pretrained` changed
    _copy(files_below(directory), directory, aside)


def _copy(files: Iterable[Path], source: Path, target: Path) -> None:
    for file in files:
        if file.suffix in _COPIED and file.name not in _LEFT_OUT:
            (target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.relative_to(source))


def _merge(directory: Path, transformer: Transformer, target: Path) -> None:
    """Write a transformer with the adapters merged into it, in the type of its stored weights."""
    try:
        from peft import PeftConfig, inject_adapter_in_model, set_peft_model_state_dict
    except ImportError as error:
        raise ConfigError("peft is not installed", str(directory), "pip install 'raytriever[lora]'") from error
    import torch

    from raytriever.models.encoder import load_backbone
    from raytriever.models.lora import merged_weights

    kinds = {tensor.kind for tensor in stored_tensors(transformer.folder).values()}
    backbone: Any = load_backbone(transformer, torch.bfloat16 if kinds == {"BF16"} else torch.float32)
    remedy = f"correct base_model_name_or_path in {ADAPTER}, or copy the adapters again"
    try:
        settings = PeftConfig.from_pretrained(str(directory))
        inject_adapter_in_model(settings, backbone)
        # If the adapters were trained in a language model around this transformer, names have the prefix `model.`.
        with open_tensors(directory / WEIGHTS, remedy, ModelError) as file:
            stored = {_PREFIX.sub("", name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        unexpected = set_peft_model_state_dict(backbone, stored).unexpected_keys
    except (ValueError, KeyError, RuntimeError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"its adapters do not fit {transformer.folder} ({reason})", str(directory), remedy) from error
    if unexpected:
        what = f"its adapters do not fit {transformer.folder}, which has no {unexpected[0]}"
        raise ModelError(what, str(directory), remedy)
    backbone.save_pretrained(target, state_dict=merged_weights(backbone))


def _state_of(directory: Path) -> list[list[Any]]:
    states = [(file, file.stat()) for file in files_below(directory.resolve())]
    return [[str(file), state.st_size, state.st_mtime_ns] for file, state in states]
