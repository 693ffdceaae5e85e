"""A docstring becomes a question and an answer: its first sentence, and what the rest of it says.

Markup (reStructuredText roles, back quotes, underlines, doctest prompts) is taken off: both read as text.
"""

from __future__ import annotations

import re

_ROLE = re.compile(r":[\w:+-]+:`+([^`]*?)`+")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_+")
_MARKDOWN_LINK = re.compile(r"\[([^\]\[]+)\]\([^)\s]*\)")
_QUOTES = re.compile(r"`+~?([^`]*)`+_*")
_DIRECTIVE = re.compile(r"^\s*\.\.\s.*$|^\s*:[a-z-]+:(?!`).*$", re.MULTILINE)
_RULE = re.compile(r"^\s*[-=~^*+#_.]{3,}\s*$", re.MULTILINE)
_PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.)\s?", re.MULTILINE)
_FIELD = re.compile(r"^\s*:(?:(?:returns?|rtype|yields?):|(?:param|parameter|arg|type|raises)\s)\s*", re.MULTILINE)
_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)(?<!cf)[.!?](?=\s+[A-Z0-9(]|\s*$)")
_EMPHASIS = re.compile(r"(?<!\w)\*{1,2}(\w[^*\n]*?)\*{1,2}(?!\w)")
_WORD = re.compile(r"[A-Za-z]{2,}")
_UNLIKE_A_QUESTION = re.compile(
    r"^(?:args|arguments|parameters|returns|usage|examples?|notes?|todo|deprecated|alias|same as|see|"
    r"internal|tests?|helper|copyright|this|these|class for|override)\b|https?://|[{}<>|\\]|::|==|\bTODO\b|^\W|"
    r"[:,;(-]$|\b(?:by|of|the|as|an?|in|for|with|and|or|to|from|on|is|are|that)$",
    re.IGNORECASE,
)
MIN_QUERY_WORDS, MAX_QUERY_WORDS = 4, 40
MAX_UNSTOPPED_WORDS = 12  # a longer one without a full stop was cut off
MIN_REST_WORDS = 25
MAX_REST_CHARACTERS = 1200


def question_and_answer(docstring: str) -> tuple[str, str] | None:
    """The first sentence and the rest, both cleaned; None where either says too little.

    The sentence does not stand in the rest, not even where the docstring repeats it.
    """
    first, _, after = docstring.strip().partition("\n\n")
    if first.count("\n") > 4 or "\n " in first or ">>>" in first:
        return None
    first = flat(first)
    end = _END.search(first)
    sentence, left = (first[: end.end()], first[end.end() :]) if end else (first, "")
    words = len(_WORD.findall(sentence))
    if words > MAX_UNSTOPPED_WORDS and sentence[-1] not in ".!?":
        return None
    if not MIN_QUERY_WORDS <= words <= MAX_QUERY_WORDS or _UNLIKE_A_QUESTION.search(sentence):
        return None
    rest = without(f"{left} {flat(after[: 2 * MAX_REST_CHARACTERS])}", sentence)
    rest = rest if len(rest) <= MAX_REST_CHARACTERS else rest[:MAX_REST_CHARACTERS].rpartition(" ")[0]
    if len(_WORD.findall(rest)) < MIN_REST_WORDS:
        return None
    return sentence, rest


def flat(text: str) -> str:
    """The text without markup, in one line."""
    for pattern, by in (
        (_FIELD, ""),
        (_DIRECTIVE, ""),
        (_RULE, ""),
        (_PROMPT, ""),
        (_LINK, r"\1"),
        (_MARKDOWN_LINK, r"\1"),
        (_ROLE, lambda role: role[1].lstrip("~!").partition(" <")[0]),
        (_QUOTES, r"\1"),
        (_EMPHASIS, r"\1"),
    ):
        text = pattern.sub(by, text)
    # A docstring can spell half of a surrogate pair, which no file can hold.
    return " ".join(text.encode(errors="ignore").decode().split())


def without(text: str, sentence: str) -> str:
    """The text with every verbatim repetition of the sentence taken out, whatever its case and last stop."""
    bare = sentence.rstrip(".!? ")
    if bare.lower() not in text.lower():
        return " ".join(text.split())
    return " ".join(re.sub(re.escape(bare) + r"[.!?]?", " ", text, flags=re.IGNORECASE).split())


def normalised(text: str) -> str:
    """Letters and digits in lower case, blanks between: two texts alike in it are the same to a reader."""
    return " ".join(re.findall(r"[^\W_]+", text.lower()))
