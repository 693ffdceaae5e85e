"""Checks that all weights of a model come from its files, and control of transformers' output.

`from_pretrained` initialises a missing tensor with random numbers and continues with a warning. A search with such a
model returns nonsense without an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import nn

from raytriever.errors import ModelError
from raytriever.models.files import FLOATS, StoredTensor, check_config, first_line

log = logging.getLogger(__name__)
_LISTED = 3
_REMEDY = "give a directory whose config.json and safetensors files belong to one model"
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
    """Convert errors of transformers while it loads a checked directory into a `ModelError`.

    Args:
        directory: directory of the model, whose files were checked.
        remedy: action of the user that resolves the error.
    """
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

    Args:
        directory: directory of the model.
        remedy: action of the user that resolves an error.
        settings: further settings of the configuration.

    Raises:
        ModelError: see `files.check_config`; or transformers does not support the model.
    """
    check_config(directory)
    with loading(directory, remedy):
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False, **settings)


def check_sizes(model: nn.Module, stored: Mapping[str, StoredTensor], directory: Path) -> None:
    """Check that the stored tensors fit a model, before memory is allocated for it.

    Args:
        model: the model that `config.json` describes, on the meta device.
        stored: tensors in its files; see `stored_tensors`.
        directory: directory of the model.

    Raises:
        ModelError: a tensor has another shape or is not a float, or most of the model is not in the files.
    """
    own = dict(model.named_parameters())
    matches = {name: stored.get(name) or stored.get(f"{model.base_model_prefix}.{name}") for name in own}
    for name, tensor in matches.items():
        if tensor is not None and tensor.shape != tuple(own[name].shape):
            reason = f"{name} has the shape {list(tensor.shape)}, but config.json asks for {list(own[name].shape)}"
            raise ModelError(reason, str(directory), _REMEDY)
        if tensor is not None and tensor.kind not in FLOATS:
            reason = f"{name} is stored as {tensor.kind}, not as a float of 16 bits or more"
            raise ModelError(reason, str(directory), "give the model before quantisation")
    size = sum(parameter.numel() for parameter in own.values())
    if size > 2 * sum(prod(tensor.shape) for tensor in stored.values()):
        _refuse_missing([name for name, tensor in matches.items() if tensor is None], directory)


def check_loaded(model: nn.Module, report: Mapping[str, Any], directory: Path) -> None:
    """Check that every weight of a model came from its files.

    Tensors that the model does not use are logged in one line, once per process. For example, a checkpoint of a masked
    language model has a head that an encoder lacks.

    Args:
        model: the loaded model.
        report: loading info of `from_pretrained(output_loading_info=True, ignore_mismatched_sizes=True)`.
        directory: directory of the model.

    Raises:
        ModelError: tensors are missing, or have another shape.
    """
    _refuse_missing(sorted(report["missing_keys"]), directory)
    if mismatched := sorted(report["mismatched_keys"]):
        name, stored_shape, own_shape = mismatched[0]
        reason = f"{name} has the shape {list(stored_shape)}, but config.json asks for {list(own_shape)}"
        raise ModelError(reason, str(directory), _REMEDY)
    extra = sorted(report["unexpected_keys"])
    if extra and directory not in _reported:
        _reported.add(directory)
        log.warning("%s: contains %s, which %s does not use.", directory, _names(extra), type(model).__name__)


def check_tokens(tokenizer: Any, backbone: Any, directory: Path) -> None:
    """Check that the model has an embedding for every token of a tokenizer; raises `ModelError`."""
    size = int(backbone.get_input_embeddings().num_embeddings)
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
        raise ModelError(reason, str(directory), _REMEDY)


def _names(names: Sequence[str]) -> str:
    """Format the first names and the number of names."""
    listed = ", ".join(names[:_LISTED])
    return listed if len(names) <= _LISTED else f"{listed}, ... ({len(names)} tensors)"
