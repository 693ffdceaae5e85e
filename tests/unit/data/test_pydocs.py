"""The embedded data set: docstrings, their questions and answers, and public names."""

from __future__ import annotations

import ast
import inspect
import sysconfig
from pathlib import Path

import pytest

from raytriever.data.prepare.open import open_dataset
from raytriever.data.pydocs import builder as pydocs
from raytriever.data.pydocs.builder import PublicNames, installed_versions, modules_of, source_roots
from raytriever.data.pydocs.docstrings import documented, flat, normalised, question_and_answer, signature
from raytriever.store.commit import read_manifest

REST = (
    "It tells at some length what the arguments are, what comes back, and when it fails, "
    "so that every reader knows as much as the author who wrote it."
)


def function(name: str, sentence: str, rest: str = REST) -> str:
    body = 'raise SystemExit("imported")'
    return f'def {name}(a, b=1):\n    """{sentence}\n\n    {rest} Called {name}.\n    """\n    {body}\n\n\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of one package, of 200 functions, in place of the real one; the cache is empty."""
    site = tmp_path / "site-packages"
    for folder in ("pkg/_impl", "pkg/tests", "pkg/_vendor/x", "raytriever"):
        (site / folder).mkdir(parents=True)
    many = "".join(function(f"f{n}", f"Compute the measure number {n} of all rows.") for n in range(200))
    (site / "pkg/__init__.py").write_text("from ._impl.work import shown\nraise SystemExit('imported')\n")
    (site / "pkg/many.py").write_text(many)
    (site / "pkg/_impl/__init__.py").write_text("")
    (site / "pkg/_impl/work.py").write_text(
        function("shown", "Show the rows of a table.") + function("kept_back", "Keep the rows of a table.")
    )
    for left_out in ("pkg/tests/inner.py", "pkg/test_it.py", "pkg/_vendor/x/y.py", "raytriever/own.py"):
        (site / left_out).write_text(function("hidden", f"Hide the rows in {left_out[:9]} of it."))
    monkeypatch.setattr(pydocs, "source_roots", lambda: [site])
    monkeypatch.setattr(pydocs, "installed_versions", lambda: ["python 3", "pkg 1"])
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    return site


def test_is_opened_by_name_and_holds_what_is_public(site: Path) -> None:
    dataset = open_dataset("pydocs", ["train", "dev", "test"])
    assert dataset.name == "pydocs"
    assert len(dataset.documents) == len(dataset.queries) == 201
    position = dataset.documents.ids.index("pkg.shown")
    assert dataset.queries.ids[position] == "q:pkg.shown"
    assert dataset.queries.texts[position] == "Show the rows of a table."
    assert dataset.passage_text(position) == f"pkg.shown shown(a, b=1) {REST} Called shown."
    queries = [query for split in dataset.judgements.values() for query in split.queries.tolist()]
    assert sorted(queries) == list(range(201))


def test_is_built_once_and_again_when_a_package_changes(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pydocs.pydocs_folder()
    before = (folder / "corpus.jsonl").stat().st_mtime_ns
    assert pydocs.pydocs_folder() == folder
    assert (folder / "corpus.jsonl").stat().st_mtime_ns == before
    assert read_manifest(folder)["meta"] == {"versions": ["python 3", "pkg 1"]}
    monkeypatch.setattr(pydocs, "installed_versions", lambda: ["python 3", "pkg 2"])
    assert pydocs.pydocs_folder() != folder


def test_a_cache_without_its_manifest_is_built_again(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pydocs.pydocs_folder()
    (folder / "manifest.json").unlink()
    assert pydocs.pydocs_folder() == folder
    assert (folder / "manifest.json").is_file()
    assert f"{folder}: is damaged or has no manifest; making it again" in capsys.readouterr().err


def test_equal_sentences_and_passages_count_once() -> None:
    pairs = [
        pydocs.Pair("a.b.c", "Return the sum.", "one"),
        pydocs.Pair("a.c", "return the SUM", "two"),
        pydocs.Pair("a.d", "Return another.", "Two!"),
        pydocs.Pair("a.C", "Return a third.", "three"),
        pydocs.Pair("a.e", "Return a fourth.", "four"),
    ]
    # The shortest name comes first, then the alphabet: a.C keeps a.c's name, a.c would have kept the sentence,
    # a.d the passage.
    for order in (pairs, pairs[::-1]):
        assert [pair.name for pair in pydocs.distinct(iter(order))] == ["a.C", "a.b.c", "a.d", "a.e"]
    assert [pair.name for pair in pydocs.distinct(iter(pairs[:3]))] == ["a.c"]


def test_the_key_names_what_is_installed_and_not_the_project() -> None:
    versions = installed_versions()
    assert versions[0].startswith("python 3.")
    assert any(version.startswith("pytest ") for version in versions)
    assert not any(version.startswith("raytriever") for version in versions)
    assert source_roots()[0] == Path(sysconfig.get_path("stdlib"))


def test_the_standard_library_reads_well() -> None:
    packages = ("asyncio", "doctest", "email", "http", "inspect", "json", "logging", "statistics", "unittest")
    modules = (each for each in modules_of(source_roots()[0]) if each[0].partition(".")[0] in packages)
    pairs = pydocs.distinct(pydocs.pairs_of(modules))
    assert len(pairs) > 150
    assert len({normalised(pair.query) for pair in pairs}) == len(pairs)
    by_name = {pair.name: pair for pair in pairs}
    assert by_name["json.dumps"].query == "Serialize obj to a JSON formatted str."
    assert by_name["json.dumps"].passage.startswith("dumps(obj, *, skipkeys=False, ensure_ascii=True")
    for pair in pairs:
        assert normalised(pair.query) not in normalised(f"{pair.name} {pair.passage}")
        assert "_" not in [part[0] for part in pair.name.split(".")]
        assert ".test" not in pair.name or pair.name.startswith(("doctest", "unittest"))


def test_a_part_has_the_first_root_and_then_the_packages_with_the_most_source(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    functions = "".join(function(f"g{n}", f"Return the weight number {n} of all rows.") for n in range(30))
    (first / "own.py").write_text(functions)
    (site / "small.py").write_text(function("only", "Name the smallest of all packages."))
    monkeypatch.setattr(pydocs, "source_roots", lambda: [first, site])
    monkeypatch.setattr(pydocs, "PART_PAIRS", 50)
    dataset = open_dataset("pydocs-part", ["train", "dev", "test"])
    assert (dataset.name, len(dataset.documents)) == ("pydocs-part", 50)
    packages = [name.partition(".")[0] for name in dataset.documents.ids]
    assert (packages.count("own"), packages.count("pkg")) == (30, 20)
    # The split is a function of the name.
    whole = open_dataset("pydocs", ["train", "dev", "test"])
    for split, rows in dataset.judgements.items():
        queries = {dataset.queries.ids[query] for query in rows.queries}
        assert queries <= {whole.queries.ids[query] for query in whole.judgements[split].queries}
    splits = [pydocs.Pair(f"a.f{n}", "", "").split for n in range(4000)]
    assert all(100 < splits.count(split) < 180 for split in ("test", "dev"))
    assert pydocs.part_of([site], 10_000) == pydocs.distinct(pydocs.pairs_of(modules_of(site)))


SOURCE = '''
"""A module."""

def plain(a, b: int = 3, *rest, key="x" * 3, **more) -> int:
    """Say plain."""
    def inside():
        """Not an interface."""
    return 1

async def waits(a, /, *, b):  # a remark
    # another
    r"""Wait \\d."""

def bare(a):
    return """no docstring"""

def _private():
    """Private."""

class Outer(Base, metaclass=Meta):
    """An example within:

    class Example:
        def method(self):
            \'\'\'Of the example.\'\'\'
    """

    def method(
        self,
        long=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
    ):
        \'\'\'Single quotes.\'\'\'

    class Inner:
        """Inner one."""

        def deep(cls): """On the line."""

        def deeper(self):
            """Deeper."""

class _Hidden:
    """Hidden."""
    def method(self):
        """Of a hidden class."""

if True:
    def conditional():
        """Conditional."""

def broken(:
    """Not Python."""

def last():
    """Last of all."""
'''


def test_finds_the_interface_and_nothing_else() -> None:
    results = {item.name: (item.signature, item.docstring) for item in documented(SOURCE)}
    assert results == {
        "plain": ("plain(a, b=3, *rest, key='x' * 3, **more)", "Say plain."),
        "waits": ("waits(a, *, b)", "Wait \\d."),
        "Outer": (
            "class Outer(Base)",
            "An example within:\n\nclass Example:\n    def method(self):\n        '''Of the example.'''",
        ),
        "Outer.method": ("method(long=...)", "Single quotes."),
        "Outer.Inner": ("class Inner", "Inner one."),
        "Outer.Inner.deeper": ("deeper()", "Deeper."),
        "conditional": ("conditional()", "Conditional."),
        "last": ("last()", "Last of all."),
    }


def test_agrees_with_a_whole_parse_of_a_real_module() -> None:
    source = Path(inspect.__file__).read_text()
    lines = source.splitlines()
    expected: dict[str, tuple[str, str]] = {}

    def walk(body: list[ast.stmt], path: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                docstring = ast.get_docstring(node)
                if docstring and '"""' in lines[node.body[0].lineno - 1]:
                    expected[path + node.name] = (signature(node), docstring)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{path}{node.name}.")
            elif isinstance(node, ast.If):
                walk(node.body + node.orelse, path)

    walk(ast.parse(source).body, "")
    assert len(expected) > 20
    assert {item.name: (item.signature, item.docstring) for item in documented(source)} == expected


LONG_REST = "It says enough about the matter at issue, " * 5


@pytest.mark.parametrize(
    ("docstring", "question", "answer"),
    [
        (
            f"Compute the sum of\n:func:`~numpy.add` over an axis. More here.\n\n{LONG_REST}",
            "Compute the sum of numpy.add over an axis.",
            "More here. It says enough",
        ),
        (
            f"Scale the values, e.g. The ones of v2.0 here. Then go.\n\n{LONG_REST}",
            "Scale the values, e.g. The ones of v2.0 here.",
            "Then go.",
        ),
        # The question is not in the answer.
        (
            f"Return the mean of rows.\n\nreturn  the mean\nof rows\n\n{LONG_REST}",
            "Return the mean of rows.",
            "It says enough",
        ),
        ("Return the mean of rows.\n\n" + "word " * 1000, "Return the mean of rows.", "word word"),
    ],
)
def test_the_first_sentence_is_the_question(docstring: str, question: str, answer: str) -> None:
    result = question_and_answer(docstring)
    assert result is not None
    assert result[0] == question
    assert result[1].startswith(answer)
    assert len(result[1]) <= 1200
    assert not result[1].endswith(" wor")


@pytest.mark.parametrize(
    "docstring",
    [
        "Too short.\n\n" + LONG_REST,
        "Says little in the rest of it.\n\nVery little.",
        "Returns: the value of the thing that is.\n\n" + LONG_REST,
        "See https://example.org for all of it.\n\n" + LONG_REST,
        "Deprecated since the very first version.\n\n" + LONG_REST,
        ">>> print(one, two, three, four, five)\n\n" + LONG_REST,
        "A sentence that was cut off by\n\n" + LONG_REST,
        "The values of this are the following:\n\n" + LONG_REST,
        "",
    ],
)
def test_what_says_too_little_is_left_out(docstring: str) -> None:
    assert question_and_answer(docstring) is None


def test_markup_is_taken_off() -> None:
    text = """
    Parameters
    ----------
    a : ``array_like``
        See `the guide <https://x.org>`_ and [the book](https://y.org), *not* :class:`Foo <bar.Foo>`.
    .. versionadded:: 1.2
    :param b: a number
    :returns: another
    >>> f(1)
    """
    assert flat(text) == "Parameters a : array_like See the guide and the book, not Foo. b: a number another f(1)"
    assert flat("from \ud800 to \u00fc") == "from to \u00fc"


def test_the_shortest_public_name_wins() -> None:
    names = PublicNames()
    names.read(
        "pkg",
        "pkg",
        "from .linalg import (\n    solve,  # a remark\n    det as determinant,\n)\nfrom pkg.frame import Frame\n",
    )
    names.read("pkg.linalg", "pkg.linalg", "from ._basic import *\nfrom ._basic import inv, \\\n    norm\n")
    names.read("pkg.core.api", "pkg.core", "from .series import Series\n")
    names.read("pkg.core", "pkg.core", "from pkg.core.api import Series\nfrom ..linalg._basic import lu\n")
    names.read("other", "other", "from pkg._secret import thing\n")
    assert names.of("pkg.linalg._basic", "solve") == "pkg.solve"
    assert names.of("pkg.linalg._basic", "det") == "pkg.determinant"
    assert names.of("pkg.linalg._basic", "inv") == "pkg.linalg.inv"
    assert names.of("pkg.linalg._basic", "lu") == "pkg.core.lu"
    assert names.of("pkg.frame", "Frame") == "pkg.Frame"
    assert names.of("pkg.core.series", "Series") == "pkg.core.Series"
    assert names.of("pkg.plain", "f") == "pkg.plain.f"
    assert names.of("pkg._secret", "thing") is None
    # Imports in a ring come to an end.
    names.read("a", "a", "from .b import *\n")
    names.read("a.b", "a.b", "from .. import *\nfrom a import x\n")
    assert names.of("a.b", "x") == "a.x"
