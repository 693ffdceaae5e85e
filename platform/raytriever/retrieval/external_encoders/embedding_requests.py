"""Requests for embeddings in OpenAI's format, and the parser of their responses."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.retrieval.external_encoders.openai_client import ServiceError, TemporaryFailure


@dataclass(frozen=True)
class Vectors:
    """Embeddings of the texts of a request, and the number of its tokens (None if the service does not report it)."""

    values: Float32[ndarray, "texts dim"]
    tokens: int | None


def read_vectors(body: bytes, texts: Sequence[str]) -> Vectors:
    """Parse the body of a response, which holds a list of numbers or base64-encoded bytes for each text.

    Raises:
        TemporaryFailure: the body has no embeddings; it may be the error page of a proxy.
        ServiceError: there is not exactly one vector for each text, or vectors are not finite or differ in dimension.
    """
    try:
        whole = json.loads(body)  # noqa: TID251 - every error is caught
        rows, usage = whole["data"], whole.get("usage") or {}
        places = [row.get("index", number) for number, row in enumerate(rows)]
        vectors = [_vector(row["embedding"]) for row in rows]
        count = usage.get("prompt_tokens", usage.get("total_tokens"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise TemporaryFailure("no embeddings") from error
    if sorted(places) != list(range(len(texts))):
        raise ServiceError(f"answers with {len(rows):,} vectors for {len(texts):,} texts", None, "use another service")
    ordered = [vectors[number] for number in np.argsort(places)]
    for text, vector in zip(texts, ordered, strict=True):
        if len(vector) != len(ordered[0]) or not len(vector):
            dims = f"{len(ordered[0])} and {len(vector)}"
            raise ServiceError(f"answers with vectors of {dims} components", None, "use another service")
        if not np.isfinite(vector).all():
            what = f"answers with a vector that is not finite, for the text {text[:60]!r}"
            raise ServiceError(what, None, "remove the text, or use another service")
    return Vectors(np.stack(ordered), count if type(count) is int and count >= 0 else None)


def _vector(value: Any) -> Float32[ndarray, " dim"]:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
    if not isinstance(value, list):
        raise TypeError
    return np.array(value, np.float32).reshape(len(value))


class EmbeddingDialect:
    """Form of the requests that a service accepts; see `openai_client.Dialect`. Some services do not support base64."""

    def __init__(self, model: str, dimensions: int | None) -> None:
        self.version = 0
        self._base: dict[str, Any] = {"model": model, "encoding_format": "base64"}
        if dimensions is not None:
            self._base["dimensions"] = dimensions

    def body(self, texts: Sequence[str]) -> dict[str, Any]:
        """Build the body of a request. A space replaces an empty text, which no service accepts."""
        return {**self._base, "input": [text or " " for text in texts]}

    def adapt(self, sent: int, message: str) -> bool:
        """Stop requesting base64 if an error message names the parameter; see `openai_client.Dialect`."""
        if sent == self.version and ("encoding_format" not in message or "encoding_format" not in self._base):
            return False
        if sent == self.version:
            del self._base["encoding_format"]
            self.version += 1
        return True
