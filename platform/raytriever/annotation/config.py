"""Settings of annotation. The module imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from raytriever.errors import ConfigError, flag_of, setting
from raytriever.masking import mask_variable
from raytriever.options import option
from raytriever.paths import CANDIDATES, PROMPTS

BM25, DENSE = "bm25", "dense"
# Path of requests after the base address. A full address is accepted too.
CHAT = "/chat/completions"
LOCAL = ("localhost", "127.0.0.1", "::1")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class AnnotationConfig:
    """Retrievers of candidates, questions to the language model, and the use of its answers."""

    candidates: str = option(
        BM25,
        f"sources of candidates, separated by commas: {BM25}, {DENSE} (the encoder of {flag_of('model')}), paths of "
        "TREC runs",
        reads=CANDIDATES,
        form="NAME,PATH",
    )
    depth: int = option(20, "largest number of passages of a query from each source", minimum=1)
    passages_per_prompt: int = option(
        20, "candidates in one request for relevance; more candidates need several requests", minimum=1
    )
    passage_characters: int = option(2000, "characters of a passage in the prompt; longer passages are cut", minimum=50)
    max_queries: int | None = option(
        None,
        "largest number of queries to annotate; the selection does not depend on the order of the data set",
        minimum=1,
    )
    prompts: str = option(
        "",
        "folder of prompts that replace the built-in prompts of the same name (docs/how-to/annotate.md)",
        reads=PROMPTS,
        form="DIR",
    )
    temperature: float = option(
        0.0, "sampling temperature of the model; 0 gives its most likely answer", minimum=0, maximum=2
    )
    max_tokens: int = option(1024, "largest number of tokens in one answer; a reasoning model needs more", minimum=16)
    repairs: int = option(1, "times that a request is repeated with the error after an invalid answer", minimum=0)
    agreed: str = option(
        "human",
        "source of a positive that the data set and the model agree on: human, so that a group begins with a human "
        "positive, or llm",
        choices=("human", "llm"),
    )
    max_failed: float = option(
        0.1, "largest share of queries without an annotation; the job stops if it is exceeded", minimum=0, maximum=1
    )

    @property
    def retrievers(self) -> tuple[str, ...]:
        """Retrievers of candidates, in the given order."""
        return tuple(name for part in self.candidates.split(",") if (name := part.strip()))

    def check(self) -> None:
        """Raise `ConfigError` for missing or repeated sources of candidates."""
        if not self.retrievers:
            raise ConfigError("is empty", setting("candidates"), f"give {BM25}, {DENSE} or the path of a run")
        for name in self.retrievers:
            if self.retrievers.count(name) > 1:
                raise ConfigError(f"contains {name!r} twice", setting("candidates"), "give each source once")


@dataclass(frozen=True)
class ServiceConfig:
    """Language model, its service, timeouts and retries, and the budget."""

    endpoint: str = option("", "address of an OpenAI-compatible service, such as http://localhost:8000/v1")
    llm: str = option("", "name of the model at the service")
    key_variable: str = option(
        "OPENAI_API_KEY",
        "environment variable that holds the key; leave the variable unset if the service needs no key",
    )
    in_flight: int = option(16, "number of parallel requests", minimum=1, maximum=4096)
    timeout: float = option(120.0, "timeout of a request in seconds", above=0)
    retries: int = option(
        6, "times that a request is sent again after a temporary failure, with growing pauses", minimum=0
    )
    longest_wait: float = option(
        60.0, "longest pause between two retries in seconds, unless the service asks for more", above=0, needs="retries"
    )
    price_in: float = option(0.0, "price of a million input tokens", minimum=0)
    price_out: float = option(0.0, "price of a million output tokens", minimum=0)
    budget: float | None = option(
        None, "largest cost of the job over all its runs, in the currency of the prices", above=0
    )
    budget_tokens: int | None = option(
        None, "largest number of input and output tokens of the job over all its runs", minimum=1
    )

    @property
    def base(self) -> str:
        """Address without the path of requests."""
        return self.endpoint.rstrip("/").removesuffix(CHAT)


def check_service(config: ServiceConfig) -> None:
    """Raise `ConfigError` for an invalid address, a missing model name or a budget without prices."""
    if not config.endpoint:
        remedy = "give the address of an OpenAI-compatible service, such as http://localhost:8000/v1"
        raise ConfigError("is missing", setting("endpoint"), remedy)
    try:
        address = urlsplit(config.endpoint)
        is_valid = address.scheme in ("http", "https") and address.hostname is not None and address.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError("is not a valid address", setting("endpoint"), "give one such as http://localhost:8000/v1")
    if address.username is not None or address.password is not None or address.query or address.fragment:
        remedy = f"store a key in the variable that {setting('key_variable')} names"
        raise ConfigError("contains more than host and path", setting("endpoint"), remedy)
    if not config.llm.strip():
        raise ConfigError("is missing", setting("llm"), "give the name of the model at the service")
    # A user may pass the key itself, so no message shows this value.
    if not _VARIABLE.fullmatch(config.key_variable):
        what = "is not the name of an environment variable"
        raise ConfigError(what, setting("key_variable"), "give the name, never the key")
    mask_variable(config.key_variable)
    if config.budget is not None and not (config.price_in or config.price_out):
        remedy = f"give {setting('price_in')} and {setting('price_out')}, or {setting('budget_tokens')}"
        raise ConfigError("needs the prices of tokens", setting("budget"), remedy)


def read_service_key(config: ServiceConfig, report: Callable[[str], None]) -> str | None:
    """Return the key from the environment, None if the default variable is not set. Raise `ConfigError` if another
    variable is named but not set, or its value cannot be sent."""
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        if config.key_variable != ServiceConfig().key_variable:
            what = "names an environment variable that is not set"
            raise ConfigError(what, setting("key_variable"), "export it, or name another")
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        what = "names a variable with a character that is invalid in a key"
        raise ConfigError(what, setting("key_variable"), "set it to the key alone")
    address = urlsplit(config.base)
    if address.scheme == "http" and address.hostname not in LOCAL:
        report(f"The key is sent to {address.hostname} without encryption. Use https in an untrusted network.")
    return key
