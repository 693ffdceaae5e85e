"""Prompts for the language model, kept in files, and the parser of its replies.

Passages are untrusted text, so each stands between marks with a seal, the SHA-256 of all texts of the prompt. A reply
may hold only numbers of passages that were shown, or a text; anything else is malformed. Placeholders are filled in
one pass, and nothing that the model writes is run, opened or followed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytriever.errors import ConfigError
from raytriever.paths import PROMPTS, expanded
from raytriever.reading.regular import open_regular
from raytriever.storage import disk_errors

STAGES = RELEVANCE, ANSWER, UTILITY = "relevance", "answer", "utility"  # in the order in which a query meets them
_SYSTEM, _REPAIR = "system", "repair"
# Of each prompt the places that must stand in it.
PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    _SYSTEM: (),
    _REPAIR: ("reason",),
    RELEVANCE: ("query", "passages"),
    ANSWER: ("query", "passages"),
    UTILITY: ("query", "answer", "passages"),
}
_PLACEHOLDER = re.compile(r"\{(query|passages|answer|reason)\}")
_OWN = Path(__file__).with_name("prompts")
_LONGEST = 100_000
_REPEATED = 4000

Message = dict[str, str]


@dataclass(frozen=True)
class Prompts:
    """The text of each prompt by its name."""

    texts: dict[str, str]

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each: the prompts' version."""
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.texts.items()}

    def build_messages(self, stage: str, query: str, passages: Sequence[str], answer: str = "") -> list[Message]:
        """The messages of a request.

        Args:
            stage: `relevance`, `answer` or `utility`.
            query: the question.
            passages: called 1, 2, ... in their order.
            answer: the pseudo-answer, for `utility`.
        """
        seal = hashlib.sha256(json.dumps([query, *passages, answer]).encode()).hexdigest()[:12]
        numbered = [_mark("passage", text, seal, f" number={n}") for n, text in enumerate(passages, start=1)]
        texts = {
            "query": _mark("question", query, seal),
            "passages": "\n".join(numbered),
            "answer": _mark("answer", answer, seal),
        }
        filled = _PLACEHOLDER.sub(lambda place: texts[place[1]], self.texts[stage])
        return [{"role": "system", "content": self.texts[_SYSTEM]}, {"role": "user", "content": filled}]

    def build_repair_messages(self, messages: list[Message], content: str, reason: str) -> list[Message]:
        """The messages after an answer that was malformed for a reason; of a long answer the end is shown."""
        said = _PLACEHOLDER.sub(lambda place: reason, self.texts[_REPAIR])
        return [
            *messages,
            {"role": "assistant", "content": content[-_REPEATED:]},
            {"role": "user", "content": said},
        ]


def load_prompts(folder: str) -> Prompts:
    """The prompts, those in a folder before those that come along; no folder where it is empty.

    Raises:
        ConfigError: there is no such folder, it holds no prompt, or one that cannot be used.
    """
    texts = {name: (_OWN / f"{name}.txt").read_text(encoding="utf-8") for name in PLACEHOLDERS}
    if folder:
        texts |= _read_folder(expanded(folder))
    return Prompts(texts)


def _read_folder(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise PROMPTS.error_of_missing(str(folder), "--prompts")
    known = ", ".join(f"{name}.txt" for name in PLACEHOLDERS)
    texts = {}
    for file in sorted(folder.glob("*.txt")):
        if file.stem not in PLACEHOLDERS:
            raise ConfigError("is no prompt's name", str(file), f"the prompts are {known}")
        texts[file.stem] = _read_prompt(file)
    if not texts:
        raise ConfigError("no prompt in it", f"--prompts {folder}", f"the prompts are {known}")
    return texts


def _read_prompt(file: Path) -> str:
    with disk_errors(file, reading=True), open_regular(file) as stream:
        raw = stream.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"byte {error.start} is not UTF-8", str(file), "write it in UTF-8") from error
    if not text.strip():
        raise ConfigError("is empty", str(file), "write a prompt, or remove the file")
    if len(text) > _LONGEST:
        raise ConfigError(f"has {len(text):,} characters", str(file), f"give at most {_LONGEST:,}")
    matches = _PLACEHOLDER.findall(text)
    for place in PLACEHOLDERS[file.stem]:
        if matches.count(place) != 1:
            times = f"holds {{{place}}} {matches.count(place)} times" if place in matches else f"holds no {{{place}}}"
            raise ConfigError(times, str(file), "put it in once, where its text shall stand")
    for place in matches:
        if place not in PLACEHOLDERS[file.stem]:
            raise ConfigError(f"holds {{{place}}}, which it is not given", str(file), "take it out")
    return text


def _mark(kind: str, text: str, seal: str, more: str = "") -> str:
    return f"<{kind}{more} seal={seal}>\n{text}\n</{kind} seal={seal}>"


FIELDS = {RELEVANCE: "relevant", ANSWER: "answer", UTILITY: "useful"}
# A pseudo-answer goes into the next prompt: no longer than a long passage.
LONGEST_ANSWER = 4000
_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_BRACES = 200  # the last of an answer at which an object is looked for: what never ends costs no time
_DECODER = json.JSONDecoder()


class MalformedAnswer(Exception):
    """An answer that says nothing of use; its message says why, in words that may be shown to the model."""


def build_schema(stage: str, count: int) -> dict[str, Any]:
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
        MalformedAnswer: there is no such list, or something in it is no number of a passage that was shown.
    """
    values = _field(stage, content)
    if not isinstance(values, list):
        raise MalformedAnswer(f'"{FIELDS[stage]}" is no list')
    for value in values:
        if type(value) is not int or not 1 <= value <= count:
            raise MalformedAnswer(
                f'"{FIELDS[stage]}" holds {json.dumps(value)[:40]}, which is no number from 1 to {count}'
            )
    return [value - 1 for value in dict.fromkeys(values)]


def number_reader(stage: str, count: int) -> Callable[[str], list[int]]:
    """`read_numbers` for a stage over `count` passages."""
    return lambda content: read_numbers(stage, content, count)


def read_answer(content: str) -> str:
    """The pseudo-answer, cut at `LONGEST_ANSWER` characters; raises `MalformedAnswer` where there is none."""
    text = _field(ANSWER, content)
    if not isinstance(text, str) or not text.strip():
        raise MalformedAnswer(f'"{FIELDS[ANSWER]}" is no text')
    return text.strip()[:LONGEST_ANSWER].encode("utf-8", "replace").decode()


def _field(stage: str, content: str) -> Any:
    """The value of the stage's field in the last object of the answer that has it."""
    name, matches = FIELDS[stage], None
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
            matches = value
    if matches is None:
        raise MalformedAnswer(f'no JSON object with "{name}" in it')
    return matches[name]
