"""Splits of an import: documents, and the questions that they answer, are divided into train, dev and test.

Documents that answer the same question are one group, and a group has one split. Groups are taken in the order of the
hash of seed and path, until test and dev have their shares of the questions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from raytriever.data.formats.division import DEV, SPLITS, TEST, TRAIN, Shares, divide, hash_of
from raytriever.documents.questions import Questions

_SHARE = 0.1  # of the documents that answer no question


def split_import(
    paths: Iterable[str], questions: Questions | None, seed: int, shares: Shares, known: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the split of each document by its path, and of each question without an answer by its id.

    `known` has the splits, by path and by id, that documents and questions keep from an earlier import. A split that
    the row of a question names counts more.
    """
    known = known or {}
    if questions is None:
        return assign_splits(paths, seed, (), shares, known), {}
    groups, without = list(questions.groups()), questions.unanswerable
    named = {name: one.split for name, one in without.items() if one.split}
    texts = {name: one.text for name, one in without.items() if not one.split}
    total = len(groups) + len(texts)
    splits = assign_splits(paths, seed, groups, shares, {**known, **questions.named_splits()}, total)
    return splits, named | divide(texts, seed, shares.sizes(len(texts), total), known)


def assign_splits(
    paths: Iterable[str],
    seed: int,
    groups: Iterable[Sequence[str]] = (),
    shares: Shares | None = None,
    known: Mapping[str, str] | None = None,
    total: int | None = None,
) -> dict[str, str]:
    """Return the split of each document, by its path.

    Args:
        paths: documents, relative to their folder.
        seed: seed of the hashes.
        groups: for each question, the documents that answer it.
        shares: shares of the questions; None for the default.
        known: splits that documents keep, such as those of an earlier import. A group whose documents are known in
            several splits has the first of train, dev, test: a question that was trained on is never measured.
        total: number of all questions, with those that no document answers, which decides the default shares; None
            for the number of groups.

    Returns:
        Splits by path. Groups that fit join a split, then one that is too large if that brings the split nearer to its
        number of questions. The last group is left to train. A document without questions is divided by its hash alone,
        so further ones move none.
    """
    shares, known = shares or Shares(), known or {}
    root = _Groups()
    asked = [root.join(group) for group in groups]
    members: dict[str, list[str]] = defaultdict(list)
    for path in (ordered := list(paths)):
        members[root.of(path)].append(path)
    questions = Counter(map(root.of, asked))
    splits = {
        first: next(split for split in SPLITS if split in kept)
        for first, paths_of in members.items()
        if (kept := {known[path] for path in paths_of if path in known})
    }
    have = Counter({split: sum(questions[first] for first in splits if splits[first] == split) for split in SPLITS})
    waiting = sorted((one for one in questions if one not in splits), key=lambda one: (hash_of(one, seed), one))
    for split, size in zip((TEST, DEV), shares.sizes(len(asked), total), strict=True):
        for most in (1, 2):  # groups that fit; then one that is too large, if that is nearer
            for first in list(waiting):
                missing = size - have[split]
                if missing <= 0 or (len(waiting) == 1 and not have[TRAIN]):
                    break
                if questions[first] <= most * missing:
                    waiting.remove(first)
                    splits[first] = split
                    have[split] += questions[first]
    splits |= dict.fromkeys(waiting, TRAIN)
    return {path: splits.get(root.of(path)) or _by_hash(path, seed, shares) for path in ordered}


def _by_hash(path: str, seed: int, shares: Shares) -> str:
    test, dev = (_SHARE if share is None else share for share in (shares.test, shares.dev))
    number = int.from_bytes(hash_of(path, seed)) / 2**64
    return TEST if number < test else DEV if number < test + dev else TRAIN


class _Groups:
    """Groups of documents that share questions; each is named by the path that comes first."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return the name of the group of a document."""
        while (above := self._first.get(path, path)) != path:
            self._first[path] = self._first.get(above, above)
            path = above
        return path

    def join(self, paths: Sequence[str]) -> str:
        """Make one group of the groups of some documents; return one of these."""
        for path in paths[1:]:
            one, other = sorted((self.of(paths[0]), self.of(path)))
            self._first[other] = one
        return paths[0]
