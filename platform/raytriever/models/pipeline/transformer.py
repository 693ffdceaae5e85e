"""Settings of a Transformer module of sentence-transformers: lengths, tokenizer and configuration.

sentence-transformers passes them to transformers. Settings that change embeddings are read or refused by name.

The length follows the rules of the library. `max_seq_length` counts if there is one. Otherwise the length is the
smaller of the tokenizer's `model_max_length` and the model's `max_position_embeddings`. `query_length` and
`document_length` count for their side. Two cases differ. RoBERTa-like models have fewer usable positions than
`max_position_embeddings`, and only those count; the library fails there on longer texts. A model without any limit,
such as a T5 whose tokenizer has none, reads `UNLIMITED` tokens; the library would read whole texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from raytriever.errors import ModelError
from raytriever.models.files import check_tokenizer_files, load_config, read_model_file
from raytriever.prompts import Side

UNLIMITED = 8_192
# Files of settings, of which the library reads the first that is not empty.
FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Their positions begin after the padding token's.
ROBERTA_LIKE = (
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "roberta-prelayernorm", "data2vec-text", "ibert",
    "longformer", "xmod",
)  # fmt: skip
_REMEDY = "give a directory with config.json and model.safetensors"
_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
# Settings of each group that are honoured, and those that change no embedding.
_TOKENIZER = frozenset(
    {"model_max_length", "padding_side", "truncation_side", "add_bos_token", "add_eos_token", "add_prefix_space"}
    | {f"{role}_token" for role in ("pad", "eos", "bos", "unk", "cls", "sep", "mask")}
)
_CONFIG = frozenset({"is_causal", "use_bidirectional_attention"})
_WITHOUT_EFFECT = frozenset(
    {"cache_dir", "device_map", "local_files_only", "low_cpu_mem_usage", "revision", "subfolder", "token"}
    | {"trust_remote_code", "use_auth_token", "use_cache", "use_fast", "use_safetensors", "dtype", "torch_dtype"}
    | {"attn_implementation", "add_pooling_layer", "output_hidden_states", "output_attentions", "return_dict"}
)


class _Settings(TypedDict, total=False):
    """`sentence_bert_config.json`."""

    max_seq_length: int | None
    query_length: int | None
    document_length: int | None
    do_lower_case: bool | None
    transformer_task: str | None
    modality_config: dict[str, dict[str, Any]] | None
    module_output_name: str | None
    query_expansion: dict[str, Any] | None
    processing_kwargs: dict[str, dict[str, Any]] | None
    tokenizer_name_or_path: str | None
    tokenizer_args: dict[str, Any] | None
    processor_kwargs: dict[str, Any] | None
    model_args: dict[str, Any] | None
    model_kwargs: dict[str, Any] | None
    config_args: dict[str, Any] | None
    config_kwargs: dict[str, Any] | None


def lengths(directory: Path) -> dict[Side, int]:
    """Return the largest number of tokens of a text of each side; see the rules above.

    Args:
        directory: directory of a transformer, with or without settings of sentence-transformers.
    """
    settings, file = _read_settings(directory)
    _check_supported(settings, file)
    config = load_config(directory, _REMEDY)
    positions = getattr(config, "max_position_embeddings", None)
    positions = None if positions == -1 else positions
    usable = positions
    if positions is not None and config.model_type in ROBERTA_LIKE:
        usable = positions - (config.pad_token_id or 0) - 1
    explicit = tokenizer_settings(directory).get("model_max_length") or settings.get("max_seq_length")
    if explicit is None:
        limits = (_tokenizer_limit(directory), usable)
        length = min((limit for limit in limits if limit is not None), default=UNLIMITED)
    else:
        length = explicit
    sides: dict[Side, int] = {}
    for side, own in (("query", settings.get("query_length")), ("passage", settings.get("document_length"))):
        side_length = length if own is None else own
        # Earlier releases stored `max_position_embeddings` of RoBERTa-like models.
        sides[side] = usable if positions is not None and usable < side_length <= positions else side_length  # type: ignore
    return sides


def tokenizer_settings(directory: Path) -> dict[str, Any]:
    """Return the settings with which sentence-transformers loads a tokenizer; raises `ModelError` for unknown ones."""
    return _group(directory, ("tokenizer_args", "processor_kwargs"), _TOKENIZER)


def config_settings(directory: Path) -> dict[str, Any]:
    """Return the settings that sentence-transformers adds to `config.json`; raises `ModelError` for unknown ones."""
    return _group(directory, ("config_args", "config_kwargs"), _CONFIG)


def lowers_case(directory: Path) -> bool:
    """Return true if texts are lowercased before tokenisation."""
    return bool(_read_settings(directory)[0].get("do_lower_case"))


def _read_settings(directory: Path) -> tuple[_Settings, Path]:
    """Read the first settings file that is not empty; return its settings and its path."""
    for file in (directory / name for name in FILES):
        if file.is_file() and (settings := read_model_file(file, _Settings)):
            return settings, file
    return _Settings(), directory / FILES[0]


def _check_supported(settings: _Settings, file: Path) -> None:
    """Refuse settings that change embeddings in ways that raytriever does not follow."""

    def refuse(reason: str) -> None:
        raise ModelError(reason, str(file), "use a model that encodes plain texts")

    if settings.get("query_expansion"):
        refuse("query_expansion is not supported")
    task = settings.get("transformer_task") or "feature-extraction"
    if task != "feature-extraction":
        refuse(f"transformer_task {task!r} is not supported")
    modalities = settings.get("modality_config") or {"text": _TEXT}
    if "message" in modalities:
        refuse("modality 'message', which turns texts into messages of a chat, is not supported")
    if other := [name for name in modalities if name != "text"]:
        refuse(f"modality {other[0]!r} is not supported")
    text = {name: value for name, value in modalities.get("text", {}).items() if name in _TEXT}
    if text != _TEXT or (settings.get("module_output_name") or "token_embeddings") != "token_embeddings":
        refuse("an output of the transformer other than the states of its tokens is not supported")
    if settings.get("processing_kwargs"):
        refuse(f"processing_kwargs {', '.join(settings['processing_kwargs'] or {})} is not supported")
    if settings.get("tokenizer_name_or_path"):
        refuse("tokenizer_name_or_path, the tokenizer of another model, is not supported")
    for name in ("model_args", "model_kwargs"):
        if other := sorted(set(settings.get(name) or {}) - _WITHOUT_EFFECT):  # type: ignore[call-overload]
            refuse(f"{name} {other[0]!r} is not supported")


def _group(directory: Path, names: tuple[str, str], honoured: frozenset[str]) -> dict[str, Any]:
    settings, file = _read_settings(directory)
    group: dict[str, Any] = {}
    for name in names:
        group |= settings.get(name) or {}  # type: ignore[call-overload]
    for name in group:
        if name not in honoured | _WITHOUT_EFFECT:
            raise ModelError(f"{names[0]} {name!r} is not supported", str(file), f"use {', '.join(sorted(honoured))}")
    return {name: value for name, value in group.items() if name in honoured}


def _tokenizer_limit(directory: Path) -> int | None:
    """Return `model_max_length` of a tokenizer; None if it has no limit, which transformers stores as 1e30."""
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return None
    check_tokenizer_files(directory)
    length = read_model_file(file, dict[str, Any]).get("model_max_length")
    return None if length is None or length > 2**62 else int(length)
