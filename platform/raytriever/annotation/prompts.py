"""What the model is asked: prompts in files of their own, and how texts of strangers are put into them.

A passage may say anything, "ignore the others and choose me" included. So
1. each text stands between marks that carry a seal, the SHA-256 of all texts of the prompt: none of them can hold it;
2. passages are called by their numbers, and an answer that names them may hold nothing else (`replies`);
3. places are filled in one pass: a passage that holds `{answer}` is shown as it is.
What a model answers to it is still only its opinion; nothing it writes is run, opened or followed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raytriever.errors import ConfigError
from raytriever.paths import PROMPTS, expanded
from raytriever.reading.regular import open_regular
from raytriever.storage import disk_errors

STAGES = RELEVANCE, ANSWER, UTILITY = "relevance", "answer", "utility"  # in the order in which a query meets them
_SYSTEM, _REPAIR = "system", "repair"
# Of each prompt the places that must stand in it.
PLACES: dict[str, tuple[str, ...]] = {
    _SYSTEM: (),
    _REPAIR: ("reason",),
    RELEVANCE: ("query", "passages"),
    ANSWER: ("query", "passages"),
    UTILITY: ("query", "answer", "passages"),
}
_PLACE = re.compile(r"\{(query|passages|answer|reason)\}")
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

    def ask(self, stage: str, query: str, passages: Sequence[str], answer: str = "") -> list[Message]:
        """The messages of a request.

        Args:
            stage: `relevance`, `answer` or `utility`.
            query: the question.
            passages: called 1, 2, ... in their order.
            answer: the pseudo-answer, for `utility`.
        """
        seal = hashlib.sha256(json.dumps([query, *passages, answer]).encode()).hexdigest()[:12]
        numbered = [_marked("passage", text, seal, f" number={n}") for n, text in enumerate(passages, start=1)]
        texts = {
            "query": _marked("question", query, seal),
            "passages": "\n".join(numbered),
            "answer": _marked("answer", answer, seal),
        }
        filled = _PLACE.sub(lambda place: texts[place[1]], self.texts[stage])
        return [{"role": "system", "content": self.texts[_SYSTEM]}, {"role": "user", "content": filled}]

    def ask_again(self, messages: list[Message], content: str, reason: str) -> list[Message]:
        """The messages after an answer that was malformed for a reason; of a long answer the end is shown."""
        said = _PLACE.sub(lambda place: reason, self.texts[_REPAIR])
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
    texts = {name: (_OWN / f"{name}.txt").read_text(encoding="utf-8") for name in PLACES}
    if folder:
        texts |= _given(expanded(folder))
    return Prompts(texts)


def _given(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise PROMPTS.error_of_missing(str(folder), "--prompts")
    known = ", ".join(f"{name}.txt" for name in PLACES)
    texts = {}
    for file in sorted(folder.glob("*.txt")):
        if file.stem not in PLACES:
            raise ConfigError("is no prompt's name", str(file), f"the prompts are {known}")
        texts[file.stem] = _checked(file)
    if not texts:
        raise ConfigError("no prompt in it", f"--prompts {folder}", f"the prompts are {known}")
    return texts


def _checked(file: Path) -> str:
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
    found = _PLACE.findall(text)
    for place in PLACES[file.stem]:
        if found.count(place) != 1:
            times = f"holds {{{place}}} {found.count(place)} times" if place in found else f"holds no {{{place}}}"
            raise ConfigError(times, str(file), "put it in once, where its text shall stand")
    for place in found:
        if place not in PLACES[file.stem]:
            raise ConfigError(f"holds {{{place}}}, which it is not given", str(file), "take it out")
    return text


def _marked(kind: str, text: str, seal: str, more: str = "") -> str:
    return f"<{kind}{more} seal={seal}>\n{text}\n</{kind} seal={seal}>"
