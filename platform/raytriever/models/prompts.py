"""Prompts: texts in front of queries and passages, such as instructions, by data set.

A model stores prompts by name, as sentence-transformers does. A data set uses the first existing prompt in this order,
which is that of MTEB (Muennighoff et al., 2023). Names are compared without case:

1. data set and side: `scifact-query`, `scifact-document`;
2. data set: `scifact`, for both sides;
3. type of task and side: `Retrieval-query`, `Retrieval-document`;
4. type of task: `Retrieval`;
5. side: `query`, `document`. These are the prompts of all other data sets.

The name of a data set is the name of its folder, or of its file without the extension. A data set of BEIR can also be
named by its task in MTEB. Prompts of the user have priority over those of the model: first the prompt for the data set,
then the prompt for the side.

A passage prompt may have a placeholder for the title, as in EmbeddingGemma: `title: {title} | text: `. Then the title
is inserted there, not put before the text. If a passage has no title, `none` is inserted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from raytriever.core.errors import ConfigError, ModelError, StorageError, setting
from raytriever.core.reading.json_and_yaml import parse_json
from raytriever.core.unknown_names import did_you_mean

Side = Literal["query", "passage"]
SIDES: tuple[Side, ...] = ("query", "passage")
# Suffixes of the names of a side's prompts. All of them are read, but only the first is written.
KINDS: dict[Side, tuple[str, ...]] = {"query": ("query",), "passage": ("document", "passage")}
TASK_TYPE = "Retrieval"
# MTEB's names of tasks, by BEIR's names of data sets, if the two differ in more than case.
MTEB_TASKS = {"trec-covid": "TRECCOVID", "fiqa": "FiQA2018", "webis-touche2020": "Touche2020"}
MTEB_TASKS |= {"cqadupstack": "CQADupstackRetrieval", "quora": "QuoraRetrieval"}
MTEB_TASKS |= {"dbpedia-entity": "DBPedia", "climate-fever": "ClimateFEVER"}
TITLE, NO_TITLE = "{title}", "none"  # placeholder of the title in a passage prompt; text for a missing title
_PLACE = re.compile(r"\{(title|text|query|passage)\}")
_ENDING = re.compile(r"\.(jsonl|json|tsv|csv|parquet)(\.gz)?$")
_REMEDY = 'give texts by data set and side, such as {"scifact": {"query": "Find evidence: "}}'


@dataclass(frozen=True)
class Prompts:
    """Prompts of one data set, and the names under which they are stored (empty for the default of a side)."""

    query: str = ""
    passage: str = ""
    query_name: str = ""
    passage_name: str = ""

    def __getitem__(self, side: Side) -> str:
        return self.query if side == "query" else self.passage

    def __str__(self) -> str:
        sides = [("queries", self.query, self.query_name), ("passages", self.passage, self.passage_name)]
        return ", ".join(
            f"{side} begin with {text!r}" + (f" (prompt {name!r})" if name else "")
            for side, text, name in sides
            if text
        )


@dataclass(frozen=True)
class PromptTable:
    """Prompts of a model for any data set."""

    # `query`, `passage`: prompts for data sets without a prompt under their names.
    query: str = ""
    passage: str = ""
    stored: Mapping[str, str] = field(default_factory=dict)  # prompts of the model, by name
    # Prompts of the user for single data sets, by name. They have priority over all others.
    own: Mapping[str, str] = field(default_factory=dict)
    # Sides for which the user gave one prompt for all data sets. For these sides, stored prompts are not used.
    fixed: frozenset[Side] = frozenset()

    def of(self, *names: str, task_type: str = TASK_TYPE) -> Prompts:
        """Return the prompts of a data set with these names, the most specific name first. Raise `ModelError` if a
        prompt has a placeholder other than one for the title of passages."""
        query, query_name = self._find("query", names, task_type) or (self.query, "")
        passage, passage_name = self._find("passage", names, task_type) or (self.passage, "")
        for side, text in (("query", query), ("passage", passage.replace(TITLE, "", 1))):
            if place := _PLACE.search(text):
                what = f"the prompt {text[:40]!r} has the placeholder {place[0]}, which nothing would replace"
                remedy = "leave it out: the text follows the prompt; only a passage prompt may have {title}, once"
                raise ModelError(what, setting(f"{side}_prompt"), remedy)
        return Prompts(query, passage, query_name, passage_name)

    def of_texts(self, *names: str, task_type: str) -> str:
        """Return the prompt of texts that are neither queries nor passages, such as those of a classification."""
        return (self._find(None, names, task_type) or ("", ""))[0]

    def named(self, *names: str) -> dict[str, str]:
        """Return the prompts, by name, that a model must store so that it uses these prompts for a data set."""
        used, later = self.of(*names), PromptTable(self.query, self.passage, merge_prompts(self.stored, self.own))
        kept = later.of(*names)
        sides: tuple[Side, ...] = ("query", "passage")
        return {f"{_stem(names[0])}-{KINDS[side][0]}": used[side] for side in sides if used[side] != kept[side]}

    def check(self, names: Iterable[str], every: bool = False) -> None:
        """Check that the prompts of the user belong to the data sets in use. Raise `ConfigError` if a prompt belongs to
        no data set; the error suggests a name.

        Args:
            names: names of the data sets.
            every: True if every prompt must belong to one of them. Otherwise one such prompt is enough.
        """
        known = list(dict.fromkeys(map(_stem, names)))
        possible = {candidate.casefold() for name in known for side in KINDS for candidate in _candidates(side, [name])}
        others = [name for name in self.own if name.casefold() not in possible]
        if others and (every or len(others) == len(self.own)):
            what = f"{others[0]!r} is a prompt for none of the data sets in use"
            raise ConfigError(what, setting("dataset_prompts"), _suggest(others[0], known))

    def _find(self, side: Side | None, names: Iterable[str], task_type: str) -> tuple[str, str] | None:
        """Return the first existing prompt in the order above, and its name. None means the default of the side."""
        candidates = list(_candidates(side, names, task_type))
        for table in (self.own, {} if side in self.fixed else self.stored):
            known = {name.casefold(): name for name in table}
            for candidate in candidates:
                if name := known.get(candidate.casefold()):
                    return table[name], name
        return None


def fill_title(prompt: str, title: str = "") -> str:
    """Replace the placeholder in a prompt, if there is one, by the title, or by `none` if the title is empty."""
    return prompt.replace(TITLE, title.strip() or NO_TITLE)


def prompt_by_name(name: str, stored: Mapping[str, str], prompt: str) -> str:
    """Return a prompt that a model stores, for the setting `prompt` (`query_prompt` or `passage_prompt`). Raise
    `ConfigError` if the model stores no prompt of this name."""
    if name in stored:
        return stored[name]
    remedy = did_you_mean(name, stored) if stored else f"the model stores none; give {setting(prompt)}"
    raise ConfigError(f"the model stores no prompt {name!r}", setting(f"{prompt}_name"), remedy)


def merge_prompts(stored: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Add the user's prompts to the stored prompts. A stored prompt of the same name, ignoring case, is replaced."""
    replaced = {name.casefold() for name in own}
    return {name: text for name, text in stored.items() if name.casefold() not in replaced} | dict(own)


def read_prompts(value: Any) -> dict[str, str]:
    """Read the prompts of data sets: a mapping, or its JSON text, such as the `prompts` of sentence-transformers.

    `{"scifact": {"query": "a", "passage": "b"}}` and `{"scifact-query": "a", "scifact-document": "b"}` are the same.
    Raise `ValueError` if the value has another form; the message says what to give.

    Returns:
        Prompts by name; see the module.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value.encode(), setting("dataset_prompts"), dict[str, Any], _REMEDY)
        except StorageError as error:
            raise ValueError(_REMEDY) from error
    if not isinstance(value, Mapping):
        raise ValueError(_REMEDY)
    prompts: dict[str, str] = {}
    for name, texts in value.items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(_REMEDY)
        if any(name.casefold() in kinds for kinds in KINDS.values()):
            side = "query" if name.casefold() in KINDS["query"] else "passage"
            raise ValueError(f"{name!r} names no data set; give {setting(f'{side}_prompt')} for all data sets")
        for key, text in texts.items() if isinstance(texts, Mapping) else [("", texts)]:
            kinds = [kinds[0] for kinds in KINDS.values() if str(key).casefold() in kinds]
            if (key and not kinds) or not isinstance(text, str):
                raise ValueError(_REMEDY)
            prompts[f"{name}-{kinds[0]}" if key else name] = text
    return prompts


def check_length(prompt: str, tokens: int, length: int, side: Side) -> None:
    """Check that a prompt leaves tokens for the text. Raise `ModelError` if the prompt leaves no tokens.

    Args:
        tokens: number of tokens of the prompt.
        length: maximum number of tokens of prompt and text, without special tokens.
    """
    if tokens >= max(1, length):
        what = f"the prompt {prompt[:40]!r} has {tokens} of at most {length} tokens, and leaves none for the text"
        remedy = f"give a larger {setting(f'{side}_length')}, or a shorter prompt"
        raise ModelError(what, setting(f"{side}_prompt"), remedy)


def names_of_task(task: str) -> tuple[str, ...]:
    """Return the names of an MTEB task in prompts: its own name, and BEIR's name of its data set, if different."""
    return (task, *(name for name, other in MTEB_TASKS.items() if other == task))


def _candidates(side: Side | None, names: Iterable[str], task_type: str = TASK_TYPE) -> Iterator[str]:
    named = ((name, _stem(name), MTEB_TASKS.get(_stem(name).casefold())) for name in names)
    tasks = [task for names in named for task in dict.fromkeys(names) if task]
    for group in (tasks, [task_type]):
        for task in group:
            yield from (f"{task}-{kind}" for kind in (KINDS[side] if side else ()))
        yield from group


def _stem(name: str) -> str:
    return _ENDING.sub("", name)


def _suggest(name: str, known: list[str]) -> str:
    task, dash, kind = name.rpartition("-")
    if any(kind.casefold() in kinds for kinds in KINDS.values()):
        return did_you_mean(f"{task}{dash}{kind}", [f"{name}-{kind}" for name in known])
    return did_you_mean(name, known)
