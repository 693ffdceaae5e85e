"""Client of an OpenAI-compatible chat-completions service: requests, retries, parsing of responses.

- Temporary failures are retried: refused or dropped connections, timeouts, 408, 409, 425, 429, 5xx, and a body that
  is not a chat completion. The pause is random with an exponentially growing bound (full jitter), and at least
  Retry-After.
- A refused key, an unknown model or used-up credit is a `ServiceError`, which ends the job.
- A request that the service rejects (too long, filtered) is `RequestRefused`, which ends one query.
- `Dialect` leaves out the parameters that a service rejects by name: JSON schema, `max_tokens`, temperature.

The key comes from the environment, goes into one header, and is removed from all text quoted from the service.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from raytriever.annotation.config import CHAT, LOCAL, ServiceConfig
from raytriever.annotation.prompts import Message
from raytriever.errors import UserError, setting
from raytriever.masking import HIDDEN, masked
from raytriever.options import did_you_mean


class TemporaryFailure(Exception):
    """Failure after which the request is sent again, at the earliest after `wait` seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True)
class Reply:
    """Answer of a model: the text, the reason for its end (`stop`, `length`, `content_filter`...), and the input and
    output tokens as counted by the service, None without a count.
    """

    content: str
    finish: str
    read: int | None
    written: int | None


def read_reply(body: bytes) -> Reply:
    """Parse the body of a response. Raise `TemporaryFailure` if it is not a chat completion."""
    try:
        whole = json.loads(body)
        choice = whole["choices"][0]
        message, usage = choice["message"], whole.get("usage") or {}
        content = message.get("content")
        if not isinstance(content, str | None) or not isinstance(usage, dict):
            raise TypeError
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TemporaryFailure("no chat completion") from error
    read, written = (count if type(count) is int and count >= 0 else None for count in counts)
    finish = "refusal" if message.get("refusal") else str(choice.get("finish_reason") or "stop")
    return Reply(content or "", finish[:40], read, written)


def error_message(body: bytes) -> str:
    """Return the message in the body of an error, in the forms that services use."""
    try:
        result = json.loads(body)
        error = result.get("error", result.get("detail", result.get("message", result)))
        if isinstance(error, dict):
            parts = [str(error[name]) for name in ("message", "code", "param") if error.get(name)]
            return " ".join(parts) or json.dumps(error)
        return error if isinstance(error, str) else json.dumps(error)
    except (ValueError, AttributeError, RecursionError):
        return body[:400].decode(errors="replace")


def model_names(body: bytes) -> list[str]:
    """Return the models that a service lists, an empty list if the body is not such a list."""
    try:
        return [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def retry_after(value: str | None) -> float:
    """Return the seconds of a Retry-After header, which holds seconds or a date; 0 if it holds neither."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return seconds if 0 < seconds < 1e9 else 0.0


_STRUCTURES = ("json_schema", "json_object", "text")
_STRUCTURE_WORDS = ("response_format", "json_schema", "json_object", "structured", "guided", "schema", "grammar")


class Dialect:
    """Parameters that the service accepts, as far as known. `version` counts the changes."""

    def __init__(self, llm: str, temperature: float, max_tokens: int) -> None:
        self.version = 0
        self.structure = _STRUCTURES[0]
        self._limit = "max_tokens"
        self._llm, self._temperature, self._max_tokens = llm, temperature, max_tokens
        self._sends_temperature = True

    def body(self, messages: list[Message], schema: dict[str, Any]) -> dict[str, Any]:
        """Build the body of a request for an answer that fits a JSON schema."""
        result: dict[str, Any] = {"model": self._llm, "messages": messages, self._limit: self._max_tokens}
        if self._sends_temperature:
            result["temperature"] = self._temperature
        if self.structure == "json_schema":
            named = {"name": "reply", "strict": True, "schema": schema}
            result["response_format"] = {"type": "json_schema", "json_schema": named}
        elif self.structure == "json_object":
            result["response_format"] = {"type": "json_object"}
        return result

    def adapt(self, sent: int, message: str) -> bool:
        """Drop the parameter that an error names; return True if the request may be sent again.

        `sent` is the `version` of the rejected request: parallel requests may be rejected for the same reason.
        """
        if sent != self.version:
            return True
        message = message.lower()
        if "max_completion_tokens" in message and self._limit == "max_tokens":
            self._limit = "max_completion_tokens"
        elif "temperature" in message and self._sends_temperature:
            self._sends_temperature = False
        elif any(word in message for word in _STRUCTURE_WORDS) and self.structure != _STRUCTURES[-1]:
            self.structure = _STRUCTURES[_STRUCTURES.index(self.structure) + 1]
        else:
            return False
        self.version += 1
        return True


FIRST_BOUND = 0.5  # bound of the first pause in seconds
LONGEST_ASKED = 600.0  # seconds; if a service asks for a longer pause, the job stops
_LARGEST = 4 << 20  # bytes of a response
_TEMPORARY_STATUSES = {408, 409, 425, 429}
_SPARE_CONNECTIONS = 4  # connections are reused, and a service that closes one causes a retry


class ServiceError(UserError):
    """Error of a service: it cannot be reached, does not have the model, or rejects the key."""


class RequestRefused(Exception):
    """Rejection of one request by the service."""


class Service:
    """Service with its connections, as an asynchronous context manager; `key` is a bearer token, if it needs one."""

    def __init__(self, config: ServiceConfig, temperature: float, max_tokens: int, key: str | None) -> None:
        self.dialect = Dialect(config.llm, temperature, max_tokens)
        self.retried: dict[str, int] = {}
        self.stop = asyncio.Event()  # set when the job stops, so that no request is retried
        self._config, self._key = config, key
        self._not_before = 0.0
        self._draw = random.Random()

    async def __aenter__(self) -> Service:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        local = urlsplit(self._config.base).hostname in LOCAL
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=self._config.in_flight + _SPARE_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout),
            trust_env=not local,  # proxies
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def check(self) -> None:
        """Request the list of models, so that a wrong address, key or model name shows before any slow step. Raise
        `ServiceError` if the service cannot be reached, rejects the key, or does not list the model."""
        try:
            status, body, _ = await self._exchange("GET", "/models", None)
        except TemporaryFailure as failure:
            raise self._unreachable(failure) from failure
        if status in (401, 403):
            raise self._key_refused(status, body)
        served_models = model_names(body) if status == 200 else []
        if served_models and self._config.llm not in served_models:
            remedy = did_you_mean(self._config.llm, served_models[:20])
            raise ServiceError(f"the service has no model {self._config.llm!r}", setting("llm"), self._clean(remedy))

    async def chat(self, messages: list[Message], schema: dict[str, Any]) -> Reply:
        """Send one request, and return the answer.

        Raises:
            ServiceError: the service cannot answer this or any other request.
            RequestRefused: the service rejects this request.
        """
        attempt = 0
        while True:
            while (left := self._not_before - time.monotonic()) > 0 and not self.stop.is_set():
                await self._pause(left)
            try:
                sent = self.dialect.version
                status, body, wait = await self._exchange("POST", CHAT, self.dialect.body(messages, schema))
                if status == 200:
                    return read_reply(body)
                if status in (400, 422) and self.dialect.adapt(sent, error_message(body)):
                    continue
                raise self._failure(status, body, wait)
            except TemporaryFailure as failure:
                kind = str(failure)
                self.retried[kind] = self.retried.get(kind, 0) + 1
                if attempt >= self._config.retries or self.stop.is_set():
                    raise self._unreachable(failure) from failure
                if failure.wait > LONGEST_ASKED:
                    raise ServiceError(
                        f"asks to wait for {failure.wait:,.0f} seconds",
                        self._config.base,
                        "run the same command again after that time",
                    ) from failure
                self._not_before = max(self._not_before, time.monotonic() + failure.wait if failure.wait else 0.0)
                bound = min(self._config.longest_wait, FIRST_BOUND * 2.0**attempt)
                await self._pause(failure.wait + self._draw.uniform(0, bound))
                attempt += 1

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), seconds)

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes, float]:
        """Return the status, the body and the seconds of Retry-After."""
        try:
            async with self._session.request(
                method, self._config.base + path, json=body, allow_redirects=False
            ) as response:
                result = bytearray()
                async for block in response.content.iter_chunked(1 << 16):
                    result += block
                    if len(result) > _LARGEST:
                        raise TemporaryFailure("an answer that is too long")
                return response.status, bytes(result), retry_after(response.headers.get("Retry-After"))
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise ServiceError(
                f"has no trusted certificate ({error})", self._config.base, "check its certificate"
            ) from error
        except aiohttp.InvalidURL as error:
            raise ServiceError(
                "is not a valid address", setting("endpoint"), "give one such as http://localhost:8000/v1"
            ) from error
        except TimeoutError as error:
            raise TemporaryFailure(f"no answer within {self._config.timeout:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise TemporaryFailure(f"no connection ({error.os_error.strerror or error.os_error})") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise TemporaryFailure("connection lost") from error

    def _failure(self, status: int, body: bytes, wait: float) -> Exception:
        config, message = self._config, self._clean(error_message(body))
        if status in (401, 403):
            return self._key_refused(status, body)
        if status == 402 or (status == 429 and "insufficient_quota" in message):
            return ServiceError(
                f"the account has no credit ({message})", config.base, "add credit, and run the same command again"
            )
        if status in _TEMPORARY_STATUSES or status >= 500:
            return TemporaryFailure(f"status {status}", wait)
        if status == 404 and (config.llm in message or "model" in message.lower()):
            return ServiceError(
                f"the service has no model {config.llm!r} ({message})", setting("llm"), "give a model that it lists"
            )
        if status in (404, 405):
            return ServiceError(
                f"nothing answers at {config.base}{CHAT} ({status})",
                setting("endpoint"),
                "the address often ends in /v1",
            )
        if 300 <= status < 400:
            return ServiceError(f"redirects requests ({status})", config.base, "give the address of the redirect")
        return RequestRefused(f"status {status}: {message}")

    def _key_refused(self, status: int, body: bytes) -> ServiceError:
        name = self._config.key_variable
        remedy = (
            f"check the key in {name}"
            if self._key
            else f"store a key in {name}, or give another {setting('key_variable')}"
        )
        return ServiceError(
            f"rejects the key ({status}: {self._clean(error_message(body))})", self._config.base, remedy
        )

    def _unreachable(self, failure: TemporaryFailure) -> ServiceError:
        remedy = f"check {setting('endpoint')} and the service, then run the same command again"
        return ServiceError(f"gives no answer: {failure}", self._config.base, remedy)

    def _clean(self, text: str) -> str:
        if self._key:
            text = text.replace(self._key, HIDDEN)
        return " ".join(masked(text).split())[:200]
