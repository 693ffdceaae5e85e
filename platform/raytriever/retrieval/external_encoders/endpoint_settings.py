"""Settings of a service with OpenAI's API, and of an encoder that may use it. This module imports nothing heavy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from raytriever.core.errors import ConfigError, setting
from raytriever.core.masking import mask_variable
from raytriever.core.paths import OPENAI
from raytriever.core.setting_declarations import Need, option
from raytriever.models.model_settings import READING, ModelConfig

# Paths of requests below the base address. The user may also pass a full address.
CHAT, EMBEDDINGS = "/chat/completions", "/embeddings"
LOCAL = ("localhost", "127.0.0.1", "::1")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ServiceConfig:
    """Settings of a service: address, key, timeouts, retries and budget."""

    base_url: str = option(
        "https://api.openai.com/v1", "address of an OpenAI-compatible service, such as http://localhost:8000/v1"
    )
    key_variable: str = option(
        "OPENAI_API_KEY",
        "environment variable that holds the key; leave the variable unset if the service needs no key",
    )
    in_flight: int = option(16, "number of parallel requests", minimum=1, maximum=4096)
    requests_per_minute: float | None = option(None, "largest number of requests in a minute", above=0)
    timeout: float = option(120.0, "timeout of a request in seconds", above=0)
    retries: int = option(
        6, "times that a request is sent again after a temporary failure, with growing pauses", minimum=0
    )
    longest_wait: float = option(
        60.0, "longest pause between two retries in seconds, unless the service asks for more", above=0, needs="retries"
    )
    price_in: float = option(0.0, "price of a million input tokens", minimum=0)
    budget: float | None = option(
        None, "largest cost of the command over all its runs, in the currency of the prices", above=0
    )
    budget_tokens: int | None = option(None, "largest number of tokens of the command over all its runs", minimum=1)

    @property
    def base(self) -> str:
        """Address of the service without a path such as `/embeddings` or `/chat/completions`."""
        return self.base_url.rstrip("/").removesuffix(CHAT).removesuffix(EMBEDDINGS)

    @property
    def prices(self) -> tuple[float, float]:
        """Prices of a million input tokens and of a million output tokens."""
        return self.price_in, 0.0


# Settings of a service that do not affect an embedding.
_PACE = tuple(field.name for field in fields(ServiceConfig) if field.name != "base_url")
# Settings of `ModelConfig` that apply to an endpoint.
_READING = ("model", "similarity", "query_prompt", "passage_prompt", "dataset_prompts", "truncate_dim")
# Names of the settings of an encoder: those of the model, and those of the service.
ENCODER = (*READING, *(field.name for field in fields(ServiceConfig)))


@dataclass(frozen=True)
class EncoderConfig(ServiceConfig, ModelConfig):
    """Settings of an encoder for inference. The encoder is a model or the endpoint `openai:NAME`."""

    def identity(self) -> dict[str, Any]:
        """Return the settings that affect an embedding."""
        service = () if self.model.startswith(OPENAI) else ("base_url",)
        return {name: value for name, value in asdict(self).items() if name not in (*_PACE, *service)}


def endpoint_needs(name: str = "model") -> dict[str, tuple[Need, ...]]:
    """Return, for each setting of a service, when it has an effect: only if the setting `name` names an endpoint."""
    return {field.name: (Need(name, OPENAI),) for field in fields(ServiceConfig)}


def check_service(config: ServiceConfig) -> None:
    """Raise `ConfigError` for an invalid address or a budget without prices."""
    try:
        address = urlsplit(config.base_url)
        is_valid = address.scheme in ("http", "https") and address.hostname is not None and address.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError("is not a valid address", setting("base_url"), "give one such as http://localhost:8000/v1")
    if address.username is not None or address.password is not None or address.query or address.fragment:
        remedy = f"remove the rest; a key belongs in the variable that {setting('key_variable')} names"
        raise ConfigError("contains more than host and path", setting("base_url"), remedy)
    # A user may pass the key itself by mistake, so no message may show this value.
    if not _VARIABLE.fullmatch(config.key_variable):
        what = "is not the name of an environment variable"
        raise ConfigError(what, setting("key_variable"), "give the name, never the key")
    mask_variable(config.key_variable)
    if config.budget is not None and not any(config.prices):
        remedy = f"give {setting('price_in')}, or {setting('budget_tokens')}"
        raise ConfigError("needs the prices of tokens", setting("budget"), remedy)


def check_reading(config: EncoderConfig) -> None:
    """Raise `ConfigError` for a setting that has no effect on an endpoint."""
    for name in READING:
        if name not in _READING and getattr(config, name) is not None:
            raise ConfigError(f"has no effect on {config.model}", setting(name), "leave it out: the service decides it")


def read_service_key(config: ServiceConfig, report: Callable[[str], None]) -> str | None:
    """Return the key from the environment, or None if the default variable is not set.

    Raise `ConfigError` if another variable is named but not set, or if its value cannot be sent."""
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        if config.key_variable != ServiceConfig().key_variable:
            what = "names an environment variable that is not set or empty"
            raise ConfigError(what, setting("key_variable"), "export the variable, or name another one")
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        what = "names a variable whose value is not a valid key"
        raise ConfigError(what, setting("key_variable"), "set this variable to the key alone")
    address = urlsplit(config.base)
    if address.scheme == "http" and address.hostname not in LOCAL:
        report(f"The key is sent to {address.hostname} without encryption. Use https in an untrusted network.")
    return key
