"""Client of a service with OpenAI's API: requests, rate limit, retries and errors.

- Temporary failures are retried: refused or dropped connections, timeouts, statuses 408, 409, 425, 429 and 5xx, and a
  body that is not a response. Pauses are random up to a bound that grows exponentially, plus Retry-After.
- A rejected key, an unknown model or exhausted credit raises `ServiceError`, which ends the job.
- A single rejected request (too long, filtered) raises `RequestRefused`.
- A `Dialect` leaves out a parameter after the service has rejected it by name.

The key comes from the environment and is sent in one header. It is removed from all text quoted from the service."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp

from raytriever.core.errors import UserError, setting
from raytriever.core.masking import HIDDEN, masked
from raytriever.core.unknown_names import did_you_mean
from raytriever.retrieval.external_encoders.endpoint_settings import LOCAL, ServiceConfig

T = TypeVar("T")


class TemporaryFailure(Exception):
    """Failure after which the request is sent again, after at least `wait` seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def error_message(body: bytes) -> str:
    """Return the message in the body of an error, in any of the formats that services use."""
    try:
        result = json.loads(body)  # noqa: TID251 - every error is caught
        error = result.get("error", result.get("detail", result.get("message", result)))
        if isinstance(error, dict):
            parts = [str(error[name]) for name in ("message", "code", "param") if error.get(name)]
            return " ".join(parts) or json.dumps(error)
        return error if isinstance(error, str) else json.dumps(error)
    except (ValueError, AttributeError, RecursionError):
        return body[:400].decode(errors="replace")


def model_names(body: bytes) -> list[str]:
    """Return the models that a service lists, or an empty list if the body is not such a list."""
    try:
        return [str(model["id"]) for model in json.loads(body)["data"]]  # noqa: TID251 - every error is caught
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def retry_after(value: str | None) -> float:
    """Return the wait in seconds that a Retry-After header (seconds or a date) asks for; 0 for other values."""
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


FIRST_BOUND = 0.5  # bound of the first pause in seconds
LONGEST_ASKED = 600.0  # seconds; the job stops if a service asks for a longer pause
_LARGEST = 64 << 20  # largest number of bytes of a response
_TEMPORARY_STATUSES = {408, 409, 425, 429}
_SPARE_CONNECTIONS = 4  # connections that may stay idle; a request on one that the service has closed is retried


class ServiceError(UserError):
    """Error of a service: it cannot be reached, does not have the model, or rejects the key."""


class RequestRefused(Exception):
    """Rejection of one request by the service."""


class Dialect(Protocol):
    """Form of the requests that a service accepts, learned from its errors."""

    version: int

    def adapt(self, sent: int, message: str) -> bool:
        """Drop the parameter that an error message names. Return True if the request may be sent again.

        `sent` is the `version` of the rejected request. If `version` is newer, the parameter may be dropped already."""


class Client:
    """Asynchronous context manager with the connections to a service.

    Args:
        named_by: setting that holds the name of the model.
        path: path of requests below the base address.
        key: bearer token, if the service needs one.
    """

    def __init__(self, config: ServiceConfig, model: str, named_by: str, path: str, key: str | None) -> None:
        self.retried: dict[str, int] = {}
        self.stop = asyncio.Event()  # set when the job stops, so that no request is retried
        self._config, self._key = config, key
        self._model, self._named_by, self._path = model, named_by, path
        self._not_before = self._next_turn = 0.0
        self._random = random.Random()

    async def __aenter__(self) -> Client:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        local = urlsplit(self._config.base).hostname in LOCAL
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=self._config.in_flight + _SPARE_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout),
            trust_env=not local,  # a remote service may need the proxies that the environment names
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def check(self) -> None:
        """Request the list of models, so that a wrong address, key or model name is found before any slow step.

        Raise `ServiceError` if the service cannot be reached, rejects the key, or does not list the model."""
        try:
            status, body, _ = await self._exchange("GET", "/models", None)
        except TemporaryFailure as failure:
            raise self._unreachable(failure) from failure
        if status in (401, 403):
            raise self._key_refused(status, body)
        served_models = model_names(body) if status == 200 else []
        if served_models and self._model not in served_models:
            remedy = did_you_mean(self._model, served_models[:20])
            raise ServiceError(f"the service has no model {self._model!r}", self._named_by, self._clean(remedy))

    async def post(self, dialect: Dialect, body: Callable[[], dict[str, Any]], read: Callable[[bytes], T]) -> T:
        """Send one request and return the response, parsed by `read`.

        Args:
            dialect: form of the requests that the service accepts.
            body: function that builds the request for the current dialect.
            read: function that parses a body; it may raise `TemporaryFailure`.

        Raises:
            ServiceError: the service cannot answer this or any other request.
            RequestRefused: the service rejects this request.
        """
        attempt = 0
        while True:
            turn = self._turn()
            while (left := max(turn, self._not_before) - time.monotonic()) > 0 and not self.stop.is_set():
                await self._pause(left)
            try:
                sent = dialect.version
                status, content, wait = await self._exchange("POST", self._path, body())
                if status == 200:
                    return read(content)
                if status in (400, 422) and dialect.adapt(sent, error_message(content)):
                    continue
                raise self._failure(status, content, wait)
            except TemporaryFailure as failure:
                kind = str(failure)
                self.retried[kind] = self.retried.get(kind, 0) + 1
                if attempt >= self._config.retries or self.stop.is_set():
                    raise self._unreachable(failure) from failure
                if failure.wait > LONGEST_ASKED:
                    what = f"asks to wait for {failure.wait:,.0f} seconds"
                    remedy = "run the same command again after that time"
                    raise ServiceError(what, self._config.base, remedy) from failure
                self._not_before = max(self._not_before, time.monotonic() + failure.wait if failure.wait else 0.0)
                bound = min(self._config.longest_wait, FIRST_BOUND * 2.0**attempt)
                await self._pause(failure.wait + self._random.uniform(0, bound))
                attempt += 1

    def _turn(self) -> float:
        """Reserve the next free time for a request and return this time. A rate limit spreads requests evenly."""
        if self._config.requests_per_minute is None:
            return self._not_before
        now = time.monotonic()
        turn = max(self._not_before, self._next_turn, now)
        self._next_turn = turn + 60 / self._config.requests_per_minute
        return turn

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):  # a pause usually ends by this timeout; `stop` ends it early
                await asyncio.wait_for(self.stop.wait(), seconds)

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes, float]:
        """Send a request. Return the status, the body and the seconds of Retry-After."""
        try:
            async with self._session.request(
                method, self._config.base + path, json=body, allow_redirects=False
            ) as response:
                result = bytearray()
                async for block in response.content.iter_chunked(1 << 16):
                    result += block
                    if len(result) > _LARGEST:
                        raise TemporaryFailure(f"a response of over {_LARGEST:,} bytes")
                return response.status, bytes(result), retry_after(response.headers.get("Retry-After"))
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            what = f"has no trusted certificate ({error})"
            raise ServiceError(what, self._config.base, "give the service a valid certificate") from error
        except aiohttp.InvalidURL as error:
            remedy = "give one such as http://localhost:8000/v1"
            raise ServiceError("is not a valid address", setting("base_url"), remedy) from error
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
            remedy = "add credit, and run the same command again"
            return ServiceError(f"the account has no credit ({message})", config.base, remedy)
        if status in _TEMPORARY_STATUSES or status >= 500:
            return TemporaryFailure(f"status {status}", wait)
        if status == 404 and (self._model in message or "model" in message.lower()):
            what = f"the service has no model {self._model!r} ({message})"
            return ServiceError(what, self._named_by, "give a model that the service lists")
        if status in (404, 405):
            what = f"nothing answers at {config.base}{self._path} ({status})"
            return ServiceError(what, setting("base_url"), "correct the address, which often ends in /v1")
        if 300 <= status < 400:
            return ServiceError(f"redirects requests ({status})", config.base, "give the address to which it redirects")
        return RequestRefused(f"status {status}: {message}")

    def _key_refused(self, status: int, body: bytes) -> ServiceError:
        name, message = self._config.key_variable, self._clean(error_message(body))
        without = "needs a key", f"set the variable {name} to a key, or give another {setting('key_variable')}"
        what, remedy = ("rejects the key", f"check the key in {name}") if self._key else without
        return ServiceError(f"{what} ({status}: {message})", self._config.base, remedy)

    def _unreachable(self, failure: TemporaryFailure) -> ServiceError:
        remedy = f"check {setting('base_url')} and the service, then run the same command again"
        return ServiceError(f"gives no usable answer: {failure}", self._config.base, remedy)

    def _clean(self, text: str) -> str:
        if self._key:
            text = text.replace(self._key, HIDDEN)
        return " ".join(masked(text).split())[:200]
