"""An index that changes while it is searched: additions, removals and the data set of now, each whole or not at all."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytriever as rt
from raytriever.data.columns import EditedColumn
from raytriever.encoding import shards
from raytriever.index.exact import search as exact_search
from raytriever.search import exact

KINDS = ("exact", "ivf", "hnsw")
NEW = {"new": {"title": "Vienna", "text": "zzz danube"}, "newer": "qqq mur"}


@pytest.fixture
def folder(tiny_dataset: Path, workplace: Path) -> Path:
    return Path(shutil.copytree(tiny_dataset, workplace / "data"))


@pytest.fixture
def build(folder: Path, tiny_encoder: Path) -> Callable[..., rt.Index]:
    def build(kind: str = "exact", **settings: Any) -> rt.Index:
        more = {} if kind == "exact" else {"output": f"index-{kind}"}
        return rt.build_index(str(tiny_encoder), str(folder), kind=kind, **more, **settings)

    return build


def found(index: rt.Index, top_k: int = 1_000) -> dict[str, tuple[float, str, str]]:
    [hits] = index.search(["what is abc"], top_k=top_k)
    return {hit.document_id: (round(hit.score, 5), hit.title, hit.text) for hit in hits}


@pytest.mark.parametrize("kind", KINDS)
def test_added_passages_are_found_and_removed_ones_are_not(build: Callable[..., rt.Index], kind: str) -> None:
    index = build(kind)
    before = found(index)
    assert len(before) == len(index) == 160
    index.add(NEW)
    after = found(index)
    assert after.keys() - before.keys() == NEW.keys()
    assert after["new"][1:] == ("Vienna", "zzz danube")
    assert after["newer"][1:] == ("", "qqq mur")
    assert {name: after[name] for name in before} == before
    [[best]] = index.search(["vienna zzz danube"], top_k=1)
    assert best.document_id == "new"
    index.add({"half": {"title": "what is \ud83d", "text": ""}})  # a title alone, with half of a surrogate pair
    assert index.search(["what is ?"], top_k=1)[0][0].document_id == "half"
    index.remove(["half"])
    removed = sorted(before)[:7]
    index.remove([*removed, "newer"])
    left = found(index)
    assert left == {name: hit for name, hit in after.items() if name not in (*removed, "newer")}
    assert len(index) == 160 + 2 - 8
    # An id that was removed may be added again, with another text.
    index.add({removed[0]: "www other"})
    assert found(index)[removed[0]][1:] == ("", "www other")
    index.add({})
    index.remove([])
    assert len(index) == 155


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_index_ranks_as_one_that_is_built_of_the_same_passages(
    build: Callable[..., rt.Index], folder: Path, kind: str
) -> None:
    index = build(kind)
    index.remove(["d3", "d4"])
    index.add({"a": "abc abc", "z": "abc abc", "d3": "abc"})
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["_id"] not in ("d3", "d4")]
    rows += [{"_id": name, "title": "", "text": "abc abc" if name != "d3" else "abc"} for name in ("a", "z", "d3")]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = build("exact")
    for top_k in (1, 5, 1_000):
        assert list(found(index, top_k)) == list(found(other, top_k))
    assert list(found(index, 1_000).values()) == list(found(other, 1_000).values())


def test_refresh_reads_the_data_set_and_encodes_what_is_new(
    build: Callable[..., rt.Index], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, flat = build(), build("hnsw")
    index.add({"lost": "not in the data set"})
    rows = (folder / "corpus.jsonl").read_text().splitlines()
    changed = {"_id": json.loads(rows[1])["_id"], "title": "", "text": "vvv changed"}
    new = {"_id": "e1", "title": "", "text": "uuu new"}
    (folder / "corpus.jsonl").write_text("\n".join([*rows[2:], json.dumps(changed), json.dumps(new)]) + "\n")
    encoded: list[int] = []
    real = shards.start_encoding

    def counted(retriever: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        encoded.append(len(inputs))
        return real(retriever, inputs, *more, **named)

    monkeypatch.setattr(shards, "start_encoding", counted)
    index.refresh()
    assert sum(encoded) == 2
    flat.refresh()
    assert sum(encoded) == 2
    for each in (index, flat):
        there = found(each)
        assert len(there) == len(each) == 160
        assert there["e1"][2] == "uuu new"
        assert there[changed["_id"]][2] == "vvv changed"
        assert "lost" not in there
    shutil.rmtree(folder)
    with pytest.raises(rt.DataError, match="no such folder"):
        index.refresh()
    assert len(found(index)) == 160


@pytest.mark.slow
def test_searches_during_changes_see_all_of_a_change_or_nothing(build: Callable[..., rt.Index]) -> None:
    index = build()
    passages = {f"n{number}": f"vienna danube {number}" for number in range(6)}
    stop, problems, searches = threading.Event(), [], []

    def search() -> None:
        while not stop.is_set():
            try:
                [hits] = index.search(["vienna danube"], top_k=1_000)
                added = sum(hit.document_id in passages for hit in hits)
                searches.append(added)
                if added not in (0, 6) or len(hits) != 160 + added:
                    problems.append(added)
            except Exception as error:
                problems.append(error)

    def change() -> None:
        try:
            for _ in range(5):
                index.add(passages)
                index.remove(list(passages))
        except Exception as error:
            problems.append(error)

    searchers = [threading.Thread(target=search) for _ in range(3)]
    for each in searchers:
        each.start()
    change()
    stop.set()
    for each in searchers:
        each.join()
    assert not problems
    assert {0, 6} == set(searches)
    assert len(index) == 160


def test_two_changes_at_once_lose_nothing(build: Callable[..., rt.Index]) -> None:
    index = build()

    def add(number: int) -> None:
        index.add({f"n{number}-{each}": f"text {number} {each}" for each in range(5)})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(index) == len(found(index)) == 190


def test_blocks_without_a_removed_passage_are_shared(
    build: Callable[..., rt.Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_search, "MOST_ROWS", 64)
    monkeypatch.setattr(exact, "FEWEST_ROWS", 8)
    index = build()
    first: Any = index._searcher
    assert [len(block) for block in first.blocks] == [64, 64, 32]
    names = list(first.documents.ids)
    index.remove([names[64], names[70]])
    second: Any = index._searcher
    assert [len(block) for block in second.blocks] == [64, 62, 32]
    assert second.blocks[0] is first.blocks[0]
    assert second.blocks[2] is first.blocks[2]
    index.add({"a": "one"})
    index.add({"b": "two"})
    third: Any = index._searcher
    assert [len(block) for block in third.blocks] == [64, 62, 32, 2]
    assert third.blocks[1] is second.blocks[1]
    index.remove([*names[:64], "a"])
    assert list(found(index)) == list(found(index, 95))
    assert len(found(index)) == len(index) == 95


def _lines(build: Callable[..., rt.Index]) -> Iterator[tuple[str, Callable[[rt.Index], object]]]:
    yield "passages: the index has a passage 'd1'; remove it first", lambda index: index.add({"x": "y", "d1": "again"})
    yield (
        "passages: the passage 'e' is empty; give its text",
        lambda index: index.add({"e": {"title": "t", "text": " "}}),
    )
    yield "passages: the passage 'e' is no text; give a text", lambda index: index.add({"e": 3})  # type: ignore[dict-item]
    yield "passages: the id 3 is no text, or empty", lambda index: index.add({3: "e"})  # type: ignore[dict-item]
    yield "passages: is no dictionary; give {id: text}", lambda index: index.add(["e"])  # type: ignore[arg-type]
    yield "ids: 'd1' is repeated; give each id once", lambda index: index.remove(["d1", "d2", "d1"])
    yield "ids: the index has no passage 'd999'; give ids", lambda index: index.remove(["d1", "d999"])
    yield "ids: is one text, not a list", lambda index: index.remove("d1")


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_user_errors_are_one_line_and_change_nothing(build: Callable[..., rt.Index], kind: str) -> None:
    index = build(kind)
    before = found(index)
    for message, change in _lines(build):
        with pytest.raises(rt.ConfigError) as caught:
            change(index)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert found(index) == before
    if kind == "hnsw":
        with pytest.raises(
            rt.ConfigError, match=r"more than 20% of the passages have changed since the index was built"
        ):
            index.add({f"n{number}": f"text {number}" for number in range(33)})
    index.close()
    for late in (lambda: index.add({"a": "b"}), lambda: index.remove(["d1"]), index.refresh, lambda: len(index)):
        with pytest.raises(rt.ConfigError, match="the index is closed; build it again with build_index"):
            late()
    with pytest.raises(rt.ConfigError, match="the index is closed"):
        index.search(["a"])
    assert repr(index) == f"Index({kind!r}, closed)"


@pytest.mark.slow
def test_a_graph_that_no_library_changes_is_one_line(build: Callable[..., rt.Index]) -> None:
    index = build("roargraph")
    for change in (lambda: index.add({"a": "b"}), lambda: index.remove(["d1"])):
        with pytest.raises(rt.ConfigError, match="a roargraph index cannot be changed in memory; build another kind"):
            change()
    assert len(found(index)) == 160


def test_edited_columns() -> None:
    column = EditedColumn.of(["a", "b", "c", "d"], np.array([0, 2, 3]), ["x", "y"])
    assert list(column) == column[:] == ["a", "c", "d", "x", "y"]
    again = EditedColumn.of(column, np.array([1, 2, 4]), ["z"])
    assert list(again) == again.take(np.arange(4)) == ["c", "d", "y", "z"]
    assert (again[0], again[-1], again[1:3]) == ("c", "z", ["d", "y"])
    assert list(EditedColumn.of(again, np.array([], np.int64), [])) == []
    with pytest.raises(IndexError):
        again[4]
