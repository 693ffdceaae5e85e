"""Hard questions: an entity of a question is replaced by another one of the corpus, by rules without a language model.

SQuAD 2.0 has such questions by people (Rajpurkar et al. 2018, arXiv:1806.03822), with entity swaps among them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from entities import (
    MOST_WORDS,
    NAME,
    NUMBER,
    ORDINAL,
    TERM,
    YEAR,
    Contexts,
    Places,
    Vocabulary,
    context_of,
    names_in,
    number_type,
    shape,
    stem,
    tokens_of,
)
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hashed_ids import normalize

_POOL = 3_000  # entities of a type that may replace another
_OCCURRENCES = 5  # least number of occurrences of a name that replaces another
_TRIED = 20  # candidates for a question, the most similar ones
_SIMILAR = 0.5  # least similarity of the words around a name or a term
_MOST_FRACTION = 0.5  # of the weight of the words that the relevant passage has
_YEARS = (3, 60)  # least and greatest distance of two years
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about after all also am an and any are as at be because been before being between both but by can could did "
        "do does doing during each for from had has have he her here him his how i if in into is it its many may me "
        "might more most much must my no not of on one only or other our out over s shall she should so some such t "
        "than that the their them then there these they this those through to too under until up us very was we were "
        "what when where which while who whom whose why will with would you your",
    )
)


class _Entity(NamedTuple):
    """Entity of a question: its type, its first token and the one after its last."""

    type: str
    begin: int
    end: int


def hard_questions(dataset: RetrievalDataset, positions: Iterable[int], seed: int) -> dict[int, str]:
    """Return questions whose entities occur in the corpus, but that no passage answers, by position of the original.

    1. An entity of the question is chosen by the hash of seed and id: a name, a year, an ordinal or another number; in
       a corpus without capitals a rare term. `entities` defines them. A name must also occur as a whole name
       within a sentence of a relevant passage. In a question with capitals it is a whole run of capitalized words; in
       one without, the longest run of words that is such a name.
    2. It is replaced by an entity of the same type in the corpus. Names and terms have the same shape and number of
       words (1, 2, or more), and a similar context: the cosine of the counts of the words directly before and after
       them is at least 0.5. Years are 3 to 60 years apart; other numbers have as many digits.
    3. The content words of the question are its other words, without function words, by their first five letters. Each
       weighs log(passages / passages with it). The relevant passage has a part of this weight. The new question is
       accepted if every passage with the new entity has less than half as much. Of the most similar entities the first
       accepted one in the order of the hash is used. If there is none, the next entity of the question is tried.

    The rule sees words, not meaning: a passage that answers the new question in other words is not noticed.

    Args:
        dataset: with the judgements of the questions, in any opened split.
        positions: positions of questions. One without an entity, without a relevant passage or without an accepted
            replacement is left out.
        seed: another seed gives other questions; the same seed and data set give the same ones.

    Returns:
        The new text by position, in the order of `positions`. No text is a query of the data set.
    """
    maker = _Maker(dataset, list(positions), seed)
    return {query: text for query in maker.questions if (text := maker.make(query)) is not None}


@dataclass
class _Question:
    tokens: list[str]
    entities: list[_Entity]
    relevant: Int64[ndarray, " passages"]


class _Maker:
    """Corpus of a data set with all that its questions need."""

    def __init__(self, dataset: RetrievalDataset, positions: Sequence[int], seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        passages = dataset.passages()
        self._vocabulary = vocabulary = Vocabulary.of(passages)
        self._names = {tuple(name.casefold().split(" ")): name for name in vocabulary.names if vocabulary.is_name(name)}
        relevant = self._relevant()
        self.questions = {
            query: _Question(tokens, self._entities(tokens, relevant[query]), relevant[query])
            for query in positions
            if query in relevant and (tokens := tokens_of(dataset.queries.texts[query]))
        }
        pool = self._pool()
        asked = {self._key(questions, entity) for questions in self.questions.values() for entity in questions.entities}
        words = {stem(token) for questions in self.questions.values() for token in questions.tokens}
        self._places = Places.of(passages, {*asked, *(key for keys in pool.values() for key in keys)}, words)
        self._pool_of = {kind: [key for key in keys if key in self._places.entities] for kind, keys in pool.items()}
        self._contexts = {kind: Contexts(self._places.around, self._pool_of[kind]) for kind in (NAME, TERM)}
        self._known = {normalize(text) for text in dataset.queries.texts}

    def _relevant(self) -> dict[int, ndarray]:
        relevant: dict[int, ndarray] = {}
        for split in self._dataset.judgements:
            positives = self._dataset.positives(split)
            for row, query in enumerate(positives.queries.tolist()):
                relevant[query] = positives.of(row)
        return relevant

    def _pool(self) -> dict[str, list[tuple[str, ...]]]:
        """Return entities of each type that may replace another: at most 3,000, those of the smallest hashes."""
        vocabulary = self._vocabulary
        pool: dict[str, list[tuple[str, ...]]] = {kind: [] for kind in (YEAR, ORDINAL, NUMBER)}
        pool[NAME] = [key for key, name in self._names.items() if vocabulary.names[name] >= _OCCURRENCES]
        for token in vocabulary.frequency:
            if (kind := number_type(token)) is not None:
                pool[kind].append((token,))
        pool[TERM] = []
        if vocabulary.is_lower_case:
            pool[TERM] = [(word,) for word in vocabulary.small if vocabulary.is_rare(word)]
        return {kind: sorted(keys, key=lambda key: self._hash(" ".join(key)))[:_POOL] for kind, keys in pool.items()}

    def _entities(self, tokens: list[str], relevant: ndarray) -> list[_Entity]:
        """Return the entities of a question; they do not overlap."""
        free = set(range(len(tokens)))
        entities = list(self._names_of(tokens, self._names_near(relevant)))
        for entity in entities:
            free.difference_update(range(entity.begin, entity.end))
        for at in sorted(free):
            kind = number_type(tokens[at])
            if kind is None and self._vocabulary.is_lower_case and self._vocabulary.is_rare(tokens[at]):
                kind = TERM
            if kind is not None:
                entities.append(_Entity(kind, at, at + 1))
        return entities

    def _names_near(self, relevant: ndarray) -> set[tuple[str, ...]]:
        """Return the names in relevant passages, in small letters."""
        names = set()
        for row in relevant.tolist():
            tokens = tokens_of(self._dataset.passage_text(row))
            for begin, end in names_in(tokens):
                names.add(tuple(token.casefold() for token in tokens[begin:end]))
        return names & self._names.keys()

    @staticmethod
    def _names_of(tokens: list[str], names: set[tuple[str, ...]]) -> Iterator[_Entity]:
        folded = tuple(token.casefold() for token in tokens)
        if any(token[0].isupper() for token in tokens[1:]):
            for begin, end in names_in(["-", *tokens]):  # a question may begin with a name
                begin, end = begin - 1, end - 1
                begin += folded[begin] in _FUNCTION_WORDS
                if folded[begin:end] in names:
                    yield _Entity(NAME, begin, end)
            return
        at = 0
        while at < len(tokens):
            ends = range(min(len(tokens), at + MOST_WORDS), at, -1)
            end = next((end for end in ends if folded[at:end] in names), 0)
            if end and not (end == at + 1 and folded[at] in _FUNCTION_WORDS):
                yield _Entity(NAME, at, end)
            at = end or at + 1

    def make(self, query: int) -> str | None:
        """Return the new text of a question, None without one."""
        question, name = self.questions[query], self._dataset.queries.ids[query]
        for entity in sorted(question.entities, key=lambda entity: self._hash(f"{name}\0{entity}")):
            old = self._key(question, entity)
            weights = self._weights(question, entity)
            has = max(self._weight(question.relevant[[row]], weights).max() for row in range(len(question.relevant)))
            if old not in self._places.entities or not has:
                continue
            for new in self._candidates(question, entity, old, name):
                if self._weight(self._places.entities[new], weights).max() < _MOST_FRACTION * has:
                    text = self._replaced(query, entity, new)
                    if normalize(text) not in self._known:
                        return text
        return None

    def _candidates(
        self, question: _Question, entity: _Entity, old: tuple[str, ...], name: str
    ) -> list[tuple[str, ...]]:
        """Return entities of the same type, the most similar ones, in the order of the hash."""
        pool = self._pool_of[entity.type]
        inside = {token.casefold() for token in question.tokens}
        if entity.type == YEAR:
            least, most = _YEARS
            chosen = [key for key in pool if least <= abs(int(key[0]) - int(old[0])) <= most]
        elif entity.type in (NUMBER, ORDINAL):
            chosen = [key for key in pool if len(key[0]) == len(old[0]) and ("." in key[0]) == ("." in old[0])]
        else:
            around = self._places.around[old] + Counter(context_of(question.tokens, entity.begin, entity.end))
            form = self._form(entity.type, old)
            scores = self._contexts[entity.type].similar(around)
            ranked = (pool[row] for row in np.argsort(-scores, kind="stable") if scores[row] >= _SIMILAR)
            fitting = (key for key in ranked if self._form(entity.type, key) == form and not inside.intersection(key))
            chosen = list(islice(fitting, _TRIED))
        return sorted((key for key in chosen if key != old), key=lambda key: self._hash(f"{name}\0{key}"))[:_TRIED]

    def _form(self, kind: str, key: tuple[str, ...]) -> tuple[int, str]:
        """Return the number of words of an entity, at most 3, and its shape."""
        return min(len(key), 3), shape(self._names.get(key, "")) if kind == NAME else ""

    def _weights(self, question: _Question, entity: _Entity) -> dict[str, float]:
        """Return the weight of each content word of a question, by its stem."""
        others = [*question.tokens[: entity.begin], *question.tokens[entity.end :]]
        stems = {stem(token) for token in others if token[0].isalnum() and token.casefold() not in _FUNCTION_WORDS}
        counts = {word: len(self._places.words[word]) for word in stems}
        return {word: log(self._vocabulary.passages / count) for word, count in counts.items() if count}

    def _weight(self, passages: ndarray, weights: dict[str, float]) -> ndarray:
        """Return the weight of the content words that each passage has."""
        total = np.zeros(len(passages))
        for word, weight in weights.items():
            total[np.isin(passages, self._places.words[word], assume_unique=True)] += weight
        return total

    def _replaced(self, query: int, entity: _Entity, new: tuple[str, ...]) -> str:
        """Return the text of a question with another entity, in small letters if the old one is."""
        text, tokens = self._dataset.queries.texts[query], self.questions[query].tokens
        starts, at = [], 0
        for token in tokens:
            at = text.index(token, at)
            starts.append(at)
            at += len(token)
        end = starts[entity.end - 1] + len(tokens[entity.end - 1])
        old = text[starts[entity.begin] : end]
        written = " ".join(new) if old.islower() or entity.type != NAME else self._names[new]
        return text[: starts[entity.begin]] + written + text[end:]

    @staticmethod
    def _key(question: _Question, entity: _Entity) -> tuple[str, ...]:
        return tuple(token.casefold() for token in question.tokens[entity.begin : entity.end])

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(f"{self._seed}\0{text}".encode(), digest_size=8).digest()
