"""The embedded data set: docstrings of the standard library, their questions and answers."""

from __future__ import annotations

import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from raytriever.data import pydocs
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.pydocs import Pair, distinct, normalized, pairs_of, pydocs_folder, question_and_answer

REST = "It says at some length what the arguments are and what comes back."


def function(name: str, sentence: str, rest: str = REST) -> str:
    body = 'raise SystemExit("imported")'
    return f'def {name}(self, a, b=1):\n    """{sentence}\n\n    {rest} Called {name}.\n    """\n    {body}\n\n\n'


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of one package, of 200 functions, in place of the real one; the cache is empty."""
    library = tmp_path / "lib"
    for folder in ("pkg/test", "pkg/_impl", "pkg/site-packages", "pkg/inner"):
        (library / folder).mkdir(parents=True)
    many = "".join(function(f"f{n}", f"Compute the measure number {n} of all rows.") for n in range(200))
    (library / "pkg/__init__.py").write_text(function("shown", "Show the rows of a table. And more."))
    (library / "pkg/many.py").write_text(many)
    (library / "pkg/inner/deep.py").write_text(
        "class Outer:\n    class _Hidden:\n        def method(self):\n            '''Not public.'''\n"
        f"    def method(self):\n        '''Method of a class.\n\n        {REST}\n        '''\n"
        f"        def local():\n            '''Not an interface.\n\n            {REST}\n            '''\n"
    )
    for left_out in ("pkg/test/inner.py", "pkg/_impl/it.py", "pkg/site-packages/y.py", "_own.py"):
        (library / left_out).write_text(function("hidden", f"Hide the rows in {left_out[:9]} of it."))
    monkeypatch.setattr(pydocs.sysconfig, "get_path", lambda name: str(library))
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    return library


def test_is_opened_by_name_and_holds_what_is_public(library: Path) -> None:
    dataset = open_dataset("pydocs", ["train", "dev", "test"])
    assert dataset.name == "pydocs"
    assert len(dataset.documents) == len(dataset.queries) == 202
    position = dataset.documents.ids.index("pkg.shown")
    assert dataset.queries.ids[position] == "q:pkg.shown"
    assert dataset.queries.texts[position] == "Show the rows of a table"
    assert dataset.passage_text(position) == f"pkg.shown shown(a, b=1) And more. {REST} Called shown."
    assert "pkg.inner.deep.Outer.method" in dataset.documents.ids
    queries = [query for split in dataset.judgements.values() for query in split.queries.tolist()]
    assert sorted(queries) == list(range(202))


def test_is_built_once_for_a_version_of_python(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pydocs_folder()
    before = (folder / "corpus.jsonl").stat().st_mtime_ns
    assert pydocs_folder() == folder
    assert (folder / "corpus.jsonl").stat().st_mtime_ns == before
    monkeypatch.setattr(pydocs.platform, "python_version", lambda: "3.99.0")
    assert pydocs_folder() != folder


def test_equal_sentences_and_passages_count_once() -> None:
    pairs = [
        Pair("a.b.c", "Return the sum.", "one"),
        Pair("a.c", "return the SUM", "two"),
        Pair("a.d", "Return another.", "Two!"),
        Pair("a.C", "Return a third.", "three"),
        Pair("a.e", "Return a fourth.", "four"),
    ]
    # The shortest name comes first, then the alphabet: a.C keeps a.c's name, a.c would have kept the sentence,
    # a.d the passage.
    for order in (pairs, pairs[::-1]):
        assert [pair.name for pair in distinct(iter(order))] == ["a.C", "a.b.c", "a.d", "a.e"]
    assert [pair.name for pair in distinct(iter(pairs[:3]))] == ["a.c"]


def test_the_standard_library_reads_well() -> None:
    pairs = distinct(pairs_of(Path(sysconfig.get_path("stdlib"))))
    assert 1_000 < len(pairs) <= 4_000
    assert pairs == distinct(pairs_of(Path(sysconfig.get_path("stdlib"))))
    assert len({normalized(pair.query) for pair in pairs}) == len(pairs)
    counts = Counter(pair.split for pair in pairs)
    assert min(counts["test"], counts["dev"]) > 80
    by_name = {pair.name: pair for pair in pairs}
    assert by_name["json.dumps"].query == "Serialize obj to a JSON formatted str."
    assert by_name["json.dumps"].passage.startswith("dumps(obj, *, skipkeys=False, ensure_ascii=True")
    for pair in pairs:
        assert normalized(pair.query) not in normalized(f"{pair.name} {pair.passage}")
        assert "_" not in [part[0] for part in pair.name.split(".")]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (f"Return the `mean`\nof rows. More.\n\n{REST}", ("Return the mean of rows", f"More. {REST}")),
        (f"Return the mean of rows\n\n{REST}", ("Return the mean of rows", REST)),
        (f"Return the mean of rows.\n\n{REST} " + "word " * 1000, ("Return the mean of rows.", None)),
        (f"Too short.\n\n{REST}", None),
        (f"lower case is no sentence here.\n\n{REST}", None),
        (f"The values of this are the following:\n\n{REST}", None),
        ("Says little in the rest of it.\n\nVery little.", None),
        ("Says nothing more than one sentence.", None),
    ],
)
def test_the_first_sentence_is_the_question(docstring: str, expected: tuple[str, str | None] | None) -> None:
    result = question_and_answer(docstring)
    assert (result is None) == (expected is None)
    if result is not None and expected is not None:
        assert result[0] == expected[0]
        assert len(result[1]) <= 1_200
        assert result[1] == expected[1] or expected[1] is None
