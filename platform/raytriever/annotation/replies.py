"""What an answer may say: numbers of passages that were shown, or a text. Anything else is malformed.

Where a service holds a model to a JSON schema the answer is one object. Where it does not, the object is looked for:
after what a model thought aloud (`</think>`), within a fence of back-quotes, among other words. Its content is held
to the same rules either way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from raytriever.annotation.prompts import ANSWER, RELEVANCE, UTILITY

FIELDS = {RELEVANCE: "relevant", ANSWER: "answer", UTILITY: "useful"}
# A pseudo-answer goes into the next prompt: no longer than a long passage.
LONGEST_ANSWER = 4000
_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_BRACES = 200  # the last of an answer at which an object is looked for: what never ends costs no time
_DECODER = json.JSONDecoder()


class Malformed(Exception):
    """An answer that says nothing of use; its message says why, in words that may be shown to the model."""


def schema_of(stage: str, count: int) -> dict[str, Any]:
    """The JSON schema of a stage's answer over `count` passages, in the subset that strict services take."""
    if stage == ANSWER:
        value: dict[str, Any] = {"type": "string"}
    else:
        value = {"type": "array", "items": {"type": "integer", "enum": list(range(1, count + 1))}}
    name = FIELDS[stage]
    return {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}


def read_numbers(stage: str, content: str, count: int) -> list[int]:
    """The passages an answer names, as places from 0 in the order named; a passage named twice counts once.

    Raises:
        Malformed: there is no such list, or something in it is no number of a passage that was shown.
    """
    values = _field(stage, content)
    if not isinstance(values, list):
        raise Malformed(f'"{FIELDS[stage]}" is no list')
    for value in values:
        if type(value) is not int or not 1 <= value <= count:
            raise Malformed(f'"{FIELDS[stage]}" holds {json.dumps(value)[:40]}, which is no number from 1 to {count}')
    return [value - 1 for value in dict.fromkeys(values)]


def numbers_of(stage: str, count: int) -> Callable[[str], list[int]]:
    """`read_numbers` for a stage over `count` passages."""
    return lambda content: read_numbers(stage, content, count)


def read_answer(content: str) -> str:
    """The pseudo-answer, cut at `LONGEST_ANSWER` characters; raises `Malformed` where there is none."""
    text = _field(ANSWER, content)
    if not isinstance(text, str) or not text.strip():
        raise Malformed(f'"{FIELDS[ANSWER]}" is no text')
    return text.strip()[:LONGEST_ANSWER].encode("utf-8", "replace").decode()


def _field(stage: str, content: str) -> Any:
    """The value of the stage's field in the last object of the answer that has it."""
    name, found = FIELDS[stage], None
    text = _THOUGHT.sub("", content)
    end = 0
    for place in [match.start() for match in re.finditer(r"\{", text)][-_BRACES:]:
        if place < end:
            continue  # within an object that was read
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and name in value:
            found = value
    if found is None:
        raise Malformed(f'no JSON object with "{name}" in it')
    return found[name]
