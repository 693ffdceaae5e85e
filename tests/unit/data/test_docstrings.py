from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from raytriever.data.pydocs.docstrings import documented, signature

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


@pytest.mark.parametrize("module", [inspect, ast])
def test_agrees_with_a_whole_parse_of_a_real_module(module) -> None:
    source = Path(module.__file__).read_text()
    expected: dict[str, tuple[str, str]] = {}

    def walk(body: list[ast.stmt], path: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                docstring = ast.get_docstring(node)
                if docstring and '"""' in ast.get_source_segment(source, node.body[0]):
                    expected[path + node.name] = (signature(node), docstring)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{path}{node.name}.")
            elif isinstance(node, ast.If):
                walk(node.body + node.orelse, path)

    walk(ast.parse(source).body, "")
    assert len(expected) > 20
    assert {item.name: (item.signature, item.docstring) for item in documented(source)} == expected
