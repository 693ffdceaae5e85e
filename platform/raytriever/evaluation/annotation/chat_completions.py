"""Client for chat completions of an OpenAI-compatible service. It learns which parameters the service accepts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from raytriever.core.errors import setting
from raytriever.evaluation.annotation.annotation_settings import LlmConfig
from raytriever.evaluation.annotation.llm_prompts import Message
from raytriever.retrieval.external_encoders.endpoint_settings import CHAT
from raytriever.retrieval.external_encoders.openai_client import Client, TemporaryFailure


@dataclass(frozen=True)
class Reply:
    """Answer of a model: its text, the reason why it ended (`stop`, `length`, `content_filter`...), and the numbers of
    input and output tokens. A number is None if the service does not report it."""

    content: str
    finish: str
    read: int | None
    written: int | None


def read_reply(body: bytes) -> Reply:
    """Parse the body of a response. Raise `TemporaryFailure` if it is not a chat completion."""
    try:
        whole = json.loads(body)  # noqa: TID251 - every error is caught
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


_STRUCTURES = ("json_schema", "json_object", "text")
_STRUCTURE_WORDS = ("response_format", "json_schema", "json_object", "structured", "guided", "schema", "grammar")


class ChatDialect:
    """Form of the requests that a service accepts, learned from its errors. Each change increases `version` by one."""

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
        """Drop or replace the parameter that an error message names. Return True if the request may be sent again.

        `sent` is the `version` of the rejected request. If the version is newer now, nothing more is changed."""
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


class Service(Client):
    """Service of a language model."""

    def __init__(self, config: LlmConfig, temperature: float, max_tokens: int, key: str | None) -> None:
        super().__init__(config, config.llm, setting("llm"), CHAT, key)
        self.dialect = ChatDialect(config.llm, temperature, max_tokens)

    async def chat(self, messages: list[Message], schema: dict[str, Any]) -> Reply:
        """Send one request, and return the answer; see `Client.post`."""
        return await self.post(self.dialect, lambda: self.dialect.body(messages, schema), read_reply)
