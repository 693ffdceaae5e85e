"""BM25's analyser: splits a text into terms, and detects corpora that it does not suit.

Terms are runs of two or more letters, digits and underscores, in lower case. English stop words are removed, and
Snowball's English stemmer stems the rest. Scripts that are written without spaces between words (Chinese, Japanese,
Thai and others) have no such terms: a whole clause or a piece of a word becomes a term, and BM25 finds almost nothing.
Such a BM25 result is no baseline, so the user is warned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

ANALYSER = {
    "terms": "two or more letters, digits or underscores, in lower case",
    "stop_words": "English",
    "stemmer": "Snowball, English",
}
SAMPLE_SIZE = 1_000  # documents that are examined, evenly spread over the corpus
# Han, Hiragana, Katakana, Thai, Lao, Tibetan, Burmese and Khmer, with their marks. Korean is written with spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
# Segmented texts have runs of about 2 (Chinese) to 5 (Thai) characters; clauses have 8 and more.
_LONGEST_WORD, _MOST_UNSPACED = 5.5, 0.2
# English, German, Indonesian and code have 6 to 13 characters per term, including the characters of stop words.
_MOST_CHARACTERS = 30.0


def analyse(texts: Sequence[str], ids: bool) -> Any:
    """Return the terms of texts: bm25s's `Tokenized` with a vocabulary, or lists of words where `ids` is false."""
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=ids, show_progress=False)


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
        tokens = sum(map(len, analyse(sample, ids=False)))
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
