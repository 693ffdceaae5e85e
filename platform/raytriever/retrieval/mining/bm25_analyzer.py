"""BM25's analyzer. It splits texts into terms by the rules of their language, and detects corpora that do not suit it.

- All languages: Unicode's NFKC, without soft hyphens and zero-width characters.
- English: runs of two or more letters, digits and underscores, in lower case, without stop words, stemmed by Snowball.
- Chinese, Japanese and Korean: pairs of adjacent characters, as Lucene's CJKAnalyzer makes them. Thai, Lao, Khmer and
  Burmese: three adjacent characters. Words of other scripts stay whole.
- Other languages: words; for Arabic and Hindi, Lucene's normalization of letters. If the language has a stop-word list
  or a Snowball stemmer, stop words are removed and the other words are stemmed.

With the rules of a wrong language, terms are whole clauses or pieces of words, and BM25 finds almost nothing. Such a
result is not a baseline, so the user is warned."""

from __future__ import annotations

import importlib.util
import re
import runpy
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.core.errors import flag_of
from raytriever.core.reading.characters import remove_invisible
from raytriever.data.dataset import Documents, Passages
from raytriever.data.languages import AUTO, ENGLISH, LANGUAGES, NGRAMS, OTHER, UNSPACED, detect

SAMPLE_SIZE = 1_000  # number of documents of a sample, evenly spread over the corpus
_ENGLISH_TERM = re.compile(r"\b\w\w+\b")  # as in bm25s
_UNSPACED = re.compile(f"[{UNSPACED}]+")
_RUN = re.compile(rf"([{NGRAMS}]+)|((?:(?![{NGRAMS}])\w)+)")  # a run of characters that become n-grams, or else a word
# A run without spaces has 2 (Chinese) to 5 (Thai) characters on average if the text is segmented into words. If not, a
# run is a whole clause of 8 or more characters.
_LONGEST_WORD, _MOST_UNSPACED = 5.5, 0.2
# English, German, Indonesian and code have 6 to 13 characters per term. Stop words add characters, but no terms.
_MOST_CHARACTERS = 30.0
# Letters that Lucene's ArabicNormalizer, PersianNormalizer and HindiNormalizer replace or remove.
_FOLDED: dict[str, dict[int, Any]] = {
    "ar": str.maketrans(
        "\u0622\u0623\u0625\u0649\u0629",
        "\u0627\u0627\u0627\u064a\u0647",
        "\u0640\u064b\u064c\u064d\u064e\u064f\u0650\u0651\u0652",
    ),
    "fa": str.maketrans("\u06cc\u06a9\u06c1\u06c0\u06d2", "\u064a\u0643\u0647\u0647\u064a", "\u0640\u0654\u200c"),
    "hi": str.maketrans("\u0901\u0929\u0931\u0934", "\u0902\u0928\u0930\u0933", "\u093c\u200c\u200d"),
    "tr": str.maketrans("İI", "iı"),
    "ru": str.maketrans("ёЁ", "ее"),
}


@dataclass(frozen=True)
class Analyzer:
    """Analyzer of one language. `language` is a code of `data.languages.LANGUAGES`."""

    language: str = ENGLISH

    @classmethod
    def of(cls, documents: Documents) -> Analyzer:
        """Return the analyzer of a corpus, for the language that the user names or else the detected language."""
        named = documents.bm25_language
        return cls(detect(Passages(documents)) if named in (None, AUTO) else str(named))

    @property
    def settings(self) -> dict[str, str]:
        """Return a description of the analyzer, with the code of its language."""
        language = LANGUAGES[self.language]
        if self.language == ENGLISH:
            terms = "two or more letters, digits or underscores, in lower case"
            return {"terms": terms, "stop_words": "English", "stemmer": "Snowball, English", "language": ENGLISH}
        return {
            "terms": f"{language.ngram} adjacent characters, and words of other scripts"
            if language.ngram
            else "words, in NFKC",
            "stop_words": ("English" if language.ngram else language.name) if self._stop_words else "none",
            "stemmer": f"Snowball, {language.name}" if language.has_stemmer else "none",
            "language": self.language,
        }

    @property
    def line(self) -> str:
        """Return a description in one line."""
        terms, stop_words, stemmer = list(self.settings.values())[:3]
        of = f" for {LANGUAGES[self.language].name}, {flag_of('bm25_language')} {self.language}"
        of = "" if self.language == ENGLISH else of
        return f"Analyzer of BM25{of}: terms of {terms}; stop words: {stop_words}; stemmer: {stemmer}"

    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the terms of each text, in the order of the text."""
        return [self._stemmed([word for word in self._words(text) if word not in self._stop_words]) for text in texts]

    def number_terms(
        self, texts: Sequence[str]
    ) -> tuple[list[str], Int64[ndarray, " tokens"], Int64[ndarray, " texts"]]:
        """Analyze many texts, in half the time of `analyze` and with less memory. Return the sorted distinct terms. For
        the terms of all texts, one text after another, return their indices. Return each text's number of terms."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        ids, ends = array("q"), array("q", [0])
        for text in texts:
            ids.extend(map(numbers.__getitem__, self._words(text)))
            ends.append(len(ids))
        stems = self._stemmed(list(numbers))
        is_term = [word not in self._stop_words for word in numbers]
        terms = sorted(set(compress(stems, is_term)))
        number = {term: row for row, term in enumerate(terms)}
        term_of = np.array([number[stem] if kept else -1 for stem, kept in zip(stems, is_term, strict=True)], np.int64)
        tokens = term_of[np.frombuffer(ids, np.int64)]
        kept = np.concatenate([[0], np.cumsum(tokens >= 0)])
        return terms, tokens[tokens >= 0], np.diff(kept[np.frombuffer(ends, np.int64)])

    def _words(self, text: str) -> list[str]:
        text, length = self._normalized(text), LANGUAGES[self.language].ngram
        if self.language == ENGLISH:
            return _ENGLISH_TERM.findall(text)
        if not length:
            return _word_pattern().findall(text)
        words = []
        for run, word in _RUN.findall(text):
            if word:
                words.append(word)
            else:
                words += [run[i : i + length] for i in range(max(1, len(run) - length + 1))]
        return words

    def _normalized(self, text: str) -> str:
        if not text.isascii():
            text = unicodedata.normalize("NFKC", remove_invisible(text))
        folded = _FOLDED.get(self.language)
        return (text.translate(folded) if folded else text).lower()

    @cached_property
    def _stop_words(self) -> frozenset[str]:
        language = LANGUAGES[self.language]
        name = "EN" if language.ngram or self.language == ENGLISH else language.name.upper()
        return frozenset(_stop_word_lists().get(f"STOPWORDS_{name}", ()))

    def _stemmed(self, words: list[str]) -> list[str]:
        if not LANGUAGES[self.language].has_stemmer:
            return words
        stems: list[str] = _stemmer(LANGUAGES[self.language].name.lower()).stemWords(words)
        return stems


ENGLISH_ANALYZER = Analyzer()


@cache
def _stop_word_lists() -> dict[str, Any]:
    """Load only the stop words of bm25s: the whole package would start an installed JAX, which takes most of a GPU."""
    package = importlib.util.find_spec("bm25s")
    assert package is not None
    assert package.origin is not None
    return runpy.run_path(str(Path(package.origin).with_name("stopwords.py")))


@cache
def _stemmer(name: str) -> Any:
    import Stemmer

    return Stemmer.Stemmer(name)


@cache
def _word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word of two or more characters, or of one digit.

    Marks, such as the vowels of Hindi, belong to the letter before them."""
    marks = (chr(point) for point in range(0x300, 0x10000) if unicodedata.category(chr(point)).startswith("M"))
    return re.compile(rf"\w[\w{''.join(marks)}]+|\d")


def analyzer_line(analysis: Mapping[str, Any]) -> str:
    """Return one line about the analyzer that stored statistics describe; see `Analysis.content`."""
    language = analysis["language"]
    return Analyzer(language if language in LANGUAGES else OTHER).line


@dataclass(frozen=True)
class Analysis:
    """Statistics of the analyzer's output: means over a sample of a corpus."""

    analyzer: Analyzer
    tokens_per_document: float  # number of terms, including repeated ones
    characters_per_document: float  # number of characters that are not white space
    unspaced_fraction: float  # fraction of these characters that belong to scripts without spaces between words, 0 to 1
    unspaced_run: float  # mean length of a run of characters of such scripts, without a space or punctuation

    @classmethod
    def of(cls, documents: Documents) -> Analysis:
        """Examine a corpus of at least one text."""
        texts, analyzer = Passages(documents), Analyzer.of(documents)
        rows = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE_SIZE, len(texts))).astype(np.int64))
        sample = [texts[row] for row in rows.tolist()]
        characters = sum(len("".join(text.split())) for text in sample)
        runs = [len(run) for text in sample for run in _UNSPACED.findall(text)]
        tokens = sum(map(len, analyzer.analyze(sample)))
        return cls(
            analyzer,
            tokens / len(sample),
            characters / len(sample),
            sum(runs) / max(1, characters),
            sum(runs) / max(1, len(runs)),
        )

    @cached_property
    def warning(self) -> str:
        """Warning in one line if the terms of the corpus are not words; otherwise empty."""
        summary = (
            f"BM25 finds {self.tokens_per_document:.1f} tokens per document of {self.characters_per_document:.0f} "
            "characters"
        )
        advice = "Do not use BM25 as a baseline for this corpus, nor its hard negatives."
        has_words = not LANGUAGES[self.analyzer.language].ngram
        if has_words and self.unspaced_fraction >= _MOST_UNSPACED and self.unspaced_run > _LONGEST_WORD:
            return (
                f"{summary}, {100 * self.unspaced_fraction:.0f} % of them in scripts without spaces between words. Its "
                f"analyzer treats clauses or pieces of words as words. {advice}"
            )
        if self.characters_per_document > _MOST_CHARACTERS * self.tokens_per_document:
            return f"{summary}. In every language, words are shorter, so these tokens are not words. {advice}"
        return ""

    def content(self) -> dict[str, Any]:
        """Return the analyzer's settings and the statistics as JSON values."""
        numbers = {name: round(value, 4) for name, value in vars(self).items() if isinstance(value, float)}
        return {**self.analyzer.settings, **numbers, "warning": self.warning}

    @property
    def lines(self) -> list[str]:
        """Return a line about the analyzer, and the warning if there is one."""
        return [self.analyzer.line, *filter(None, [self.warning])]

    @property
    def notes(self) -> list[str]:
        """Return the lines to log: the warning, and the analyzer unless it is the usual one, English."""
        return self.lines[self.analyzer.language == ENGLISH :]
