"""Front matter: the settings of a page before its text, as site generators read them.

YAML between `---`, TOML between `+++`, a JSON object, lines `#+TITLE: ...` of Org, and lines `Title: ...` of
MultiMarkdown and Pelican. Only the title is used.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

_YAML = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TOML = re.compile(r"\A\+\+\+[ \t]*\n(.*?)^\+\+\+[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ORG = re.compile(r"\A((?:#\+\w+:.*(?:\n|\Z))+)")
_KEYS = re.compile(r"\A((?:[A-Za-z][\w -]*:.*\n(?:[ \t]+\S.*\n)*)+)(?:[ \t]*\n|\Z)")
# Keys that only front matter has. A line such as `Note: ...` at the beginning of a page is text instead.
_OF_PAGES = {
    *("title", "subtitle", "author", "authors", "date", "modified", "created", "updated", "slug", "category", "status"),
    *("categories", "tags", "keywords", "template", "layout", "css", "language", "lang", "permalink"),
}
# First line of YAML between `---`. Without such a line, both `---` are horizontal rules.
_SETTING = re.compile(r"(?:[ \t]*(?:#.*)?\n)*[\"']?[\w$@.-][\w $@./-]*[\"']?[ \t]*:(?:[ \t\n]|\Z)")
_YAML_TITLE = re.compile(r"^([\"']?)title\1[ \t]*:.*(?:\n(?:[ \t]+.*|(?=\n)))*", re.IGNORECASE | re.MULTILINE)
_TITLE_LINE = re.compile(r"^(?:#\+)?title[ \t]*[:=](.*(?:\n[ \t]+\S.*)*)", re.IGNORECASE | re.MULTILINE)


def split_front_matter(text: str) -> tuple[str, str]:
    """Return the title in the front matter of a page, empty if it has none, and the page without front matter."""
    if match := _YAML.match(text):
        is_settings = _SETTING.match(match[1]) or not match[1].strip()
        return (_yaml_title(match[1]), text[match.end() :]) if is_settings else ("", text)
    if match := _TOML.match(text):
        return _toml_title(match[1]), text[match.end() :]
    if match := _ORG.match(text):
        return _title_line(match[1]), text[match.end() :]
    if match := _KEYS.match(text):
        keys = {line.partition(":")[0].strip().lower() for line in match[1].splitlines() if not line[0].isspace()}
        if "title" in keys or keys <= _OF_PAGES:
            return _title_line(match[1]), text[match.end() :]
    return _split_json(text)


def _yaml_title(block: str) -> str:
    """Return the value of the key `title`. The other keys are not parsed, because they may hold templates."""
    import yaml

    match = _YAML_TITLE.search(block)
    if match is None:
        return ""
    try:
        (value,) = yaml.safe_load(match[0]).values()
    except (yaml.YAMLError, ValueError, AttributeError):  # such as `title: Pumps: an introduction`
        return _title_line(match[0])
    return _text(value)


def _toml_title(block: str) -> str:
    try:
        return _text(tomllib.loads(block).get("title"))
    except ValueError:
        return _title_line(block)


def _title_line(block: str) -> str:
    match = _TITLE_LINE.search(block)
    return " ".join(match[1].split()).strip("\"'") if match else ""


def _split_json(text: str) -> tuple[str, str]:
    if not re.match(r"\{[ \t]*\n", text):
        return "", text
    try:
        settings, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return "", text
    rest = text[end:]
    if not isinstance(settings, dict) or not re.match(r"[ \t]*\n\s*\S", rest):
        return "", text
    return _text(settings.get("title")), rest


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""
