"""When two passages say the same, and when a passage holds an answer.

An answer is looked for as DPR's has_answer does it (Karpukhin et al. 2020): case, width and composition of letters
count for nothing, and `us` does not stand in `bus`. Scripts without case are written without blanks as often as not,
so there an answer may stand anywhere.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def normalised(text: str) -> str:
    """A text without what does not tell passages apart: NFKC, case folded, runs of white space as one blank."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def holds_answer(passage: str, answers: Iterable[str]) -> bool:
    """Whether one of the answers stands in the passage; all of them `normalised`. An empty answer stands nowhere.

    No cased letter or digit may stand beside an end of the answer that is one itself.
    """
    for answer in filter(None, answers):
        place = passage.find(answer)
        while place >= 0:
            end = place + len(answer)
            before, after = passage[max(0, place - 1) : place], passage[end : end + 1]
            if not (_joins(before, answer[0]) or _joins(answer[-1], after)):
                return True
            place = passage.find(answer, place + 1)
    return False


def _joins(left: str, right: str) -> bool:
    return _is_joining(left) and _is_joining(right)


def _is_joining(character: str) -> bool:
    """Whether it is a digit or a letter that has a capital form (texts are folded); not so for no character."""
    return character.isdigit() or character.upper() != character
