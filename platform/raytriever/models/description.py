"""Description of an encoder in its model directory: pooling, similarity, towers, prompts and lengths.

Three kinds of directories are read: those of raytriever (`raytriever.json`), those of sentence-transformers
(`modules.json`), and plain transformers checkpoints, for which mean pooling and cosine similarity are assumed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from raytriever.errors import ConfigError, ModelError
from raytriever.models.config import ModelConfig, check_prompt_names
from raytriever.models.files import check_config, check_modules, read_model_file
from raytriever.options import check_options, flag_of, with_current_names
from raytriever.prompts import PromptTable, Side, merge_prompts, prompt_by_name
from raytriever.reading.structured import conform

OWN_FILE, MODULES = "raytriever.json", "modules.json"
TOWERS = {"query": "query_0_Transformer", "passage": "document_0_Transformer"}  # of a Router with two routes
DEFAULT_LENGTH = 512
_SWITCHES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}


@dataclass(frozen=True)
class Description:
    """Settings with which a model encodes texts. Lengths are in tokens, including special tokens.

    `truncate_dim` is the number of first components of an embedding that are kept, or None for all. `prompts` are the
    prompts of the model by name. `pool_prompt` includes the tokens of the prompt in pooling. `append_eos` adds the end
    token to texts (`auto`, `yes` or `no`). `bidirectional` lets the tokens of a decoder attend to later ones, or
    not; None leaves it to `config.json`.
    """

    pooling: str = "mean"
    similarity: str = "cosine"
    towers: str = "shared"
    query_prompt: str = ""
    passage_prompt: str = ""
    query_length: int = DEFAULT_LENGTH
    passage_length: int = DEFAULT_LENGTH
    truncate_dim: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    pool_prompt: bool = True
    append_eos: str = "auto"
    bidirectional: bool | None = None

    def flags(self) -> dict[str, Any]:
        """Return the settings that `ModelConfig` has too, by name."""
        known = {each.name for each in fields(ModelConfig)}
        return {name: value for name, value in asdict(self).items() if name in known}


def used_settings(config: ModelConfig, description: Description) -> dict[str, object]:
    """Return the settings of an encoder as they are used, with missing ones from its description."""
    return {name: value for name, value in (asdict(config) | description.flags()).items() if value is not None}


class _Settings(TypedDict, total=False):
    """`sentence_bert_config.json` of a Transformer module."""

    max_seq_length: int | None


class _OwnSettings(TypedDict, total=False):
    """`config_sentence_transformers.json`."""

    prompts: dict[str, str | None] | None
    truncate_dim: int | None


class _Pooling(TypedDict, total=False):
    """`config.json` of a Pooling module."""

    pooling_mode: str | None
    pooling_mode_mean_tokens: bool
    pooling_mode_cls_token: bool
    pooling_mode_lasttoken: bool
    word_embedding_dimension: int


def describe(directory: Path, config: ModelConfig) -> Description:
    """Read the description in a model directory, and override it by the user's settings.

    Raises:
        ModelError: a file is missing, damaged or describes what raytriever does not support.
        ConfigError: the settings name a prompt that the model does not store, or contradict each other.
    """
    check_prompt_names(config)
    if (directory / OWN_FILE).is_file():
        described = _check_ranges(_own_description(directory / OWN_FILE), directory / OWN_FILE)
    elif (directory / MODULES).is_file():
        described = _check_ranges(_sentence_transformers(directory), directory)
    else:
        described = Description(query_length=_position_limit(directory), passage_length=_position_limit(directory))
    overrides = {name: value for name in described.flags() if (value := getattr(config, name)) is not None}
    overrides |= _prompt_overrides(described, config)
    if "passage_length" in overrides and "query_length" not in overrides:
        overrides["query_length"] = overrides["passage_length"]
    return replace(described, **overrides)


def prompt_table(description: Description, config: ModelConfig) -> PromptTable:
    """Return the prompts of any data set.

    Args:
        description: what `describe` returned for the settings.
        config: settings of the user.
    """
    sides: tuple[Side, ...] = ("query", "passage")
    fixed = [
        side
        for side in sides
        if getattr(config, f"{side}_prompt") is not None or getattr(config, f"{side}_prompt_name") is not None
    ]
    return PromptTable(
        description.query_prompt,
        description.passage_prompt,
        description.prompts,
        config.dataset_prompts or {},
        frozenset(fixed),
    )


def _prompt_overrides(described: Description, config: ModelConfig) -> dict[str, Any]:
    """Return the prompts that the user's settings name or add."""
    stored = {"query": described.query_prompt, "document": described.passage_prompt} | described.prompts
    overrides: dict[str, Any] = {"prompts": merge_prompts(described.prompts, config.dataset_prompts or {})}
    for name in ("query_prompt", "passage_prompt"):
        if (chosen := getattr(config, f"{name}_name")) is not None:
            overrides[name] = prompt_by_name(chosen, stored, flag_of(f"{name}_name"))
    return overrides


def tower_directory(directory: Path, side: str) -> Path:
    """Return the transformers directory of one side's tower: the model directory, or a folder in it."""
    own = directory / TOWERS[side]
    if own.is_dir():
        return own
    if not (directory / OWN_FILE).is_file() and (directory / MODULES).is_file():
        return check_modules(directory).get("Transformer", directory)
    return directory


def _own_description(file: Path) -> Description:
    """Read `raytriever.json`, of any version."""
    settings = with_current_names(read_model_file(file, dict[str, Any]), ModelConfig)
    return conform(settings, str(file), Description, "copy the model again", error=ModelError)


def _check_ranges(described: Description, where: Path) -> Description:
    """Check a description against the ranges of the flags with the same names; raises `ModelError`."""
    try:
        check_options(replace(ModelConfig(), **described.flags()))
    except ConfigError as error:
        raise ModelError(f"has a value that {error.where} refuses: {error.what}", str(where), error.remedy) from error
    return described


def _sentence_transformers(directory: Path) -> Description:
    modules = check_modules(directory)
    unknown = sorted(modules.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise ModelError(
            f"has a {unknown[0]} module, which raytriever does not train",
            str(directory / MODULES),
            "use a model of Transformer, Pooling and Normalize modules",
        )
    if "Transformer" not in modules:
        raise ModelError("does not name a Transformer module", str(directory / MODULES), "copy the model again")
    length = _position_limit(modules["Transformer"])
    settings = modules["Transformer"] / "sentence_bert_config.json"
    if settings.is_file():
        own_length = read_model_file(settings, _Settings).get("max_seq_length")
        length = length if own_length is None else own_length
    prompts: dict[str, str | None] = {}
    truncate_dim = None
    if (directory / "config_sentence_transformers.json").is_file():
        own = read_model_file(directory / "config_sentence_transformers.json", _OwnSettings)
        prompts, truncate_dim = own.get("prompts") or {}, own.get("truncate_dim")
    return Description(
        prompts={name: prompt or "" for name, prompt in prompts.items()},
        pooling=_pooling_mode(modules["Pooling"] / "config.json") if "Pooling" in modules else "mean",
        similarity="cosine" if "Normalize" in modules else "dot",
        query_prompt=prompts.get("query") or "",
        passage_prompt=prompts.get("document") or prompts.get("passage") or "",
        query_length=length,
        passage_length=length,
        truncate_dim=truncate_dim,
    )


def _pooling_mode(path: Path) -> str:
    settings = read_model_file(path, _Pooling)
    modes = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
    named = settings.get("pooling_mode")
    if named is None:  # before sentence-transformers 6, files have one switch per mode
        on = [mode for mode, switch in _SWITCHES.items() if settings.get(switch)]
        named = on[0] if len(on) == 1 else None
    if named not in modes:
        raise ModelError(f"pooling mode {named!r} is not supported", str(path), "choose --pooling mean, cls or last")
    return modes[named]


def _position_limit(directory: Path) -> int:
    """Return the longest input of the weights; RoBERTa-like models do not use the positions up to the padding index."""
    config = check_config(directory)
    positions: int = config.get("max_position_embeddings") or DEFAULT_LENGTH
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= (config.get("pad_token_id") or 0) + 1
    return min(positions, DEFAULT_LENGTH)
