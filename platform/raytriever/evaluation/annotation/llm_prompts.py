"""Prompts for the language model, stored in files, and the parser of its answers.

Passages are untrusted text. So each one is enclosed by tags with a seal, the SHA-256 of all texts of the prompt, which
a passage cannot forge. An answer may contain only numbers of passages in the prompt, or a text. Anything else is
malformed. Placeholders are filled in one pass. Nothing that the model writes is run, opened or followed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, setting
from raytriever.core.paths import PROMPTS, expanded
from raytriever.core.reading.regular_files import open_regular

RELEVANCE, ANSWER, UTILITY = "relevance", "answer", "utility"
_SYSTEM, _REPAIR = "system", "repair"
# Placeholders that each prompt must contain exactly once.
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
class AnnotationPrompts:
    """Texts of the prompts by name."""

    texts: dict[str, str]

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each prompt, by name. It is the version of the prompt."""
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.texts.items()}

    def build_messages(self, step: str, query: str, passages: Sequence[str], answer: str = "") -> list[Message]:
        """Build the messages of a request. Passages are numbered from 1; only `utility` uses `answer`."""
        seal = hashlib.sha256(json.dumps([query, *passages, answer]).encode()).hexdigest()[:12]
        numbered = [_mark("passage", text, seal, f" number={n}") for n, text in enumerate(passages, start=1)]
        texts = {
            "query": _mark("question", query, seal),
            "passages": "\n".join(numbered),
            "answer": _mark("answer", answer, seal),
        }
        filled = _PLACEHOLDER.sub(lambda match: texts[match[1]], self.texts[step])
        return [{"role": "system", "content": self.texts[_SYSTEM]}, {"role": "user", "content": filled}]

    def build_repair_messages(self, messages: list[Message], content: str, reason: str) -> list[Message]:
        """Build the messages that follow a malformed answer, with the reason. Only the end of a long answer is kept."""
        repair = _PLACEHOLDER.sub(lambda match: reason, self.texts[_REPAIR])
        return [*messages, {"role": "assistant", "content": content[-_REPEATED:]}, {"role": "user", "content": repair}]


def load_prompts(folder: str) -> AnnotationPrompts:
    """Load the built-in prompts. Prompts in `folder`, if it is not "", replace those with the same name.

    Raise `ConfigError` if the folder does not exist, has no prompt, or has an invalid prompt."""
    texts = {name: (_OWN / f"{name}.txt").read_text(encoding="utf-8") for name in PLACEHOLDERS}
    if folder:
        texts |= _read_folder(expanded(folder))
    return AnnotationPrompts(texts)


def _read_folder(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise PROMPTS.error_of_missing(str(folder), "prompts")
    file_names = ", ".join(f"{name}.txt" for name in PLACEHOLDERS)
    texts = {}
    for file in sorted(folder.glob("*.txt")):
        if file.stem not in PLACEHOLDERS:
            raise ConfigError("is not the name of a prompt", str(file), f"rename it to one of {file_names}")
        texts[file.stem] = _read_prompt(file)
    if not texts:
        raise ConfigError("contains no prompt", setting("prompts", folder), f"add one or more of {file_names}")
    return texts


def _read_prompt(file: Path) -> str:
    with open_regular(file) as stream:
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
    for name in PLACEHOLDERS[file.stem]:
        if matches.count(name) != 1:
            times = f"contains {{{name}}} {matches.count(name)} times" if name in matches else f"contains no {{{name}}}"
            raise ConfigError(times, str(file), "add it once, where its text belongs")
    for name in matches:
        if name not in PLACEHOLDERS[file.stem]:
            raise ConfigError(f"contains {{{name}}}, which has no value in this prompt", str(file), "remove it")
    return text


def _mark(kind: str, text: str, seal: str, more: str = "") -> str:
    return f"<{kind}{more} seal={seal}>\n{text}\n</{kind} seal={seal}>"


FIELDS = {RELEVANCE: "relevant", ANSWER: "answer", UTILITY: "useful"}
# The next prompt contains the pseudo-answer. It may be as long as a long passage.
LONGEST_ANSWER = 4000
_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_BRACES = 200  # number of braces that the parser tries, from the end, so that it handles an endless answer quickly
_DECODER = json.JSONDecoder()


class MalformedAnswer(Exception):
    """Answer without a usable value. Its message is the reason.

    The repair prompt contains the message, and the keys of logged answers depend on it. So no message must change.
    """


def build_schema(step: str, count: int) -> dict[str, Any]:
    """Build the JSON schema of an answer about `count` passages, in the subset that strict services accept."""
    if step == ANSWER:
        value: dict[str, Any] = {"type": "string"}
    else:
        value = {"type": "array", "items": {"type": "integer", "enum": list(range(1, count + 1))}}
    name = FIELDS[step]
    return {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}


def read_numbers(step: str, content: str, count: int) -> list[int]:
    """Read the numbers of passages in an answer. Return indices from 0, each once, in the order of the answer. Raise
    `MalformedAnswer` if the answer has no list, or an element is not the number of a passage in the prompt."""
    values = _field(step, content)
    if not isinstance(values, list):
        raise MalformedAnswer(f'"{FIELDS[step]}" is no list')
    for value in values:
        if type(value) is not int or not 1 <= value <= count:
            raise MalformedAnswer(
                f'"{FIELDS[step]}" holds {json.dumps(value)[:40]}, which is no number from 1 to {count}'
            )
    return [value - 1 for value in dict.fromkeys(values)]


def number_reader(step: str, count: int) -> Callable[[str], list[int]]:
    """Return `read_numbers` for a step and `count` passages."""
    return lambda content: read_numbers(step, content, count)


def read_answer(content: str) -> str:
    """Read the pseudo-answer, cut to `LONGEST_ANSWER` characters. Raise `MalformedAnswer` if there is none."""
    text = _field(ANSWER, content)
    if not isinstance(text, str) or not text.strip():
        raise MalformedAnswer(f'"{FIELDS[ANSWER]}" is no text')
    return text.strip()[:LONGEST_ANSWER].encode("utf-8", "replace").decode()


def _field(step: str, content: str) -> Any:
    """Return the value of the field `FIELDS[step]` of the last JSON object in the answer that has this field."""
    name, last = FIELDS[step], None
    text = _THOUGHT.sub("", content)
    end = 0
    for start in [match.start() for match in re.finditer(r"\{", text)][-_BRACES:]:
        if start < end:
            continue  # this brace is inside an object that was already read
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and name in value:
            last = value
    if last is None:
        raise MalformedAnswer(f'no JSON object with "{name}" in it')
    return last[name]
