"""Settings of annotation. This module imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.paths import CANDIDATES, PROMPTS
from raytriever.core.setting_declarations import option
from raytriever.retrieval.external_encoders.endpoint_settings import ServiceConfig

BM25, DENSE = "bm25", "dense"


@dataclass(frozen=True)
class AnnotationConfig:
    """Settings of the candidates, of the requests to the language model, and of the use of its answers."""

    candidates: str = option(
        BM25,
        f"sources of candidates, separated by commas: {BM25}, {DENSE} (the encoder of {flag_of('model')}), paths of "
        "TREC runs",
        reads=CANDIDATES,
        metavar="NAME,PATH",
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
        metavar="DIR",
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
        0.1, "largest fraction of queries without an annotation; the job stops if it is exceeded", minimum=0, maximum=1
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
class LlmConfig(ServiceConfig):
    """Settings of the language model: its service, timeouts, retries and budget."""

    llm: str = option("", "name of the model at the service")
    price_out: float = option(0.0, "price of a million output tokens", minimum=0)

    @property
    def prices(self) -> tuple[float, float]:
        """Prices of a million input tokens and of a million output tokens."""
        return self.price_in, self.price_out
