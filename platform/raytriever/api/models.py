"""Public API for encoders and finished training runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from raytriever.api.calls import checked, public, working
from raytriever.core.errors import ConfigError, UserError
from raytriever.core.paths import expanded
from raytriever.core.setting_declarations import without_effect
from raytriever.core.store.remote_folders import copy_of
from raytriever.core.terminal import warn
from raytriever.evaluation.mteb.mteb_encoder import MtebEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import read_prompts
from raytriever.retrieval.external_encoders.endpoint_settings import EncoderConfig, ServiceConfig, endpoint_needs
from raytriever.training.training_settings import PRECISIONS

if TYPE_CHECKING:
    from jaxtyping import Float32
    from numpy import ndarray

    from raytriever.models.inference import TextEncoder


class Model(MtebEncoder):
    """Encoder of queries and passages, made by `load_model`, or the `model` of a `Run`.

    `mteb.evaluate` accepts it as a model too.

    Attributes:
        name: `minilm`, a directory or a hub name.
        config: its settings: prompts, lengths, pooling and similarity.
        precision: precision of encoding as passed to `load_model` (`fp32`, `bf16` or `int8`). By default it is `fp32`
            for a run that was trained in `fp32`, else None, which means the faster of `fp32` and `bf16`.

    Examples:
        >>> model = rt.load_model(encoder)
        >>> model.encode_queries(["what is abc", "what is xyz"]).shape
        (2, 32)
    """

    def __init__(self, config: ModelConfig, precision: str | None = None) -> None:
        self.config, self.name = config, config.model
        self.precision = precision or run_precision(config.model)

    @property
    def dim(self) -> int:
        """Number of components of an embedding."""
        return self.retriever.dim

    @public
    def encode_queries(self, texts: Sequence[str]) -> Float32[ndarray, "texts dim"]:
        """Encode queries.

        Args:
            texts: any number of texts; the model's query prompt is put before each text.

        Returns:
            Embeddings, float32 `[len(texts), dim]`, of length 1 if the similarity is cosine. The score of a query
            and a passage is the dot product of their embeddings.

        Raises:
            ConfigError: `texts` is not a list of strings.
            ModelError: an embedding has NaN or infinity.
        """
        return self._encode(texts, "query")

    @public
    def encode_passages(self, texts: Sequence[str]) -> Float32[ndarray, "texts dim"]:
        """Encode passages; see `encode_queries`. If a passage has a title, put it and a space before the text.

        Args:
            texts: any number of texts; the model's passage prompt is put before each text.

        Returns:
            Embeddings, float32 `[len(texts), dim]`.

        Raises:
            ConfigError: `texts` is not a list of strings.
            ModelError: an embedding has NaN or infinity.
        """
        return self._encode(texts, "passage")

    @cached_property
    def retriever(self) -> TextEncoder:  # type: ignore[override]
        """The loaded encoder with its tokenizer, for inference only; or the client of a service."""

        from raytriever.models.device_and_precision import choose_precision, default_device
        from raytriever.models.directory.hub_or_local import has_files
        from raytriever.retrieval.encoding.load_for_encoding import open_encoder

        device = default_device()
        precision = choose_precision(self.precision, device)
        if self.precision is None and precision == "bf16" and has_files(self.name):
            warn(f"{self.name}: encodes in bf16, which is faster on this device; precision='fp32' is more exact")
        return open_encoder(self.config, precision, device)

    def _encode(self, texts: Sequence[str], side: Any) -> Float32[ndarray, "texts dim"]:
        from raytriever.retrieval.encoding.encode_texts import encode_texts

        checked = check_texts(texts)
        with working(f"encode_{'queries' if side == 'query' else 'passages'}"):
            return encode_texts(self.retriever, checked, side)

    def __repr__(self) -> str:
        return f"Model({self.name!r})"


class Run:
    """Finished training run, made by `train`.

    Attributes:
        path: its directory, with `model/`, `report.html`, `evaluation/` and `config.yaml`.
        metrics: `{"bm25" | "before" | "after": {metric: value}}` on the test split; `before` and `after` are the
            encoder before and after training.

    Examples:
        >>> run = rt.train(data, encoder, max_steps=4, batch_size=8, output="runs/mine")  # doctest: +SKIP
        >>> run.metrics["after"]["ndcg_at_10"]  # doctest: +SKIP
        0.6652
        >>> run.model.encode_queries(["a question"])  # doctest: +SKIP
    """

    def __init__(self, path: Path, metrics: dict[str, dict[str, float]]) -> None:
        self.path, self.metrics = path, metrics

    @cached_property
    def model(self) -> Model:
        """The trained encoder. Its weights are loaded when it is first used to encode."""
        return Model(ModelConfig(model=str(self.path / "model")))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


ModelLike: TypeAlias = str | os.PathLike[str] | Model | Run


@public
def load_model(
    name: str | os.PathLike[str] = "minilm",
    *,
    revision: str | None = None,
    precision: str | None = None,
    pooling: str | None = None,
    similarity: str | None = None,
    towers: str | None = None,
    query_prompt: str | None = None,
    passage_prompt: str | None = None,
    query_prompt_name: str | None = None,
    passage_prompt_name: str | None = None,
    dataset_prompts: Mapping[str, str | Mapping[str, str]] | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
    truncate_dim: int | None = None,
    base_url: str = ServiceConfig.base_url,
    key_variable: str = ServiceConfig.key_variable,
    in_flight: int = ServiceConfig.in_flight,
    requests_per_minute: float | None = None,
    price_in: float = 0.0,
    budget: float | None = None,
    budget_tokens: int | None = None,
) -> Model:
    """Load an encoder for evaluation, mining and search, on the GPU if this process has one.

    Settings that are not passed are read from the model's own files.

    Args:
        name: `minilm` (all-MiniLM-L6-v2, which needs no download), the directory of a transformers or
            sentence-transformers model, a finished run, or a hub name such as `intfloat/e5-base-v2`. `openai:NAME` is
            the model NAME of a service with OpenAI's `/v1/embeddings`. Embeddings are cached: no text is sent twice.
        revision: commit or tag of a hub model.
        precision: Precision of encoding: `fp32`, `bf16` or, on a CPU, `int8`. By default it is `fp32` for a run that
            was trained in `fp32`, else the faster of `fp32` and `bf16`. A warning tells you if that is `bf16`.
        pooling: `mean`, `cls`, `last`, `max`, `mean_sqrt_len` or `weightedmean`; or several of these joined by `+`.
        similarity: `cosine` (embeddings are normalized) or `dot` (embeddings are not normalized).
        towers: `shared`, or `separate` for one encoder of queries and one of passages, as in DPR.
        query_prompt: text put before every query.
        passage_prompt: text put before every passage.
        query_prompt_name: name of a prompt that the model stores, put before every query.
        passage_prompt_name: name of a prompt that the model stores, put before every passage.
        dataset_prompts: prompts for single data sets by name, such as `{"scifact": {"query": "Find evidence: "}}`. They
            take precedence over the other prompts.
        query_length: maximum number of tokens of a query; longer queries are cut.
        passage_length: maximum number of tokens of a passage; longer passages are cut.
        truncate_dim: number of leading components to keep of each embedding, for Matryoshka models. For a service it is
            the parameter `dimensions`.
        base_url: address of the service.
        key_variable: environment variable that holds the service's API key.
        in_flight: largest number of parallel requests.
        requests_per_minute: largest number of requests in a minute.
        price_in: price of a million input tokens.
        budget: largest total cost of the texts in the currency of the price, including the cost of
            these texts in earlier calls.
        budget_tokens: largest number of tokens of all texts together.

    Raises:
        ModelError: there is no such model, or it cannot be loaded or trusted.
        ConfigError: a setting is out of range, or the model stores no prompt with that name.

    Examples:
        >>> model = rt.load_model(encoder, query_prompt="query: ")
        >>> model.dim
        32
    """
    config = EncoderConfig(
        model=os.fspath(name),
        revision=revision,
        pooling=pooling,
        similarity=similarity,
        towers=towers,
        query_prompt=query_prompt,
        passage_prompt=passage_prompt,
        query_prompt_name=query_prompt_name,
        passage_prompt_name=passage_prompt_name,
        dataset_prompts=None if dataset_prompts is None else _read_prompts(dataset_prompts),
        query_length=query_length,
        passage_length=passage_length,
        truncate_dim=truncate_dim,
        base_url=base_url,
        key_variable=key_variable,
        in_flight=in_flight,
        requests_per_minute=requests_per_minute,
        price_in=price_in,
        budget=budget,
        budget_tokens=budget_tokens,
    )
    changed = [field.name for field in fields(ServiceConfig) if getattr(config, field.name) != field.default]
    for error in without_effect(vars(config), changed, endpoint_needs()).values():
        raise error
    precision = precision_of(precision, ())
    model = Model(checked(config), precision)
    with working("load_model"):
        _ = model.retriever  # load it now, so that errors appear here and not at the first use
    return model


def _read_prompts(prompts: Mapping[str, str | Mapping[str, str]]) -> dict[str, str]:
    try:
        return read_prompts(prompts)
    except ValueError as error:
        raise ConfigError("is not a dictionary of prompts", "dataset_prompts", str(error)) from error


def settings_of(model: ModelLike) -> ModelConfig:
    """Return the settings of a model that is passed as a name, a path, a `Model` or a `Run`."""
    if isinstance(model, Model):
        return model.config
    if isinstance(model, Run):
        return model.model.config
    if isinstance(model, str | os.PathLike):
        return checked(EncoderConfig(model=os.fspath(model)))
    raise ConfigError(
        f"has the type {type(model).__name__}", "model", "give a name, a path, or what load_model or train returned"
    )


def loaded(model: ModelLike) -> Model:
    """Return the `Model` itself, or the model of a `Run`. Load a model that is passed as a name or path."""
    if isinstance(model, Model):
        return model
    return model.model if isinstance(model, Run) else Model(settings_of(model))


def run_precision(name: str) -> str | None:
    """Return `fp32` if `name` is the path of a run (or of its model) that was trained in `fp32`, else None."""
    from raytriever.experiments.run.run_directory import CONFIG
    from raytriever.training.run_config import read_settings

    folder = expanded(name)
    for run in (folder, folder.parent) if folder.is_dir() else ():
        if (run / CONFIG).is_file() and (run / "model").is_dir():
            with suppress(UserError):
                training = read_settings(run / CONFIG).get("training")
                return "fp32" if isinstance(training, dict) and training.get("precision") == "fp32" else None
    return None


def precision_of(explicit: str | None, models: Iterable[Any]) -> str | None:
    """Return the precision of a call: `explicit`, or else that of its models, or None. Raise `ConfigError` if the
    precision is unknown, or the models were loaded with different precisions."""
    if explicit not in (None, *PRECISIONS):
        raise ConfigError(f"unknown value {explicit!r}", "precision", "give 'fp32', 'bf16' or 'int8'")
    given = [model.model if isinstance(model, Run) else model for model in models if model is not None]
    precisions = {
        model.precision if isinstance(model, Model) else run_precision(os.fspath(model))
        for model in given
        if isinstance(model, Model | str | os.PathLike)
    } - {None}
    if explicit is None and len(precisions) > 1:
        raise ConfigError("the models have different precisions", "precision", "give 'fp32', 'bf16' or 'int8'")
    return explicit or next(iter(precisions), None)


def check_texts(texts: Iterable[str], argument: str = "texts") -> list[str]:
    """Return a sequence, a Series, a column of `datasets`, an array or an iterator of texts as a list. Tokenizers
    refuse lone surrogates (halves of a UTF-16 pair), so each becomes `?`. Raise `ConfigError` about the argument if it
    is a single text, an unordered collection, a mapping or a table, or an element is not a string."""
    from raytriever.data.hashed_ids import as_utf8

    if isinstance(texts, str | bytes):
        raise ConfigError("is one text, not a list of texts", argument, "put it in a list")
    # Refuse tables: a loop over a frame yields column names, and a loop over a table of `datasets` yields rows.
    is_table = hasattr(texts, "columns") or hasattr(texts, "column_names")
    if is_table or isinstance(texts, Mapping | Set) or not isinstance(texts, Iterable):
        what = f"has the type {type(texts).__name__}, but must be a list"
        raise ConfigError(what, argument, "give a list of texts, or one column of a table")
    checked = list(texts)
    for index, text in enumerate(checked):
        if not isinstance(text, str):
            raise ConfigError(f"text {index} has the type {type(text).__name__}, not str", argument, "give strings")
    return list(map(as_utf8, checked))


def path_of(value: str | os.PathLike[str], name: str = "output") -> Path:
    """Return a path with `~` expanded, or the path of the local copy of a URI. Raises `ConfigError` if it is empty."""
    text = os.fspath(value)
    if not text.strip():
        raise ConfigError("the path is empty", name, "give a path")
    return Path(copy_of(text)).expanduser()
