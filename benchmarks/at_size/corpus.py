"""Generated data set with the shape of MS MARCO's passages, in BEIR's layout.

Passages have 56 words on average. Words follow Zipf's law: the stop words of English are the most frequent, then come
words of one to four syllables. A passage takes 40 % of its words from its topic, 100 passages share a topic, and a
topic has 200 words of its own. A query has three to six words of its positive passage, of which most are words of the
topic, and often a word such as `what`. 1 of 17.6 passages is the positive of a training query.

Passages are drawn in blocks, each from (seed, block). The files are written block by block, and are the same bytes for
the same number of passages and seed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy import ndarray

PASSAGES = 8_841_823  # MS MARCO's
PER_TRAINING_QUERY, DEV_QUERIES = 17.6, 7_000
WORDS, SHORTEST, LONGEST = 56, 16, 160
TOPIC_PASSAGES, TOPIC_WORDS, TOPIC_FRACTION = 100, 200, 0.4
VOCABULARY = 1 << 21
_FREQUENT = (
    "the of and a to in is it for that on as with are be this by or at not from an was will if but can you your which "
    "what how when where who does why many long much have has they their its one all more than other use used about "
    "also most these may such no there into then been only first time two some like make out up do any so between each "
    "were we after through however our over his number called made"
)
FREQUENT = _FREQUENT.split()
QUESTIONS = np.array([FREQUENT.index(word) for word in ["what", "how", "when", "where", "who", "does", "why", "is"]])
_BLOCK = 20_000


@dataclass(frozen=True)
class Sizes:
    """Numbers of passages and queries of a data set."""

    passages: int

    @property
    def train(self) -> int:
        """Number of training queries."""
        return max(1, round(self.passages / PER_TRAINING_QUERY))

    @property
    def dev(self) -> int:
        """Number of dev queries: MS MARCO's, or one for 100 passages of a small corpus."""
        return max(1, min(DEV_QUERIES, self.passages // 100))

    @property
    def topics(self) -> int:
        """Number of topics."""
        return max(2, self.passages // TOPIC_PASSAGES)


@dataclass(frozen=True)
class _Block:
    """Words of passages as ids; passage i has `words[offsets[i]:offsets[i + 1]]`, topical where `topical` is true."""

    words: ndarray
    topical: ndarray
    offsets: ndarray


def vocabulary() -> ndarray:
    """Return all words as an array of strings, the most frequent first."""
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
    base = len(syllables)
    words, size = list(FREQUENT), 1
    taken = set(FREQUENT)
    while len(words) < VOCABULARY:
        for number in range(base**size):
            parts = []
            for _ in range(size):
                number, digit = divmod(number, base)
                parts.append(syllables[digit])
            word = "".join(parts)
            if word not in taken:
                words.append(word)
            if len(words) == VOCABULARY:
                break
        size += 1
    return np.array(words, dtype=object)


def write(folder: Path, passages: int, seed: int = 0) -> Sizes:
    """Write `corpus.jsonl`, `queries.jsonl`, `qrels/train.tsv` and `qrels/dev.tsv`; return the numbers."""
    sizes, names = Sizes(passages), vocabulary()
    (folder / "qrels").mkdir(parents=True)
    splits = {"train": sizes.train, "dev": sizes.dev}
    with (
        open(folder / "corpus.jsonl", "w") as corpus,
        open(folder / "queries.jsonl", "w") as queries,
        open(folder / "qrels" / "train.tsv", "w") as train,
        open(folder / "qrels" / "dev.tsv", "w") as dev,
    ):
        judged = {"train": train, "dev": dev}
        for file in judged.values():
            file.write("query-id\tcorpus-id\tscore\n")
        for number, start in enumerate(range(0, passages, _BLOCK)):
            end = min(start + _BLOCK, passages)
            rng = np.random.default_rng((seed, number))
            block = _draw_passages(rng, end - start, sizes.topics)
            _write_passages(corpus, start, block, names)
            for split, total in splits.items():
                numbers = range(start * total // passages, end * total // passages)
                positives = rng.choice(end - start, len(numbers), replace=len(numbers) > end - start)
                for query, row, words in zip(
                    numbers, positives.tolist(), _draw_queries(rng, block, positives), strict=True
                ):
                    queries.write(f'{{"_id": "{split}{query}", "text": "{" ".join(names[words])}"}}\n')
                    judged[split].write(f"{split}{query}\t{start + row}\t1\n")
    return sizes


def extend(source: Path, folder: Path, added: int, seed: int = 0) -> None:
    """Write the data set of `source` with `added` more passages of its topics, which no query asks for."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("encoder"))
    with open(folder / "corpus.jsonl", "rb") as file:
        passages = sum(1 for _ in file)
    with open(folder / "corpus.jsonl", "a") as corpus:
        block = _draw_passages(np.random.default_rng((seed, passages, added)), added, Sizes(passages).topics)
        _write_passages(corpus, passages, block, vocabulary())


def _write_passages(corpus: TextIO, start: int, block: _Block, names: ndarray) -> None:
    texts = names[block.words].tolist()
    bounds = block.offsets.tolist()
    corpus.writelines(
        f'{{"_id": "{start + row}", "title": "", "text": "{" ".join(texts[first:last])}"}}\n'
        for row, (first, last) in enumerate(pairwise(bounds))
    )


def _draw_passages(rng: np.random.Generator, passages: int, topics: int) -> _Block:
    lengths = np.clip(rng.gamma(5.0, WORDS / 5.0, passages), SHORTEST, LONGEST).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    # The logarithm of a rank is uniform: word r has a fraction of 1 / (r ln V).
    words = _ranks(rng.random(total), 1, VOCABULARY)
    topical = rng.random(total) < TOPIC_FRACTION
    topic = np.repeat(rng.integers(topics, size=passages), lengths)[topical]
    member = _ranks(rng.random(len(topic)), 1, TOPIC_WORDS)
    # The words of a topic depend on its number alone. They are rarer than the frequent words of the language.
    words[topical] = _ranks(_uniform(topic * TOPIC_WORDS + member), 200, VOCABULARY)
    return _Block(words, topical, offsets)


def _draw_queries(rng: np.random.Generator, block: _Block, positives: ndarray) -> Iterator[ndarray]:
    for passage in positives:
        inside = slice(block.offsets[passage], block.offsets[passage + 1])
        words, topical = block.words[inside], block.topical[inside]
        chosen = rng.permutation(words[topical])[: rng.integers(2, 5)]
        others = rng.choice(words, rng.integers(1, 3))
        question = rng.choice(QUESTIONS, int(rng.random() < 0.6))
        yield np.concatenate([question, rng.permutation(np.concatenate([chosen, others]))])


def _ranks(uniform: ndarray, first: int, end: int) -> ndarray:
    """Map numbers in [0, 1) to positions from `first - 1`, below `end - 1`, with shares as 1 / rank."""
    return (first * np.exp(uniform * np.log(end / first))).astype(np.int64) - 1


def _uniform(numbers: ndarray) -> ndarray:
    """Hash integers to [0, 1), by the finaliser of SplitMix64."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53
