"""Checks of the files of a model directory before and after a library builds a model from them.

transformers and tokenizers raise arbitrary exceptions for malformed files, and build a model of any size that
`config.json` names. The checks before cover what the libraries assume: types, ranges, and paths inside the directory.
No file of a model can run code: weights are safetensors, and `auto_map`, which names Python files, is never used.

Then all weights must come from the files: `from_pretrained` initialises a missing tensor with random numbers and
continues with a warning, and a search with such a model returns nonsense without an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from raytriever.errors import ModelError
from raytriever.models.source import ADAPTER
from raytriever.reading.arrays import open_tensors
from raytriever.reading.structured import read_json
from raytriever.store.disk import disk_errors

if TYPE_CHECKING:
    import torch
    from torch import nn

T = TypeVar("T")

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# Types of stored tensors that a float parameter can have; other types need a scale, which transformers does not have.
FLOATS = ("F64", "F32", "F16", "BF16")
_TYPES_OF_TOKENS = "type_vocab_size"  # 0 in DeBERTa, whose tokens have no types
# Names of sizes in the configurations of transformers, by their largest plausible value. A directory with a larger size
# is damaged, and building its model would exhaust the memory or take hours.
_MOST = {
    1_000: ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    100_000: ("num_attention_heads", "n_heads", "n_head", "num_heads", "num_key_value_heads", _TYPES_OF_TOKENS),
    1_000_000: ("hidden_size", "dim", "d_model", "n_embd", "intermediate_size", "hidden_dim", "d_ff", "head_dim"),
    100_000_000: ("vocab_size", "max_position_embeddings", "n_positions"),
}
_TYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_REMEDY = "copy the model again"


class _Config(TypedDict, total=False):
    """Settings of `config.json` whose types transformers takes for granted."""

    model_type: str | None
    pad_token_id: int | None
    dtype: str | None
    torch_dtype: str | None
    quantization_config: dict[str, Any] | None
    sentence_transformers: dict[str, Any] | None


class _Token(TypedDict):
    content: str


class _TokenizerConfig(TypedDict, total=False):
    tokenizer_class: str | None
    added_tokens_decoder: dict[str, dict[str, Any]]
    extra_special_tokens: dict[str, Any] | list[Any]
    model_max_length: Any  # often a number of more than 64 bits; `check_tokenizer_files` checks the range
    pad_token: str | _Token | None
    unk_token: str | _Token | None
    cls_token: str | _Token | None
    sep_token: str | _Token | None
    mask_token: str | _Token | None
    bos_token: str | _Token | None
    eos_token: str | _Token | None


class _Tokenizer(TypedDict):
    model: dict[str, Any]
    added_tokens: list[dict[str, Any]]


class _Index(TypedDict):
    weight_map: dict[str, str]


_TOKENIZER_FILES: dict[str, Any] = {
    "tokenizer.json": _Tokenizer,
    "tokenizer_config.json": _TokenizerConfig,
    "special_tokens_map.json": dict[str, Any],
    "added_tokens.json": dict[str, int],
}


def read_model_file(file: Path, kind: type[T]) -> T:
    """Read a JSON file of a model as a type; see `reading.conform`.

    Raises:
        ModelError: the file cannot be read, is not JSON, or has another type.
    """
    try:
        return read_json(file, kind, _REMEDY, error=ModelError)
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror})", str(file), _REMEDY) from error


def check_config(directory: Path) -> dict[str, Any]:
    """Return the settings in `config.json` of a transformers directory.

    Raises:
        ModelError: there is no such file, a setting has another type, or a size is out of range.
    """
    file = directory / CONFIG
    if not file.is_file():
        raise ModelError("has no config.json", str(directory), "give the directory of a transformers model")
    config: dict[str, Any] = dict(read_model_file(file, _Config))
    for most, names in _MOST.items():
        for name in names:
            _check_size(file, name, config.get(name), most)
    for name in ("dtype", "torch_dtype"):
        if config.get(name) is not None and config[name].removeprefix("torch.") not in _TYPES:
            raise ModelError(f"{name} is {config[name]!r}, expected one of {', '.join(_TYPES)}", str(file), _REMEDY)
    padding, words = config.get("pad_token_id"), config.get("vocab_size")
    if padding is not None and words is not None and padding >= words:
        raise ModelError(f"pad_token_id is {padding}, but vocab_size is {words}", str(file), _REMEDY)
    return config


def check_tokenizer_files(directory: Path) -> None:
    """Check the types of the content of tokenizer files; raises `ModelError`."""
    for name, kind in _TOKENIZER_FILES.items():
        if not (directory / name).is_file():
            continue
        content: dict[str, Any] = read_model_file(directory / name, kind)
        length = content.get("model_max_length", 1)
        if length is not None and (isinstance(length, bool) or not isinstance(length, int | float) or length < 1):
            raise ModelError(
                f"model_max_length is {length!r}, expected a number of tokens", str(directory / name), _REMEDY
            )


@dataclass(frozen=True)
class StoredTensor:
    """Type of a tensor in a safetensors file, such as `F32`, and its shape."""

    kind: str
    shape: tuple[int, ...]


_NOT_SAFE = "give a directory with config.json and model.safetensors"


def stored_tensors(directory: Path, remedy: str = _NOT_SAFE) -> dict[str, StoredTensor]:
    """Read the names of the tensors in a directory's safetensors files, with types and shapes; no value is read.

    Raises:
        ModelError: there are no such files, or one is missing, damaged or not a safetensors file.
    """
    if (directory / ADAPTER).is_file():
        raise ModelError(
            f"holds adapters of another model ({ADAPTER}) and is not a complete model",
            str(directory),
            "merge them into their model with merge_and_unload() of peft, save it, and give that directory",
        )
    stored: dict[str, StoredTensor] = {}
    for file in _weight_files(directory, remedy):
        if not file.is_file():
            raise ModelError(f"cannot be loaded ({INDEX} names {file.name}, which is missing)", str(directory), _REMEDY)
        with disk_errors(file, reading=True), open_tensors(file, _REMEDY, ModelError) as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                one = tensors.get_slice(name)
                stored[name] = StoredTensor(str(one.get_dtype()), tuple(one.get_shape()))
    return stored


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _check_size(file: Path, name: str, value: Any, most: int) -> None:
    least = 0 if name == _TYPES_OF_TOKENS else 1
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
        return
    expected = f"expected a whole number from {least} to {most:,}"
    value_text = repr(value) if isinstance(value, int | float | str) else type(value).__name__
    raise ModelError(f"{name} is {value_text[:80]}, {expected}", str(file), _REMEDY)


def _weight_files(directory: Path, remedy: str) -> list[Path]:
    """Return the safetensors files that transformers reads, in order."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if (directory / INDEX).is_file():
        names = sorted(set(read_model_file(directory / INDEX, _Index)["weight_map"].values()))
        outside = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
        if outside or not names:
            reason = f"names {outside[0]!r}, which is not a safetensors file next to it" if outside else "names no file"
            raise ModelError(reason, str(directory / INDEX), _REMEDY)
        return [directory / name for name in names]
    pickles = sorted(file.name for file in directory.glob("*.bin"))
    reason = f"only {pickles[0]}, a pickle, which may run code and is never read" if pickles else f"no {WEIGHTS}"
    raise ModelError(f"cannot be loaded ({reason})", str(directory), remedy)


log = logging.getLogger(__name__)
_LISTED = 3
_ONE_MODEL = "give a directory whose config.json and safetensors files belong to one model"
_reported: set[Path] = set()


@contextmanager
def quiet_transformers(warnings: bool = True) -> Iterator[None]:
    """Disable transformers' progress bars, which would disturb the progress bar of the run.

    Args:
        warnings: keep the warnings of transformers; false if raytriever raises an error for them.
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


@contextmanager
def loading(directory: Path, remedy: str) -> Iterator[None]:
    """Convert errors of transformers while it loads a checked directory into a `ModelError`."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    load_errors = (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, StrictDataclassError)
    try:
        with quiet_transformers(warnings=False):
            yield
    except load_errors as error:
        reason = " ".join(str(error).split()) if isinstance(error, StrictDataclassError) else first_line(error)
        raise ModelError(f"cannot be loaded ({reason})", str(directory), remedy) from error


def load_config(directory: Path, remedy: str, **settings: Any) -> Any:
    """Load the configuration of a transformers directory, without running code of the directory.

    Raises:
        ModelError: see `files.check_config`; or transformers does not support the model.
    """
    check_config(directory)
    with loading(directory, remedy):
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False, **settings)


def load_weights(
    kind: Any,
    config: Any,
    directory: Path,
    remedy: str,
    dtype: torch.dtype,
    check: Callable[[Any, Path], None] = lambda model, directory: None,
) -> tuple[Any, dict[str, Any]]:
    """Load a model from the safetensors of a transformers directory; return it, and the report for `check_loaded`.

    Args:
        kind: class of transformers, such as `AutoModel`.
        check: called with the model that `config.json` describes, on the meta device, before any weight is read.

    Raises:
        ModelError: the files are missing or damaged, or do not fit the configuration.
    """
    import torch

    stored = stored_tensors(directory)
    with loading(directory, remedy):
        with torch.device("meta"):
            empty = kind.from_config(config, trust_remote_code=False)
        check(empty, directory)
        check_sizes(empty, stored, directory)
        model, report = kind.from_pretrained(
            directory,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    return model, report


def check_sizes(model: nn.Module, stored: Mapping[str, StoredTensor], directory: Path) -> None:
    """Check that the stored tensors fit a model, before memory is allocated for it.

    Args:
        model: the model that `config.json` describes, on the meta device.
        stored: tensors in its files; see `stored_tensors`.

    Raises:
        ModelError: a tensor has another shape or is not a float, or most of the model is not in the files.
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
        raise ModelError(reason, str(where), "give the model before quantisation")


def check_loaded(model: nn.Module, report: Mapping[str, Any], directory: Path) -> None:
    """Check that every weight of a model came from its files.

    Tensors that the model does not use are logged in one line, once per process. For example, a checkpoint of a masked
    language model has a head that an encoder lacks.

    Args:
        report: loading info of `from_pretrained(output_loading_info=True, ignore_mismatched_sizes=True)`.

    Raises:
        ModelError: tensors are missing, or have another shape.
    """
    _refuse_missing(sorted(report["missing_keys"]), directory)
    if mismatched := sorted(report["mismatched_keys"]):
        name, stored_shape, own_shape = mismatched[0]
        check_tensor(name, StoredTensor(FLOATS[0], tuple(stored_shape)), own_shape, directory)
    extra = sorted(report["unexpected_keys"])
    if extra and directory not in _reported:
        _reported.add(directory)
        log.warning("%s: contains %s, which %s does not use.", directory, _names(extra), type(model).__name__)


def check_tokens(tokenizer: Any, backbone: Any, directory: Path) -> None:
    """Check that the model has an embedding for every token of a tokenizer; raises `ModelError`."""
    size = len(backbone.get_input_embeddings().weight)
    token, largest = max(tokenizer.get_vocab().items(), key=itemgetter(1))
    if largest >= size:
        raise ModelError(
            f"the tokenizer has the token {token!r} with the number {largest}, but the model embeds {size} tokens",
            str(directory),
            "copy the tokenizer that belongs to the model",
        )


def _refuse_missing(names: Sequence[str], directory: Path) -> None:
    if names:
        reason = f"has no trained weights for {_names(names)}, and would use random numbers"
        raise ModelError(reason, str(directory), _ONE_MODEL)


def _names(names: Sequence[str]) -> str:
    """Format the first names and the number of names."""
    listed = ", ".join(names[:_LISTED])
    return listed if len(names) <= _LISTED else f"{listed}, ... ({len(names)} tensors)"
