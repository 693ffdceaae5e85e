"""Entities of a corpus, found by rules: names, years, other numbers and rare terms, with the places where they occur.

Two passes over the corpus, and no model. The first counts words and names. The second collects, for the entities and
words that are asked for, the passages that have them and the words around them.

1. Token: a run of letters and digits, which may have single `-` or `.` inside; `'s`; or one other mark.
2. Name: as many capitalized tokens in a row as there are, also with words such as `of`, `de` and `of the` between two
   of them. One that begins a sentence is no evidence for a name. The first and the last word are capitalized at least
   five times as often as not. The shape of a name is all capitals, with a digit, or other.
3. Year: 1000 to 2029. Number: of two or more digits, or with a point; ordinals such as `19th` are a type of their own.
4. Rare term: in at least two and at most 1 % of the passages, with five letters or more, in small letters."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

NAME, YEAR, NUMBER, ORDINAL, TERM = "name", "year", "number", "ordinal", "term"
MOST_WORDS = 6  # of a name
_TOKEN = re.compile(r"[^\W_]+(?:[-.][^\W_]+)*|['’]s\b|[^\w\s]")
_BETWEEN, _ARTICLES = frozenset(["of", "de", "van", "von", "der", "al", "la"]), frozenset(["the", "der", "la"])
_ENDS = frozenset('.!?:;\n"“”()[]•')
_YEAR = re.compile(r"1\d\d\d|20[0-2]\d")
_NUMBER = re.compile(r"[1-9]\d+(?:\.\d+)?|\d\.\d+")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_RARE, _LETTERS = 0.01, 5
_CAPITALIZED = 5  # times as often as in small letters
_FEATURES = 1_000  # words around entities that are counted
_PREFIX = 5  # letters by which two forms of a word are the same


def tokens_of(text: str) -> list[str]:
    """Return the tokens of a text, in their order."""
    return _TOKEN.findall(text)


def stem(word: str) -> str:
    """Return the first five letters of a word in small letters, which its forms share."""
    return word.casefold()[:_PREFIX]


def number_type(token: str) -> str | None:
    """Return YEAR, ORDINAL or NUMBER for a token that is one, else None."""
    if not token[0].isdigit():
        return None
    kinds = ((YEAR, _YEAR), (ORDINAL, _ORDINAL), (NUMBER, _NUMBER))
    return next((kind for kind, pattern in kinds if pattern.fullmatch(token)), None)


def _is_capital(token: str) -> bool:
    return token[0].isupper()


def names_in(tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of each run of capitalized tokens that does not begin a sentence."""
    at, count = 0, len(tokens)
    while at < count:
        if not _is_capital(tokens[at]):
            at += 1
            continue
        begin = at
        at += 1
        while at < count:
            if _is_capital(tokens[at]):
                at += 1
            elif step := _step(tokens, at):
                at += step
            else:
                break
        if begin and tokens[begin - 1] not in _ENDS:
            yield begin, at


def _step(tokens: Sequence[str], at: int) -> int:
    """Return the number of tokens up to and with a capitalized one behind one or two small words, else 0."""
    step = 1 if tokens[at] in _BETWEEN else 0
    if step and at + 1 < len(tokens) and tokens[at + 1] in _ARTICLES:
        step = 2
    return step + 1 if step and at + step < len(tokens) and _is_capital(tokens[at + step]) else 0


def shape(name: str) -> str:
    """Return the shape of a name: `digit`, `capitals` or `other`."""
    if any(letter.isdigit() for letter in name):
        return "digit"
    return "capitals" if name.isupper() else "other"


@dataclass
class Vocabulary:
    """Counts of a corpus.

    Args:
        names: occurrences of each name, as it is written.
        frequency: number of passages with each word, in small letters.
        small: occurrences of each word that is written in small letters.
        capital: occurrences of each word, in small letters, that is capitalized within a sentence.
    """

    passages: int = 0
    names: Counter[str] = field(default_factory=Counter)
    frequency: Counter[str] = field(default_factory=Counter)
    small: Counter[str] = field(default_factory=Counter)
    capital: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Vocabulary:
        """Count the words and names of a corpus."""
        vocabulary = cls()
        for text in texts:
            tokens = tokens_of(text)
            vocabulary.passages += 1
            vocabulary.frequency.update({token.casefold() for token in tokens})
            vocabulary.small.update(token for token in tokens if token[0].islower())
            for begin, end in names_in(tokens):
                if end - begin <= MOST_WORDS:
                    vocabulary.names[" ".join(tokens[begin:end])] += 1
                vocabulary.capital.update(token.casefold() for token in tokens[begin:end])
        return vocabulary

    @property
    def is_lower_case(self) -> bool:
        """True if fewer than one name occurs in five passages: the corpus has no capitals to find names by."""
        return self.names.total() * 5 < self.passages

    def is_name(self, name: str) -> bool:
        """Return True if the first and the last word of a name are capitalized far more often than not."""
        words = name.split()
        return all(
            self.capital[word.casefold()] >= _CAPITALIZED * self.small[word.casefold()] and len(word) > 2
            for word in (words[0], words[-1])
        )

    def is_rare(self, word: str) -> bool:
        """Return True for a rare term."""
        most = max(2, int(_RARE * self.passages))
        return len(word) >= _LETTERS and word.isalpha() and 2 <= self.frequency[word.casefold()] <= most


@dataclass
class Places:
    """Passages of entities and words, and the words around entities.

    Args:
        entities: passages of each entity, ascending, by its tokens in small letters.
        words: passages of each word, ascending, by its `stem`.
        around: occurrences of each word directly before (`<word`) and after (`>word`) an entity.
    """

    entities: dict[tuple[str, ...], Int64[ndarray, " passages"]]
    words: dict[str, Int64[ndarray, " passages"]]
    around: dict[tuple[str, ...], Counter[str]]

    @classmethod
    def of(cls, texts: Iterable[str], entities: Iterable[tuple[str, ...]], words: Iterable[str]) -> Places:
        """Find entities, given as tokens in small letters, and words, given as stems, in a corpus."""
        by_first: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for entity in entities:
            by_first[entity[0]].append(entity)
        for candidates in by_first.values():
            candidates.sort(key=len, reverse=True)
        found: dict[tuple[str, ...], array[int]] = {}
        stems: dict[str, array[int]] = {word: array("q") for word in words}
        around: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for position, text in enumerate(texts):
            tokens = [token.casefold() for token in tokens_of(text)]
            for word in {token[:_PREFIX] for token in tokens} & stems.keys():
                stems[word].append(position)
            for at, token in enumerate(tokens):
                for entity in by_first.get(token, ()):
                    end = at + len(entity)
                    if len(entity) == 1 or tuple(tokens[at:end]) == entity:
                        places = found.setdefault(entity, array("q"))
                        if not places or places[-1] != position:
                            places.append(position)
                        around[entity].update(context_of(tokens, at, end))
                        break
        return cls(
            {entity: np.array(places, np.int64) for entity, places in found.items()},
            {word: np.array(places, np.int64) for word, places in stems.items()},
            dict(around),
        )


def context_of(tokens: Sequence[str], begin: int, end: int) -> tuple[str, str]:
    """Return the words directly before and after an entity, in small letters."""
    return (
        f"<{tokens[begin - 1].casefold() if begin else ''}",
        f">{tokens[end].casefold() if end < len(tokens) else ''}",
    )


class Contexts:
    """Similarity of the words around entities to those around others: the cosine of the roots of their counts."""

    def __init__(self, around: Mapping[tuple[str, ...], Counter[str]], entities: Sequence[tuple[str, ...]]) -> None:
        counts: Counter[str] = Counter()
        for entity in entities:
            counts.update(around[entity])
        self._columns = {word: column for column, (word, _) in enumerate(counts.most_common(_FEATURES))}
        rows = [self._row(around[entity]) for entity in entities]
        self._matrix = np.stack(rows) if rows else np.zeros((0, len(self._columns)), np.float32)

    def _row(self, counts: Mapping[str, int]) -> Float32[ndarray, " features"]:
        row = np.zeros(len(self._columns), np.float32)
        for word, count in counts.items():
            if (column := self._columns.get(word)) is not None:
                row[column] = count**0.5
        return row / max(1.0, float(sum(counts.values())) ** 0.5)

    def similar(self, counts: Mapping[str, int]) -> Float32[ndarray, " entities"]:
        """Return the similarity, 0 to 1, of each entity to an entity with these counts."""
        return self._matrix @ self._row(counts)
