"""BM25's analyser: how a text becomes terms, and whether that suits a corpus.

Terms are runs of two or more letters, digits and underscores, in lower case, without English stop words, stemmed by
Snowball's English stemmer. Scripts that are written without blanks between words (Chinese, Japanese, Thai and others)
have no such terms: a whole clause becomes one, or pieces of words do, and BM25 finds next to nothing. Such a figure is
no yardstick, so it is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import bm25s
import numpy as np
import Stemmer

ANALYSER = {
    "terms": "two or more letters, digits or underscores, in lower case",
    "stop_words": "English",
    "stemmer": "Snowball, English",
}
SAMPLE = 1_000  # documents that are examined, evenly spread over the corpus
# Han, Hiragana, Katakana, Thai, Lao, Tibetan, Burmese and Khmer, with their marks. Korean is written with blanks.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
# Texts that were cut into words have runs of some 2 (Chinese) to 5 (Thai) characters; clauses have 8 and more.
_LONGEST_WORD, _MOST_UNSPACED = 5.5, 0.2
# English, German, Indonesian and code have 6 to 13 characters a term, stop words counted among the characters.
_MOST_CHARACTERS = 30.0


def analyse(texts: Sequence[str], ids: bool) -> Any:
    """Return the terms of texts: bm25s's `Tokenized` with a vocabulary, or lists of words where `ids` is false."""
    stemmer = Stemmer.Stemmer("english")
    return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=ids, show_progress=False)


@dataclass(frozen=True)
class Analysis:
    """What the analyser makes of a corpus, in means over a sample of its documents.

    Args:
        tokens_per_document: terms, repeated ones too.
        characters_per_document: characters that are not white space.
        unspaced_share: the share of these characters that belongs to scripts without blanks between words, 0 to 1.
        unspaced_run: how many of those follow one another without a blank or a mark of punctuation.
    """

    tokens_per_document: float
    characters_per_document: float
    unspaced_share: float
    unspaced_run: float

    @classmethod
    def of(cls, texts: Sequence[str]) -> Analysis:
        """Examine a corpus of at least one text."""
        places = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(np.int64))
        sample = [texts[place] for place in places.tolist()]
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
        """Say in one line that the terms are no words; an empty text where they may be."""
        found = (
            f"BM25 finds {self.tokens_per_document:.1f} tokens per document of {self.characters_per_document:.0f} "
            "characters"
        )
        meaning = "Do not use its figures as a yardstick, nor its hard negatives."
        if self.unspaced_share >= _MOST_UNSPACED and self.unspaced_run > _LONGEST_WORD:
            return (
                f"{found}, {100 * self.unspaced_share:.0f} % of them of scripts without blanks between words. Its "
                f"analyser takes clauses or pieces of words for words. {meaning}"
            )
        if self.characters_per_document > _MOST_CHARACTERS * self.tokens_per_document:
            return f"{found}. Words are shorter in every language, so these are no words. {meaning}"
        return ""

    def content(self) -> dict[str, Any]:
        """Return the analysis as JSON holds it, with the analyser."""
        return {**ANALYSER, **{name: round(value, 4) for name, value in asdict(self).items()}, "warning": self.warning}


def analyser_line() -> str:
    """Describe the analyser in one line."""
    terms, stop_words, stemmer = ANALYSER.values()
    return f"Analyser of BM25: terms of {terms}; stop words: {stop_words}; stemmer: {stemmer}"
