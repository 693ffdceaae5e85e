"""One request to an OpenAI-compatible service: sent, sent again where it failed in passing, and read.

- In passing fail: connections that are refused or dropped, answers that take too long, 408, 409, 425, 429, 5xx, and
  what is no chat completion at all. Between attempts lies a time drawn from 0 to an exponentially growing bound (full
  jitter), never less than the service asks for by Retry-After; while it asks for that, no other request is sent
  either.
- A key that is refused, a model that is not there, credit that is used up: `ServiceError`, which ends the job in one
  line.
- A request that the service takes exception to (too long, filtered): `Refused`, which ends one query.
- Services differ in what they take: `Dialect`.

The key comes from the environment, goes into one header, and is taken out of whatever is quoted from the service.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from raytriever.annotation.config import CHAT, LOCAL, ServiceConfig
from raytriever.annotation.dialect import Dialect
from raytriever.annotation.prompts import Message
from raytriever.annotation.protocol import Passing, Reply, error_message, model_names, read_reply, retry_after
from raytriever.errors import UserError
from raytriever.masking import HIDDEN, masked
from raytriever.options import did_you_mean

FIRST_BOUND = 0.5  # seconds within which a request is sent a second time
LONGEST_ASKED = 600.0  # a service that asks for a longer wait wants the job to stop
_LARGEST = 4 << 20  # bytes of a response
_PASSING = {408, 409, 425, 429}
_KEPT_OPEN = 4  # connections are reused; a service that closes them costs a retry


class ServiceError(UserError):
    """A service cannot be reached, knows no such model, or takes no such key."""


class Refused(Exception):
    """The service takes exception to one request."""


class Service:
    """A service with its connections; an asynchronous context manager.

    Args:
        config: where it is, and how patiently it is asked.
        temperature, max_tokens: of every request.
        key: goes along as bearer; None for a service that wants none.
    """

    def __init__(self, config: ServiceConfig, temperature: float, max_tokens: int, key: str | None) -> None:
        self.dialect = Dialect(config.llm, temperature, max_tokens)
        self.retried: dict[str, int] = {}
        self.stop = asyncio.Event()  # set where the job ends: what waits to be sent again is given up
        self._config, self._key = config, key
        self._not_before = 0.0
        self._draw = random.Random()

    async def __aenter__(self) -> Service:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        local = urlsplit(self._config.base).hostname in LOCAL
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=self._config.in_flight + _KEPT_OPEN),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout),
            trust_env=not local,  # proxies
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def check(self) -> None:
        """Ask for the list of models, where there is one: a wrong address, key or name shows before any work is done.

        Raises:
            ServiceError: the service cannot be reached, refuses the key, or lists other models.
        """
        try:
            status, body, _ = await self._exchange("GET", "/models", None)
        except Passing as failure:
            raise self._unreachable(failure) from failure
        if status in (401, 403):
            raise self._key_refused(status, body)
        known = model_names(body) if status == 200 else []
        if known and self._config.llm not in known:
            remedy = did_you_mean(self._config.llm, known[:20])
            raise ServiceError(f"the service has no model {self._config.llm!r}", "--llm", self._shown(remedy))

    async def chat(self, messages: list[Message], schema: dict[str, Any]) -> Reply:
        """The answer to one request.

        Raises:
            ServiceError: it cannot be had, and no other answer could.
            Refused: this one cannot be had.
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
            except Passing as failure:
                kind = str(failure)
                self.retried[kind] = self.retried.get(kind, 0) + 1
                if attempt >= self._config.retries or self.stop.is_set():
                    raise self._unreachable(failure) from failure
                if failure.wait > LONGEST_ASKED:
                    raise ServiceError(
                        f"asks to wait for {failure.wait:,.0f} seconds",
                        self._config.base,
                        "give the command again then",
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
        """Status, body, and the seconds of Retry-After."""
        try:
            async with self._session.request(
                method, self._config.base + path, json=body, allow_redirects=False
            ) as response:
                found = bytearray()
                async for block in response.content.iter_chunked(1 << 16):
                    found += block
                    if len(found) > _LARGEST:
                        raise Passing("an answer without end")
                return response.status, bytes(found), retry_after(response.headers.get("Retry-After"))
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise ServiceError(
                f"no trusted connection ({error})", self._config.base, "check its certificate"
            ) from error
        except aiohttp.InvalidURL as error:
            raise ServiceError("is no address", "--endpoint", "give one such as http://localhost:8000/v1") from error
        except TimeoutError as error:
            raise Passing(f"no answer within {self._config.timeout:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise Passing(f"no connection ({error.os_error.strerror or error.os_error})") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Passing("connection lost") from error

    def _failure(self, status: int, body: bytes, wait: float) -> Exception:
        config, said = self._config, self._shown(error_message(body))
        if status in (401, 403):
            return self._key_refused(status, body)
        if status == 402 or (status == 429 and "insufficient_quota" in said):
            return ServiceError(f"the account has no credit ({said})", config.base, "top it up and go on")
        if status in _PASSING or status >= 500:
            return Passing(f"status {status}", wait)
        if status == 404 and (config.llm in said or "model" in said.lower()):
            return ServiceError(f"the service has no model {config.llm!r} ({said})", "--llm", "give one that it lists")
        if status in (404, 405):
            return ServiceError(
                f"nothing answers at {config.base}{CHAT} ({status})", "--endpoint", "the address often ends in /v1"
            )
        if 300 <= status < 400:
            return ServiceError(f"sends requests elsewhere ({status})", config.base, "give the address it names")
        return Refused(f"status {status}: {said}")

    def _key_refused(self, status: int, body: bytes) -> ServiceError:
        name = self._config.key_variable
        remedy = f"check the key in {name}" if self._key else f"put a key into {name}, or name another --key-variable"
        return ServiceError(
            f"refuses the key ({status}: {self._shown(error_message(body))})", self._config.base, remedy
        )

    def _unreachable(self, failure: Passing) -> ServiceError:
        return ServiceError(
            f"gives no answer: {failure}", self._config.base, "check --endpoint and the service, then go on"
        )

    def _shown(self, text: str) -> str:
        """What may be shown of a text of the service."""
        if self._key:
            text = text.replace(self._key, HIDDEN)
        return " ".join(masked(text).split())[:200]
