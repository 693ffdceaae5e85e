"""What a model directory says of its encoder besides the weights: pooling, similarity, towers, prefixes, lengths.

Three kinds of directory are read: our own (`raytriever.json`), sentence-transformers' (`modules.json`) and a bare
transformers checkpoint, for which mean pooling and cosine similarity are assumed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raytriever.errors import ModelError
from raytriever.models.config import ModelConfig

OWN_FILE = "raytriever.json"
DEFAULT_LENGTH = 512


@dataclass(frozen=True)
class Description:
    """How one model turns texts into embeddings; lengths are in tokens, special tokens included.

    `truncate_dim` is how many first components of an embedding are kept, None for all.
    """

    pooling: str = "mean"
    similarity: str = "cosine"
    towers: str = "shared"
    query_prefix: str = ""
    passage_prefix: str = ""
    query_length: int = DEFAULT_LENGTH
    passage_length: int = DEFAULT_LENGTH
    truncate_dim: int | None = None


def used_settings(config: ModelConfig, description: Description) -> dict[str, object]:
    """Return the settings of an encoder as they are used: those that are not given come from its description."""
    return {name: value for name, value in (asdict(config) | asdict(description)).items() if value is not None}


def read_json(path: Path) -> Any:
    """The content of a JSON file of a model; a broken one is a `ModelError` naming it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"cannot be read ({error})", str(path), "copy the model anew") from error


def describe(directory: Path, config: ModelConfig) -> Description:
    """Read a model directory's own description and lay the user's settings over it."""
    if (directory / OWN_FILE).is_file():
        described = _own(directory / OWN_FILE)
    elif (directory / "modules.json").is_file():
        described = _sentence_transformers(directory)
    else:
        described = Description(query_length=_position_limit(directory), passage_length=_position_limit(directory))
    given = {name: value for name in asdict(described) if (value := getattr(config, name)) is not None}
    if "passage_length" in given and "query_length" not in given:
        given["query_length"] = given["passage_length"]
    return replace(described, **given)


def _own(path: Path) -> Description:
    fields = read_json(path)
    try:
        return Description(**fields)
    except TypeError as error:
        raise ModelError(
            f"unknown or missing field ({error})",
            str(path),
            "it was written by another version of raytriever",
        ) from error


def _sentence_transformers(directory: Path) -> Description:
    modules = read_json(directory / "modules.json")
    kinds = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in modules}
    unknown = sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise ModelError(
            f"has a {unknown[0]} module, which raytriever does not train",
            str(directory / "modules.json"),
            "use a model of Transformer, Pooling and Normalize modules",
        )
    length = _position_limit(directory)
    settings = directory / kinds.get("Transformer", "") / "sentence_bert_config.json"
    if settings.is_file():
        length = read_json(settings).get("max_seq_length") or length
    prompts: dict[str, str] = {}
    truncate_dim = None
    if (directory / "config_sentence_transformers.json").is_file():
        own = read_json(directory / "config_sentence_transformers.json")
        prompts, truncate_dim = own.get("prompts") or {}, own.get("truncate_dim")
    return Description(
        pooling=_pooling_mode(directory / kinds["Pooling"] / "config.json") if "Pooling" in kinds else "mean",
        similarity="cosine" if "Normalize" in kinds else "dot",
        query_prefix=prompts.get("query") or "",
        passage_prefix=prompts.get("document") or prompts.get("passage") or "",
        query_length=length,
        passage_length=length,
        truncate_dim=truncate_dim,
    )


def _pooling_mode(path: Path) -> str:
    settings = read_json(path)
    modes = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
    named = settings.get("pooling_mode")
    if named is None:  # files older than sentence-transformers 6 hold one switch a mode
        switches = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
        on = [mode for mode, switch in switches.items() if settings.get(f"pooling_mode_{switch}")]
        named = on[0] if len(on) == 1 else None
    if named not in modes:
        raise ModelError(f"pooling mode {named!r} is not supported", str(path), "choose --pooling mean, cls or last")
    return modes[named]


def _position_limit(directory: Path) -> int:
    """The longest input the weights allow; RoBERTa-like models lose the positions up to their padding index."""
    config = read_json(directory / "config.json") if (directory / "config.json").is_file() else {}
    positions = config.get("max_position_embeddings", DEFAULT_LENGTH)
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= (config.get("pad_token_id") or 0) + 1
    return int(min(positions, DEFAULT_LENGTH))
