"""Read the files of a model directory safely: JSON and safetensors. Convert errors of libraries to one line.

No file of a model can run code: weights are safetensors, and `auto_map`, which names Python files, is never used.
transformers and tokenizers raise exceptions of any class for damaged files; `model_errors` converts them.

All weights must come from the files. If a tensor is missing, `from_pretrained` only warns, and uses random numbers. A
search with such a model would return nonsense without an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from raytriever.core.errors import ModelError, UserError
from raytriever.core.reading.arrays import open_tensors
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.models.directory.hub_or_local import ADAPTER

if TYPE_CHECKING:
    import torch
    from torch import nn

log = logging.getLogger(__name__)
T = TypeVar("T")

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# Types of stored tensors that can be loaded into a float parameter. Other types are quantized, and need a scale.
FLOATS = ("F64", "F32", "F16", "BF16")
REMEDY = "copy the model again, or give another one"
# Errors whose text is clear on its own. Other errors are shown with the name of their class.
_SENTENCES = (OSError, ValueError, RuntimeError, ImportError)
_NOT_SAFE = "give a directory with config.json and model.safetensors"
_ONE_MODEL = "give a directory whose config.json and safetensors files belong to one model"
_LISTED = 3  # number of tensor names in a message


def read_model_file(file: Path, kind: type[T]) -> T:
    """Read a JSON file of a model, and check that it has the type `kind`. Raise `ModelError` if the file cannot be
    read, is not JSON, or has another type."""
    try:
        return read_json(file, kind, REMEDY, error=ModelError)
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror})", str(file), REMEDY) from error


@contextmanager
def model_errors(where: Path, what: str = "cannot be loaded") -> Iterator[None]:
    """Convert the errors that a library raises for damaged model files to a `ModelError`."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        is_sentence = text and (isinstance(error, _SENTENCES) or type(error) is Exception)
        reason = text if is_sentence else f"{type(error).__name__}: {text}"
        raise ModelError(f"{what} ({reason})", str(where), REMEDY) from error


@dataclass(frozen=True)
class StoredTensor:
    """Type of a tensor in a safetensors file, such as `F32`, and its shape."""

    kind: str
    shape: tuple[int, ...]


def stored_tensors(directory: Path, remedy: str = _NOT_SAFE) -> dict[str, StoredTensor]:
    """Read the names, types and shapes of the tensors in a directory's safetensors files. No value is read. Raise
    `ModelError` if there are no safetensors files, or one is missing or damaged."""
    if (directory / ADAPTER).is_file():
        raise ModelError(
            f"has adapters of another model ({ADAPTER}) and is not a complete model",
            str(directory),
            "merge them into their model with merge_and_unload() of peft, and give the directory of the result",
        )
    stored: dict[str, StoredTensor] = {}
    for file in _weight_files(directory, remedy):
        if not file.is_file():
            raise ModelError(f"cannot be loaded ({INDEX} names {file.name}, which is missing)", str(directory), REMEDY)
        with open_tensors(file, REMEDY, ModelError) as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                one = tensors.get_slice(name)
                stored[name] = StoredTensor(str(one.get_dtype()), tuple(one.get_shape()))
    return stored


@cache
def log_once(line: str) -> None:
    """Log a warning, once per process."""
    log.warning("%s", line)


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


class _Index(TypedDict):
    weight_map: dict[str, str]


def _weight_files(directory: Path, remedy: str) -> list[Path]:
    """Return the safetensors files that transformers reads, in order."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if (directory / INDEX).is_file():
        names = sorted(set(read_model_file(directory / INDEX, _Index)["weight_map"].values()))
        outside = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
        if outside or not names:
            reason = f"names {outside[0]!r}, which is not a safetensors file next to it" if outside else "names no file"
            raise ModelError(reason, str(directory / INDEX), REMEDY)
        return [directory / name for name in names]
    pickles = sorted(file.name for file in directory.glob("*.bin"))
    reason = f"only {pickles[0]}, a pickle, which may run code and is never read" if pickles else f"no {WEIGHTS}"
    raise ModelError(f"cannot be loaded ({reason})", str(directory), remedy)


@contextmanager
def quiet_transformers(warnings: bool = True) -> Iterator[None]:
    """Turn off the progress bars of transformers, because they would disturb the progress bar of the run.

    Args:
        warnings: whether to keep the warnings of transformers. False if raytriever raises its own errors instead.
    """
    from transformers.utils import logging as transformers_logging

    verbosity, was_enabled = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    if not warnings:
        transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if was_enabled:
            transformers_logging.enable_progress_bar()


def empty_model(
    kind: Any,
    config: Any,
    directory: Path,
    dtype: torch.dtype,
    check: Callable[[Any, Path], None] = lambda model, directory: None,
) -> Any:
    """Build, on the meta device, the model that `config.json` describes. Check that the stored tensors fit it. Raise
    `ModelError` if the files are missing or damaged, or do not fit the configuration.

    Args:
        kind, check: see `load_weights`.
    """
    import torch

    stored = stored_tensors(directory)
    with model_errors(directory), quiet_transformers(warnings=False), torch.device("meta"):
        empty = kind.from_config(config, trust_remote_code=False, dtype=dtype)
    check(empty, directory)
    check_sizes(empty, stored, directory)
    return empty


def load_weights(
    kind: Any,
    config: Any,
    directory: Path,
    dtype: torch.dtype,
    check: Callable[[Any, Path], None] = lambda model, directory: None,
) -> tuple[Any, dict[str, Any]]:
    """Load a model from the safetensors of a transformers directory. Also return the loading info for `check_loaded`.
    Raise `ModelError` if the files are missing or damaged, or do not fit the configuration.

    Args:
        kind: class of transformers that loads the model, such as `AutoModel`.
        check: function that gets the model of `config.json` on the meta device before any weight is read.
    """
    empty_model(kind, config, directory, dtype, check)
    with model_errors(directory), quiet_transformers(warnings=False):
        options = {"config": config, "dtype": dtype, "output_loading_info": True, "local_files_only": True}
        model, loading_info = kind.from_pretrained(directory, use_safetensors=True, trust_remote_code=False, **options)
    return model, loading_info


def check_sizes(model: nn.Module, stored: Mapping[str, StoredTensor], directory: Path) -> None:
    """Check that the stored tensors fit a model, before memory is allocated for it. Raise `ModelError` if a tensor has
    another shape or is not a float, or the files lack most of the model.

    Args:
        model: the model that `config.json` describes, on the meta device.
    """
    own = dict(model.named_parameters())
    matches = {name: stored.get(name) or stored.get(f"{model.base_model_prefix}.{name}") for name in own}
    for name, tensor in matches.items():
        if tensor is not None:
            check_tensor(name, tensor, own[name].shape, directory)
    size = sum(parameter.numel() for parameter in own.values())
    if size > 2 * sum(prod(tensor.shape) for tensor in stored.values()):
        _refuse_missing([name for name, tensor in matches.items() if tensor is None], directory)


def check_tensor(name: str, stored: StoredTensor, shape: Sequence[int], where: Path) -> None:
    """Check that a stored tensor has the shape of a parameter and is a float; raises `ModelError`."""
    if stored.shape != tuple(shape):
        reason = f"{name} has the shape {list(stored.shape)}, but config.json asks for {list(shape)}"
        raise ModelError(reason, str(where), _ONE_MODEL)
    if stored.kind not in FLOATS:
        reason = f"{name} is stored as {stored.kind}, not as a float of 16 bits or more"
        raise ModelError(reason, str(where), "give the model before quantization")


def check_loaded(model: nn.Module, loading_info: Mapping[str, Any], directory: Path) -> None:
    """Check that every weight of a model came from its files.

    Unused tensors, such as the head of a masked language model, are logged in one line, once per process. Raise
    `ModelError` if tensors are missing.

    Args:
        loading_info: loading info of `from_pretrained(output_loading_info=True)`.
    """
    _refuse_missing(sorted(loading_info["missing_keys"]), directory)
    extra = sorted(loading_info["unexpected_keys"])
    if extra:
        log_once(f"{directory}: contains {_names(extra)}, which {type(model).__name__} does not use.")


def check_tokens(tokenizer: Any, backbone: Any, directory: Path) -> None:
    """Check that the model has an embedding for every token of a tokenizer; raises `ModelError`."""
    size = len(backbone.get_input_embeddings().weight)
    token, largest = max(tokenizer.get_vocab().items(), key=itemgetter(1))
    if largest >= size:
        what = f"the tokenizer has the token {token!r} with the id {largest}, but the model has {size} embeddings"
        raise ModelError(what, str(directory), "copy the tokenizer that belongs to the model")


def _refuse_missing(names: Sequence[str], directory: Path) -> None:
    if names:
        reason = f"has no trained weights for {_names(names)}, and would use random numbers"
        raise ModelError(reason, str(directory), _ONE_MODEL)


def _names(names: Sequence[str]) -> str:
    """Format the first names and the number of names."""
    listed = ", ".join(names[:_LISTED])
    return listed if len(names) <= _LISTED else f"{listed}, ... ({len(names)} tensors)"
