"""Settings of a Transformer module of sentence-transformers: lengths, tokenizer and configuration.

sentence-transformers passes them to transformers. If a setting changes embeddings, it is either applied, or an error
names it.

The maximum length of a text follows the rules of the library: `max_seq_length` if it is set, else the smaller of the
tokenizer's `model_max_length` and the model's `max_position_embeddings`. `query_length` and `document_length` override
it for their side. raytriever differs in two cases. RoBERTa-like models have fewer usable positions than
`max_position_embeddings`: here longer texts are cut, while the library fails on them. A model without any limit, such
as a T5 whose tokenizer has no limit, reads `UNLIMITED` tokens here, while the library reads whole texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from raytriever.core.errors import ModelError
from raytriever.models.directory.model_files import CONFIG, REMEDY, model_errors, quiet_transformers, read_model_file
from raytriever.models.prompts import Side

UNLIMITED = 8_192
# Settings files. sentence-transformers reads the first that exists and is not empty.
FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Model types whose positions begin after the position of the padding token.
ROBERTA_LIKE = (
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "roberta-prelayernorm", "data2vec-text", "ibert",
    "longformer", "xmod",
)  # fmt: skip
# Largest plausible number of layers. transformers would build any number of them, even for hours.
_MOST_LAYERS = 1_000
_LENGTHS: dict[Side, str] = {"query": "query_length", "passage": "document_length"}
# Settings that would change embeddings in ways that raytriever does not support, with their neutral values.
_USUAL: dict[str, Any] = {
    "query_expansion": False,
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
    "processing_kwargs": {},
    "tokenizer_name_or_path": "",
}
# Settings of the tokenizer and of the configuration that are applied, and settings that do not change embeddings.
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
    max_seq_length: int | None
    query_length: int | None
    document_length: int | None
    transformer_task: str | None
    module_output_name: str | None
    modality_config: dict[str, dict[str, Any]] | None
    tokenizer_args: dict[str, Any] | None
    processor_kwargs: dict[str, Any] | None
    processing_kwargs: dict[str, Any] | None
    config_args: dict[str, Any] | None
    config_kwargs: dict[str, Any] | None
    model_args: dict[str, Any] | None
    model_kwargs: dict[str, Any] | None


@dataclass(frozen=True)
class Transformer:
    """Transformer of a model, with its tokenizer."""

    folder: Path  # folder with `config.json`, the tokenizer and the weights
    settings: dict[str, Any]  # settings of sentence-transformers; empty if there are none
    file: Path  # file of these settings

    @classmethod
    def read(cls, folder: Path) -> Transformer:
        """Read the settings in a folder; raises `ModelError`."""
        for file in (folder / name for name in FILES):
            if file.is_file() and (settings := read_model_file(file, _Settings)):
                return cls(folder, dict(settings), file)
        return cls(folder, {}, folder / FILES[0])

    @cached_property
    def config(self) -> Any:
        """Configuration of the transformers model. No code of the folder runs. Raise `ModelError` if there is no
        `config.json`, or transformers does not support it."""
        if not (self.folder / CONFIG).is_file():
            raise ModelError("has no config.json", str(self.folder), "give the directory of a transformers model")
        read_model_file(self.folder / CONFIG, dict[str, Any])  # checks the type: transformers' errors name no file
        added = self._group(("config_args", "config_kwargs"), _CONFIG)
        with model_errors(self.folder), quiet_transformers(warnings=False):
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False, **added)
        layers = getattr(config, "num_hidden_layers", None) or 0
        if layers > _MOST_LAYERS:
            raise ModelError(f"has {layers:,} layers, more than {_MOST_LAYERS:,}", str(self.folder), REMEDY)
        return config

    @cached_property
    def tokenizer_settings(self) -> dict[str, Any]:
        """Settings with which sentence-transformers loads the tokenizer; raises `ModelError` for an unknown setting."""
        return self._group(("tokenizer_args", "processor_kwargs"), _TOKENIZER)

    @cached_property
    def lengths(self) -> dict[Side, int]:
        """Maximum number of tokens of a text of each side; see the rules above. Raise `ModelError` if a file is missing
        or damaged, or a setting is not supported."""
        for name, usual in _USUAL.items():
            if (value := self.settings.get(name) or usual) != usual:
                reason = f"{name} {str(value)[:100]} is not supported"
                raise ModelError(reason, str(self.file), "use a model that encodes plain texts")
        self._group(("model_args", "model_kwargs"), frozenset())
        named, usable = self._named_positions(), self.positions
        length = self.tokenizer_settings.get("model_max_length") or self.settings.get("max_seq_length")
        if length is None:
            limits = (self.tokenizer_limit, usable)
            length = min((limit for limit in limits if limit is not None), default=UNLIMITED)
        sides: dict[Side, int] = {}
        for side, name in _LENGTHS.items():
            side_length = length if self.settings.get(name) is None else self.settings[name]
            # For RoBERTa-like models, earlier releases stored `max_position_embeddings` as the length.
            is_named = named is not None and usable is not None and usable < side_length <= named
            sides[side] = usable if is_named else side_length  # type: ignore[assignment]
        return sides

    def _named_positions(self) -> int | None:
        positions: int | None = getattr(self.config, "max_position_embeddings", None)
        return None if positions == -1 else positions

    @property
    def positions(self) -> int | None:
        """Number of tokens for which the model has positions; None if it has no limit."""
        named = self._named_positions()
        if named is None or self.config.model_type not in ROBERTA_LIKE:
            return named
        return named - int(self.config.pad_token_id or 0) - 1

    @property
    def tokenizer_limit(self) -> int | None:
        """`model_max_length` of the tokenizer; None if it has no limit, which transformers stores as 1e30."""
        file = self.folder / "tokenizer_config.json"
        length = read_model_file(file, dict[str, Any]).get("model_max_length") if file.is_file() else None
        if not isinstance(length, int | float | None):
            raise ModelError(f"model_max_length is {length!r}, expected a whole number", str(file), REMEDY)
        return None if length is None or length > 2**62 else int(length)

    def _group(self, names: tuple[str, str], honored: frozenset[str]) -> dict[str, Any]:
        first, second = names
        group = {**(self.settings.get(first) or {}), **(self.settings.get(second) or {})}
        for name in group:
            if name not in honored | _WITHOUT_EFFECT:
                reason = f"{first} {name!r} is not supported"
                remedy = f"use {', '.join(sorted(honored))}" if honored else "remove it, or use another model"
                raise ModelError(reason, str(self.file), remedy)
        return {name: value for name, value in group.items() if name in honored}
