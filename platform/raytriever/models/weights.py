"""Load the weights of a model whole: refuse tensors that transformers would fill with random numbers, and silence its
progress bars.

`from_pretrained` initialises a tensor that it does not find and continues with a warning. A search with such a
model returns nonsense, and no error says why."""

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
from raytriever.models.files import FLOATS, Stored, check_config, first_line


@contextmanager
def quiet_transformers(warnings: bool = True) -> Iterator[None]:
    """Without transformers' progress bars: they would tear the one of the run.

    Args:
        warnings: whether it may still warn; not where what it warns of is an error of ours.
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


log = logging.getLogger(__name__)
_SHOWN = 3
_REMEDY = "give a directory whose config.json and safetensors files belong to one model"
_reported: set[Path] = set()


@contextmanager
def loading(directory: Path, remedy: str) -> Iterator[None]:
    """Turn what transformers raises while it loads a checked directory into a `ModelError`.

    Args:
        directory: the model, whose files were checked.
        remedy: what a user can do.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    known = (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, StrictDataclassError)
    try:
        with quiet_transformers(warnings=False):
            yield
    except known as error:
        reason = " ".join(str(error).split()) if isinstance(error, StrictDataclassError) else first_line(error)
        raise ModelError(f"cannot be loaded ({reason})", str(directory), remedy) from error


def load_config(directory: Path, remedy: str) -> Any:
    """Load the configuration of a transformers directory, never with the repository's own code.

    Args:
        directory: the model.
        remedy: what a user can do where it is broken.

    Raises:
        ModelError: see `files.check_config`; or transformers does not know such a model.
    """
    check_config(directory)
    with loading(directory, remedy):
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


def check_sizes(model: nn.Module, stored: Mapping[str, Stored], directory: Path) -> None:
    """Refuse files that cannot hold a model, before memory is taken for it.

    Args:
        model: as `config.json` describes it, on the meta device.
        stored: the tensors in its files; see `stored_tensors`.
        directory: of the model.

    Raises:
        ModelError: a tensor is of another shape or stored as no float, or most of the model is not in the files.
    """
    own = dict(model.named_parameters())
    held = {name: stored.get(name) or stored.get(f"{model.base_model_prefix}.{name}") for name in own}
    for name, tensor in held.items():
        if tensor is not None and tensor.shape != tuple(own[name].shape):
            reason = f"{name} has the shape {list(tensor.shape)}, but config.json asks for {list(own[name].shape)}"
            raise ModelError(reason, str(directory), _REMEDY)
        if tensor is not None and tensor.kind not in FLOATS:
            reason = f"{name} is stored as {tensor.kind}, not as a float of 16 bits or more"
            raise ModelError(reason, str(directory), "give the model as it was before it was quantised")
    wanted = sum(parameter.numel() for parameter in own.values())
    if wanted > 2 * sum(prod(tensor.shape) for tensor in stored.values()):
        _refuse_missing([name for name, tensor in held.items() if tensor is None], directory)


def check_loaded(model: nn.Module, report: Mapping[str, Any], directory: Path) -> None:
    """Refuse a model of which not every weight came from its files.

    Tensors of the files that the model has no place for are reported in one line, once per process: a checkpoint of a
    masked language model has a head that an encoder lacks.

    Args:
        model: as loaded.
        report: what `from_pretrained(output_loading_info=True, ignore_mismatched_sizes=True)` says of it.
        directory: of the model.

    Raises:
        ModelError: tensors are missing, or of another shape.
    """
    _refuse_missing(sorted(report["missing_keys"]), directory)
    if mismatched := sorted(report["mismatched_keys"]):
        name, there, here = mismatched[0]
        reason = f"{name} has the shape {list(there)}, but config.json asks for {list(here)}"
        raise ModelError(reason, str(directory), _REMEDY)
    extra = sorted(report["unexpected_keys"])
    if extra and directory not in _reported:
        _reported.add(directory)
        log.warning("%s: holds %s, which %s does not use.", directory, _listed(extra), type(model).__name__)


def check_tokens(tokenizer: Any, backbone: Any, directory: Path) -> None:
    """Refuse a tokenizer that makes tokens for which the model has no embedding; raises `ModelError`."""
    known = int(backbone.get_input_embeddings().num_embeddings)
    token, largest = max(tokenizer.get_vocab().items(), key=itemgetter(1))
    if largest >= known:
        raise ModelError(
            f"the tokenizer has the token {token!r} with the number {largest}, but the model embeds {known} tokens",
            str(directory),
            "copy the tokenizer that belongs to the model",
        )


def _refuse_missing(names: Sequence[str], directory: Path) -> None:
    if names:
        reason = f"has no trained weights for {_listed(names)}, and would work with random numbers"
        raise ModelError(reason, str(directory), _REMEDY)


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many there are."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, ... ({len(names)} tensors)"
