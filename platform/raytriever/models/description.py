"""Description of an encoder in its model directory: pooling, similarity, towers, prompts and lengths.

Three kinds of directories are read: those of raytriever (`raytriever.json`), those of sentence-transformers
(`modules.json`), and plain transformers checkpoints. For a plain checkpoint, cosine similarity is assumed, and the same
pooling as in sentence-transformers: the last token for a causal language model, else the mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, ModelError, flag_of, setting
from raytriever.core.reading.json_and_yaml import conform
from raytriever.core.setting_declarations import check_options
from raytriever.models.directory.model_files import REMEDY, log_once
from raytriever.models.directory.modules import (
    LIBRARY_FILE,
    MODULES,
    NORMALIZE,
    OWN_FILE,
    Library,
    ModelFiles,
    Module,
    read_pooling,
)
from raytriever.models.model_settings import SIMILARITIES, ModelConfig, check_prompt_names
from raytriever.models.prompts import SIDES, PromptTable, Side, merge_prompts, prompt_by_name

DEFAULT_LENGTH = 512


@dataclass(frozen=True)
class Description:
    """Settings with which a model encodes texts. Lengths are in tokens, including special tokens.

    `truncate_dim` is the number of first components of an embedding to keep, or None for all. `prompts` are the prompts
    of the model by name. If `pool_prompt` is False, the tokens of the prompt are not pooled. `append_eos` (`auto`,
    `yes` or `no`) adds the end token to texts. `bidirectional` lets the tokens of a decoder attend to later tokens, or
    forbids it; None leaves it to `config.json`."""

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
        """Return, by name, the settings that are also settings of `ModelConfig`."""
        known = {field.name for field in fields(ModelConfig)}
        return {name: value for name, value in asdict(self).items() if name in known}

    def summary(self) -> str:
        """Return the settings in one line, such as `mean pooling, cosine, 512 tokens, prompts query/document`."""
        lengths = dict.fromkeys(f"{length:,}" for length in (self.query_length, self.passage_length))
        sides = {"query": self.query_prompt, "document": self.passage_prompt}
        names = [name for name, prompt in sides.items() if prompt]
        parts = [
            f"{self.pooling} pooling",
            self.similarity,
            *([f"first {self.truncate_dim:,} components"] if self.truncate_dim else []),
            f"{' and '.join(lengths)} tokens",
            *([f"prompt{'s' * (len(names) > 1)} {'/'.join(names)}"] if names else []),
            *(["prompts not pooled"] if names and not self.pool_prompt else []),
        ]
        return ", ".join(parts)


def used_settings(config: ModelConfig, description: Description) -> dict[str, object]:
    """Return the settings that an encoder uses: those of the user, else those of its description."""
    return {name: value for name, value in (asdict(config) | description.flags()).items() if value is not None}


def describe(files: ModelFiles, config: ModelConfig) -> Description:
    """Return the description in a model directory, overridden by the user's settings.

    Log one line if a setting overrides the pooling or similarity of the files, or if stored prompts are not used. Raise
    `ModelError` if a file is damaged or describes what raytriever does not support. Raise `ConfigError` if the settings
    name a prompt that the model does not store, or contradict each other."""
    check_prompt_names(config)
    described = stored_description(files, config)
    overrides = {name: value for name in described.flags() if (value := getattr(config, name)) is not None}
    overrides |= _prompt_overrides(described, config)
    if "passage_length" in overrides and "query_length" not in overrides:
        overrides["query_length"] = overrides["passage_length"]
    if files.own is not None or files.has_modules:
        for name in ("pooling", "similarity"):
            value = getattr(described, name)
            if overrides.get(name, value) != value:
                log_once(f"{flag_of(name)} {overrides[name]}: is used for {files.directory}, whose files say {value}.")
    return replace(described, **overrides)


def stored_description(files: ModelFiles, config: ModelConfig) -> Description:
    """Return the description in a model directory. Raise `ModelError` if a file is damaged, or names something that is
    not supported.

    Args:
        config: settings of the user. Depending on them, some files are not needed.
    """
    where = files.directory
    if files.own is not None:
        settings, where = files.own, files.directory / OWN_FILE
    else:
        settings = _sentence_transformers(files, config) if files.has_modules else _plain(files)
    described = conform(settings, str(where), Description, REMEDY, error=ModelError)
    try:
        check_options(replace(ModelConfig(), **described.flags()))
    except ConfigError as error:
        what, setting_name, remedy = error.args
        raise ModelError(f"has an invalid value of {setting_name}: {what}", str(where), remedy) from error
    return described


def head_modules(files: ModelFiles, description: Description, config: ModelConfig) -> dict[Side, tuple[Module, ...]]:
    """Return, for each side, the modules after the pooling that an encoder must run.

    A Normalize module at the end is left out, because cosine similarity normalizes all embeddings. It is kept only if
    the similarity is the dot product both in the model's files and in the settings."""
    is_exact = description.similarity == stored_description(files, config).similarity == "dot"
    heads: dict[Side, tuple[Module, ...]] = {}
    for side, pipeline in files.sides.items():
        modules = list(pipeline.head)
        while not is_exact and modules and modules[-1].kind == NORMALIZE:
            modules.pop()
        heads[side] = tuple(modules)
    return heads


def prompt_table(description: Description, config: ModelConfig) -> PromptTable:
    """Return the table of prompts for any data set."""
    explicit = {name for name, value in vars(config).items() if value is not None}
    fixed = frozenset(side for side in SIDES if explicit & {f"{side}_prompt", f"{side}_prompt_name"})
    own, stored = config.dataset_prompts or {}, description.prompts
    return PromptTable(description.query_prompt, description.passage_prompt, stored, own, fixed)


def _prompt_overrides(described: Description, config: ModelConfig) -> dict[str, Any]:
    stored = {"query": described.query_prompt, "document": described.passage_prompt} | described.prompts
    overrides: dict[str, Any] = {"prompts": merge_prompts(described.prompts, config.dataset_prompts or {})}
    for name in ("query_prompt", "passage_prompt"):
        if (chosen := getattr(config, f"{name}_name")) is not None:
            overrides[name] = prompt_by_name(chosen, stored, name)
    return overrides


def _plain(files: ModelFiles) -> dict[str, Any]:
    transformer = files.sides["passage"].transformer
    sides, config = transformer.lengths, transformer.config
    # In a causal language model, only the state of the last token depends on the whole text.
    is_causal = str((config.architectures or [""])[0]).endswith("ForCausalLM")
    pooling = "last" if is_causal and getattr(config, "is_causal", True) is not False else "mean"
    return {"pooling": pooling, "query_length": sides["query"], "passage_length": sides["passage"]}


def _sentence_transformers(files: ModelFiles, config: ModelConfig) -> dict[str, Any]:
    directory, library, poolings = files.directory, files.library, dict[Side, tuple[str, bool]]()
    kind = library.get("model_type") or "SentenceTransformer"
    if kind != "SentenceTransformer":
        raise ModelError(f"is a {kind}", str(directory), "use a SentenceTransformer model, with one vector per text")
    for side, pipeline in files.sides.items():
        if pipeline.pooling is None:
            raise ModelError("has no Pooling module", str(directory / MODULES), "use a model with a Pooling module")
        poolings[side] = read_pooling(pipeline.pooling)
    if poolings["query"] != poolings["passage"]:
        names = " and ".join(mode for mode, _ in poolings.values())
        raise ModelError(f"pools its two sides differently ({names})", str(directory), "use a model with one pooling")
    pooling, pool_prompt = poolings["query"]
    prompts = {name: prompt or "" for name, prompt in (library.get("prompts") or {}).items()}
    _log_prompts(library, prompts, directory, config)
    query, passage = (files.sides[side].transformer for side in SIDES)
    return {
        "pooling": pooling,
        "similarity": _similarity(library, directory, config),
        "towers": "shared" if query is passage else "separate",
        "query_prompt": prompts.get("query", ""),
        "passage_prompt": prompts.get("document", ""),
        "query_length": query.lengths["query"],
        "passage_length": passage.lengths["passage"],
        "truncate_dim": library.get("truncate_dim"),
        "prompts": prompts,
        "pool_prompt": pool_prompt,
    }


def _similarity(library: Library, directory: Path, config: ModelConfig) -> str:
    """Return the similarity that the files name. For cosine, sentence-transformers writes no name."""
    similarity = library.get("similarity_fn_name") or "cosine"
    if similarity in SIMILARITIES:
        return str(similarity)
    if config.similarity is None:
        remedy = f"choose {setting('similarity')} {' or '.join(SIMILARITIES)}"
        raise ModelError(f"similarity {similarity!r} is not supported", str(directory / LIBRARY_FILE), remedy)
    return config.similarity


def _log_prompts(library: Library, prompts: dict[str, str], directory: Path, config: ModelConfig) -> None:
    """Log prompts that `encode_query` and `encode_document` of sentence-transformers do not use."""
    other = next((name for name in ("passage", "corpus") if prompts.get(name) and "document" not in prompts), None)
    if other and config.passage_prompt is None:
        log_once(
            f"{directory}: has no prompt named document, so passages get none; "
            f"to use its prompt {other}, give {flag_of('passage_prompt_name')} {other}"
        )
    default = library.get("default_prompt_name")
    if default and not prompts.get("query") and not prompts.get("document") and config.query_prompt is None:
        log_once(
            f"{directory}: its default prompt {default} is neither for queries nor for documents, so no text gets it; "
            f"give {flag_of('query_prompt_name')} {default} for queries"
        )
