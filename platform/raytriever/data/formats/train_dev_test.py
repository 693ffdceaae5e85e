"""Division of questions into train, dev and test by hashes, so that the same questions always get the same splits.

Questions with an answer and those without are divided separately, so each split has its fraction of both kinds."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from raytriever.core.errors import ConfigError, DataError, flag_of, setting
from raytriever.data.data_settings import SplitConfig
from raytriever.data.data_sources import Source, SourceFile
from raytriever.data.formats.plan import RowParser
from raytriever.data.records_and_bad_rows import NO_ANSWER, Records

Id = TypeVar("Id", int, str)
TRAIN, DEV, TEST = SPLITS = ("train", "dev", "test")
ENOUGH = 50  # minimum number of questions in dev, and in test, for useful metrics and thresholds
_ROUNDING = 1e-9  # tolerance, because a sum such as 0.1 + 0.2 is not exact
_SMALL, _LARGE = 0.1, 0.3  # smallest and largest default fraction of dev, and of test


@dataclass(frozen=True)
class Fractions:
    """Fractions of the questions that become test and dev, 0 to 1. If the sum is 1, no question is left for train.

    None is the default: 0.1, or more if 50 questions need it, but at most 0.3 and at most half of the questions
    that the other fraction leaves. Raise `ConfigError` if the sum is more than 1."""

    test: float | None = None
    dev: float | None = None

    def __post_init__(self) -> None:
        if (self.test or 0.0) + (self.dev or 0.0) > 1 + _ROUNDING:
            where = f"{setting('test_fraction', self.test)}, {setting('dev_fraction', self.dev)}"
            raise ConfigError("have a sum above 1", where, "give fractions with a sum of at most 1")

    @property
    def has_train(self) -> bool:
        """Return whether questions are left to train."""
        return (self.test or 0.0) + (self.dev or 0.0) < 1 - _ROUNDING

    def of(self, count: int) -> tuple[float, float]:
        """Return the fractions of test and dev for a number of questions."""
        default = min(_LARGE, max(_SMALL, ENOUGH / max(1, count)))
        test, dev = self.test, self.dev
        if test is None:
            test = min(default, (1 - (dev or 0.0)) / 2)
        return test, min(default, (1 - test) / 2) if dev is None else dev

    def sizes(self, count: int, total: int | None = None) -> tuple[int, int]:
        """Return the numbers of test and dev questions among `count`; each is at least 1 unless its fraction is 0.
        The default fractions depend on `total`, the number of all questions (`count` if None)."""
        test, dev = (fraction and max(1, int(fraction * count + _ROUNDING)) for fraction in self.of(total or count))
        test = min(int(test), count)
        return test, min(int(dev), count - test) if self.has_train or not dev else count - test


def fractions_of(config: SplitConfig) -> Fractions:
    """Return the fractions of dev and test. With a file of test questions, the fraction of test is 0."""
    if not config.test_questions:
        return Fractions(config.test_fraction, config.dev_fraction)
    if config.test_fraction:
        what, remedy = f"has no effect with {setting('test_questions')}", "leave out one of the two"
        raise ConfigError(what, setting("test_fraction", config.test_fraction), remedy)
    return Fractions(0.0, config.dev_fraction)


def test_file(config: SplitConfig) -> SourceFile | None:
    """Return the file of test questions, or None. Raise `DataError` if the path is a folder of several files."""
    if not config.test_questions:
        return None
    files = Source.open(config.test_questions).files
    if len(files) != 1:
        what = f"is a folder of {len(files):,} files"
        raise DataError(what, setting("test_questions", config.test_questions), "give one file")
    return files[0]


@dataclass(frozen=True)
class HashSplit:
    """Split of a text by the SHA-256 of seed and text: test up to the bound `test`, dev up to `dev`, else train."""

    test: bytes = b""
    dev: bytes = b""
    seed: int = 0

    @classmethod
    def of(cls, texts: Iterable[str], sizes: tuple[int, int], seed: int = 0) -> HashSplit:
        """Return the split of distinct texts: the smallest hashes are test, the next dev; `sizes` says how many."""
        bounds = [b"", *sorted({hash_of(text, seed) for text in texts})]
        test = min(sizes[0], len(bounds) - 1)
        return cls(bounds[test], bounds[min(test + sizes[1], len(bounds) - 1)], seed)

    @classmethod
    def of_fractions(cls, test: float, dev: float, seed: int = 0) -> HashSplit:
        """Return the split in which each text is test or dev with these probabilities, independent of other texts."""
        first, second = (min(int(fraction * 2**256), 2**256 - 1).to_bytes(32) for fraction in (test, test + dev))
        return cls(first, second, seed)

    def __call__(self, text: str) -> str:
        """Return the split of a text."""
        digest = hash_of(text, self.seed)
        return TEST if digest <= self.test else DEV if digest <= self.dev else TRAIN


def split_by_hash(
    texts: Mapping[Id, str], sizes: tuple[int, int], seed: int = 0, known: Mapping[Id, str] | None = None
) -> dict[Id, str]:
    """Return the split of each text, by its id: the split in `known`, else the split of `HashSplit.of` for `sizes`."""
    known = known or {}
    waiting = {name: text for name, text in texts.items() if name not in known}
    have = Counter(known[name] for name in texts.keys() - waiting.keys())
    test, dev = (max(0, size - have[split]) for split, size in zip((TEST, DEV), sizes, strict=True))
    split_of = HashSplit.of(waiting.values(), (test, dev), seed)
    return {name: known[name] if name in known else split_of(text) for name, text in texts.items()}


def hash_of(text: str, seed: int = 0) -> bytes:
    """Return the hash of 32 bytes by which paths or questions are ordered."""
    return hashlib.sha256((f"{seed}\0{text}" if seed else text).encode(errors="replace")).digest()


@dataclass(frozen=True)
class Division:
    """Splits of the queries of a file, by text. `unanswered` is for queries that no document answers."""

    answered: HashSplit
    unanswered: HashSplit

    @classmethod
    def of_file(
        cls, config: SplitConfig, where: str, questions: Callable[[str], Iterable[tuple[int, str, bool]]]
    ) -> tuple[Division, str]:
        """Return the division of the queries of a file, and a description of it.

        `questions` returns, for the path of a file, its queries: row, text, and whether a document answers it. Raise
        `DataError` if there are too few queries, or if a query is also in the file of test questions."""
        fractions, test = fractions_of(config), test_file(config)
        asked = {(text, is_answered) for _, text, is_answered in questions(where)}
        division = cls.of(asked, where, fractions)
        splits = {text: division.split_of(text, is_answered) for text, is_answered in asked}
        counts = Counter(splits.values())
        if test is not None:
            from raytriever.data.hashed_ids import normalize  # so `import raytriever` does not load NumPy

            known = {normalize(text) for text in splits}
            for row, text, _ in questions(test.where):
                if normalize(text) in known:
                    what, remedy = f"the question is also in {where}", "remove it from one of the files"
                    raise DataError(what, f"{test.where} row {row}", remedy)
                counts[TEST] += 1
        parts = ", ".join(f"{split} has {counts[split]:,}" for split in SPLITS)
        few = few_questions(counts, fractions)
        return division, f"of its queries {parts}, by their digest" + (f". {few}" if few else "")

    @classmethod
    def of(cls, queries: Iterable[tuple[str, bool]], where: str, fractions: Fractions) -> Division:
        """Return the division of queries. Each is a text, and whether a document answers it. Raise `DataError` if there
        are too few different queries with an answer."""
        texts: dict[bool, set[str]] = {True: set(), False: set()}
        for text, is_answered in queries:
            texts[is_answered].add(text)
        count, total = len(texts[True]), sum(map(len, texts.values()))
        sizes = fractions.sizes(count, total)
        if sum(sizes) >= count + (not fractions.has_train) or any(
            fraction and not size for fraction, size in zip(fractions.of(total), sizes, strict=True)
        ):
            kind = " with an answer" if texts[False] else ""
            what = f"has {count} different queries{kind}, too few to divide into train, dev and test"
            raise DataError(what, where, "give at least 3 questions, or a column `split`")
        return cls(
            HashSplit.of(texts[True], sizes), HashSplit.of(texts[False], fractions.sizes(len(texts[False]), total))
        )

    def split_of(self, text: str, is_answered: bool = True) -> str:
        """Return the split of a query."""
        return (self.answered if is_answered else self.unanswered)(text)


def divided_row(parse: RowParser, division: Division, row: Any, records: Records, _: str) -> None:
    """Parse a row. The text of its query (or the id, if there is no text) determines the split of its judgements."""
    queries, judgements = len(records.queries), len(records.judgements)
    parse(row, records, TRAIN)
    added = records.judgements[judgements:]
    if added:
        text = records.queries[-1].text if len(records.queries) > queries else added[0].query
        split = division.split_of(text, all(judgement.document != NO_ANSWER for judgement in added))
        records.judgements[judgements:] = [judgement._replace(split=split) for judgement in added]


def few_questions(counts: Mapping[str, int], fractions: Fractions) -> str:
    """Return one line, with a remedy, if dev or test has fewer than 50 questions; empty if both have enough. `counts`
    has the number of questions by split. A split whose fraction is 0 is not checked."""
    wanted = {
        split: fraction
        for split, fraction in zip((TEST, DEV), fractions.of(sum(counts.values())), strict=True)
        if fraction
    }
    few = [split for split in wanted if counts.get(split, 0) < ENOUGH]
    if not few:
        return ""
    has = " and ".join(f"{split} has {counts.get(split, 0):,}" for split in few)
    flags = " and ".join(f"{flag_of(f'{split}_fraction')} (now {wanted[split]:.2g})" for split in few)
    return (
        f"Of {sum(counts.values()):,} questions {has}, fewer than the {ENOUGH} that metrics and thresholds should "
        f"have: add questions, or raise {flags}."
    )
