"""How a request is put: services that call themselves OpenAI-compatible differ in what they take.

A request begins with all that is known: a JSON schema, `max_tokens`, the temperature. What a service refuses by name
is left out or put differently from then on, for all requests: the schema becomes "any JSON object" and then nothing,
`max_tokens` becomes `max_completion_tokens`, and a temperature that may not be set is not. The answers are read by
the same rules.
"""

from __future__ import annotations

from typing import Any

from raytriever.annotation.prompts import Message

_STRUCTURES = ("json_schema", "json_object", "text")
_SAID_OF_STRUCTURE = ("response_format", "json_schema", "json_object", "structured", "guided", "schema", "grammar")


class Dialect:
    """What the service was found to take so far; `version` counts what was given up."""

    def __init__(self, llm: str, temperature: float, max_tokens: int) -> None:
        self.version = 0
        self.structure = _STRUCTURES[0]
        self._limit = "max_tokens"
        self._llm, self._temperature, self._max_tokens = llm, temperature, max_tokens
        self._sends_temperature = True

    def body(self, messages: list[Message], schema: dict[str, Any]) -> dict[str, Any]:
        """The body of a request for an answer that fits a JSON schema."""
        found: dict[str, Any] = {"model": self._llm, "messages": messages, self._limit: self._max_tokens}
        if self._sends_temperature:
            found["temperature"] = self._temperature
        if self.structure == "json_schema":
            named = {"name": "reply", "strict": True, "schema": schema}
            found["response_format"] = {"type": "json_schema", "json_schema": named}
        elif self.structure == "json_object":
            found["response_format"] = {"type": "json_object"}
        return found

    def adapt(self, sent: int, said: str) -> bool:
        """Give up what a refusal names; whether the request may be sent again.

        Args:
            sent: the version the refused request was put in; requests under way may be refused for the same thing.
            said: the service's words.
        """
        if sent != self.version:
            return True
        said = said.lower()
        if "max_completion_tokens" in said and self._limit == "max_tokens":
            self._limit = "max_completion_tokens"
        elif "temperature" in said and self._sends_temperature:
            self._sends_temperature = False
        elif any(word in said for word in _SAID_OF_STRUCTURE) and self.structure != _STRUCTURES[-1]:
            self.structure = _STRUCTURES[_STRUCTURES.index(self.structure) + 1]
        else:
            return False
        self.version += 1
        return True
