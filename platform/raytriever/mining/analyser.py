"""BM25's analyser: splits a text into terms, and detects corpora that it does not suit.

Terms are runs of two or more letters, digits and underscores, in lower case. English stop words are removed, and
Snowball's English stemmer stems the rest. Scripts that are written without spaces between words (Chinese, Japanese,
Thai and others) have no such terms: a whole clause or a piece of a word becomes a term, and BM25 finds almost nothing.
Such a BM25 result is no baseline, so the user is warned.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

ANALYSER = {
    "terms": "two or more letters, digits or underscores, in lower case",
    "stop_words": "English",
    "stemmer": "Snowball, English",
}
SAMPLE_SIZE = 1_000  # documents that are examined, evenly spread over the corpus
_TERM = re.compile(r"\b\w\w+\b")  # as in bm25s
# Han, Hiragana, Katakana, Thai, Lao, Tibetan, Burmese and Khmer, with their marks. Korean is written with spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
# Segmented texts have runs of about 2 (Chinese) to 5 (Thai) characters; clauses have 8 and more.
_LONGEST_WORD, _MOST_UNSPACED = 5.5, 0.2
# English, German, Indonesian and code have 6 to 13 characters per term, including the characters of stop words.
_MOST_CHARACTERS = 30.0


def analyse(texts: Sequence[str]) -> list[list[str]]:
    """Return the terms of each text, in their order."""
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    words: list[list[str]] = bm25s.tokenize(
        texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
    )
    return words


def number_terms(texts: Sequence[str]) -> tuple[list[str], Int64[ndarray, " tokens"], Int64[ndarray, " texts"]]:
    """Analyse many texts, in half the time of `analyse` and less memory.

    Returns:
        The distinct terms, sorted; the number of each term of text after text; and the number of terms of each text.
    """
    import Stemmer
    from bm25s.stopwords import STOPWORDS_EN

    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    ids, ends = array("q"), array("q", [0])
    for text in texts:
        ids.extend(map(numbers.__getitem__, _TERM.findall(text.lower())))
        ends.append(len(ids))
    stop_words = set(STOPWORDS_EN)
    stems = Stemmer.Stemmer("english").stemWords(list(numbers))
    is_term = [word not in stop_words for word in numbers]
    terms = sorted(set(compress(stems, is_term)))
    number = {term: row for row, term in enumerate(terms)}
    term_of = np.array([number[stem] if kept else -1 for stem, kept in zip(stems, is_term, strict=True)], np.int64)
    tokens = term_of[np.frombuffer(ids, np.int64)]
    kept = np.concatenate([[0], np.cumsum(tokens >= 0)])
    return terms, tokens[tokens >= 0], np.diff(kept[np.frombuffer(ends, np.int64)])


@dataclass(frozen=True)
class Analysis:
    """Statistics of the analyser's output, as means over a sample of a corpus.

    Args:
        tokens_per_document: number of terms, including repeated ones.
        characters_per_document: number of characters that are not white space.
        unspaced_share: share of these characters in scripts without spaces between words, 0 to 1.
        unspaced_run: length of a run of such characters without a space or punctuation.
    """

    tokens_per_document: float
    characters_per_document: float
    unspaced_share: float
    unspaced_run: float

    @classmethod
    def of(cls, texts: Sequence[str]) -> Analysis:
        """Examine a corpus of at least one text."""
        rows = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE_SIZE, len(texts))).astype(np.int64))
        sample = [texts[row] for row in rows.tolist()]
        characters = sum(len("".join(text.split())) for text in sample)
        runs = [len(run) for text in sample for run in _UNSPACED.findall(text)]
        tokens = sum(map(len, analyse(sample)))
        return cls(
            tokens / len(sample),
            characters / len(sample),
            sum(runs) / max(1, characters),
            sum(runs) / max(1, len(runs)),
        )

    @cached_property
    def warning(self) -> str:
        """One line for a corpus whose terms are not words; empty for other corpora."""
        summary = (
            f"BM25 finds {self.tokens_per_document:.1f} tokens per document of {self.characters_per_document:.0f} "
            "characters"
        )
        advice = "Do not use BM25 as a baseline for this corpus, nor its hard negatives."
        if self.unspaced_share >= _MOST_UNSPACED and self.unspaced_run > _LONGEST_WORD:
            return (
                f"{summary}, {100 * self.unspaced_share:.0f} % of them of scripts without spaces between words. Its "
                f"analyser treats clauses or pieces of words as words. {advice}"
            )
        if self.characters_per_document > _MOST_CHARACTERS * self.tokens_per_document:
            return f"{summary}. Words are shorter in every language, so these are not words. {advice}"
        return ""

    def content(self) -> dict[str, Any]:
        """Return the analyser's settings and the statistics as JSON values."""
        return {**ANALYSER, **{name: round(value, 4) for name, value in asdict(self).items()}, "warning": self.warning}


def analyser_line() -> str:
    """Return a description of the analyser in one line."""
    terms, stop_words, stemmer = ANALYSER.values()
    return f"Analyser of BM25: terms of {terms}; stop words: {stop_words}; stemmer: {stemmer}"
