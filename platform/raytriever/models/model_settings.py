"""Settings of the encoder. This module imports quickly, because the command line reads it for `--help`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from raytriever.core.errors import ConfigError, setting
from raytriever.core.paths import MODEL
from raytriever.core.setting_declarations import option
from raytriever.core.unknown_names import did_you_mean
from raytriever.models.prompts import read_prompts

POOLINGS = ("mean", "cls", "last", "max", "mean_sqrt_len", "weightedmean")
SIMILARITIES = ("cosine", "dot")
TOWERS = ("shared", "separate")
# Settings that affect embeddings. The other settings affect only training.
READING = (
    "model", "revision", "pooling", "similarity", "towers", "query_prompt", "passage_prompt", "query_prompt_name",
    "passage_prompt_name", "dataset_prompts", "query_length", "passage_length", "truncate_dim", "append_eos",
    "bidirectional",
)  # fmt: skip
APPEND_EOS = ("auto", "yes", "no")


def read_append_eos(value: str | bool) -> str:
    """Return one of `APPEND_EOS`. A bool is accepted, because YAML reads an unquoted yes or no as true or false. Raise
    `ValueError` if the value is none of these."""
    name = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
    if name not in APPEND_EOS:
        raise ValueError(f"choose from {', '.join(APPEND_EOS)}")
    return str(name)


def read_pooling(text: str) -> str:
    """Check a pooling: one mode, or several modes joined by `+`. The vectors of several modes are concatenated. Raise
    `ValueError` if a mode is unknown or repeated."""
    modes = text.split("+")
    unknown = [mode for mode in modes if mode not in POOLINGS]
    if unknown:
        raise ValueError(did_you_mean(unknown[0], POOLINGS))
    if len(set(modes)) < len(modes):
        raise ValueError("give each mode only once")
    return text


@dataclass(frozen=True)
class ModelConfig:
    """Settings of the encoder: the model, how it reads texts, and how it is trained. None: as in the model."""

    model: str = option("minilm", "encoder: minilm, a directory, or a hub name", reads=MODEL, metavar="MODEL")
    revision: str | None = option(None, "commit or tag of a hub model")
    pooling: str | None = option(
        None,
        f"{', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}; or several joined by +",
        reads=read_pooling,
        metavar="MODE",
    )
    similarity: str | None = option(None, "cosine normalizes embeddings, dot does not", choices=SIMILARITIES)
    towers: str | None = option(
        None, "one encoder for queries and passages, or one encoder each (as in DPR)", choices=TOWERS
    )
    query_prompt: str | None = option(None, "text in front of every query")
    passage_prompt: str | None = option(None, "text in front of every passage; {title} in it is the place of the title")
    query_prompt_name: str | None = option(None, "name of a prompt stored in the model, for every query", flag=False)
    passage_prompt_name: str | None = option(
        None, "name of a prompt stored in the model, for every passage", flag=False
    )
    dataset_prompts: Mapping[str, str] | None = option(
        None,
        """prompts of single data sets, such as `{"scifact": {"query": "Find evidence: "}}`""",
        reads=read_prompts,
        metavar="JSON",
        flag=False,
    )
    query_length: int | None = option(None, "largest number of tokens of a query; longer queries are cut", minimum=3)
    passage_length: int | None = option(
        None, "largest number of tokens of a passage; longer passages are cut", minimum=3
    )
    truncate_dim: int | None = option(
        None, "number of first components of an embedding to keep, for Matryoshka encoders", minimum=1
    )
    append_eos: str | None = option(
        None,
        "append the end token to every text: yes, no, or auto, which leaves it to the tokenizer and warns if "
        "last-token pooling gets no end token",
        reads=read_append_eos,
        metavar="|".join(APPEND_EOS),
    )
    bidirectional: bool | None = option(None, "let the tokens of a decoder attend to later tokens too")
    lora_rank: int = option(0, "rank of LoRA adapters; 0 trains the whole encoder", minimum=0)
    lora_alpha: float | None = option(
        None,
        "the output of adapters is multiplied by alpha / rank (default: 2 x rank)",
        above=0,
        needs="lora_rank",
        flag=False,
    )
    lora_dropout: float = option(
        0.0, "dropout in front of the adapters", minimum=0, maximum=0.9, needs="lora_rank", flag=False
    )
    lora_targets: str = option(
        "",
        "layers that get adapters, such as `query,value` (default: every linear layer of the blocks)",
        needs="lora_rank",
        flag=False,
    )
    save_adapters: bool | None = option(
        None, "also write the adapters alone, as `adapters/` in the run directory", needs="lora_rank", flag=False
    )
    activation_checkpointing: bool = option(
        False, "keep only the inputs of the blocks and recompute the rest in backward: less memory, more time"
    )

    def identity(self) -> dict[str, Any]:
        """Return all settings, for embeddings and for training."""
        return asdict(self)


def check_prompt_names(config: ModelConfig) -> None:
    """Raise `ConfigError` if a prompt is given both by text and by name."""
    for name in ("query_prompt", "passage_prompt"):
        if getattr(config, name) is not None and getattr(config, f"{name}_name") is not None:
            where = setting(f"{name}_name")
            raise ConfigError(f"contradicts {setting(name)}", where, "give one of the two")
