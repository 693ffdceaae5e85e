"""The documented classes and functions of a source file, found without importing or wholly parsing it.

1. A regular expression finds where classes and functions begin; their indentation tells what is inside what.
2. Where a docstring follows, the header and the docstring alone are parsed with `ast`: a body costs nothing,
   and parsing a whole environment takes seconds, not minutes.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

_BEGIN = re.compile(
    r"^(?:([ \t]*)(?:async[ ]+)?(def|class)[ ]+(\w+)|(?:if|elif|else|try|except|finally|with|for|while)\b)",
    re.MULTILINE,
)
_OPENS = re.compile(
    r":[ \t]*(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]+[rR]?(\"\"\"|''')"  # a colon, comments, the quotes
)
_DEFAULT_CHARACTERS = 24


@dataclass(frozen=True)
class Documented:
    """A public class or function: its name within the module (`Series.map`), its signature, its docstring."""

    name: str
    signature: str
    docstring: str


def documented(source: str) -> Iterator[Documented]:
    """The public documented definitions of a module or a class in it, in the order of the file."""
    enclosing: list[tuple[int, str, str]] = []
    begins = list(_BEGIN.finditer(source))
    ends = [*(begin.start() for begin in begins[1:]), len(source)]
    read = 0
    for begin, end in zip(begins, ends, strict=False):
        if begin.start() < read:
            continue  # an example within the docstring just read
        if not begin[2]:
            enclosing.clear()  # what follows, indented, stands in a block of the module, not in the last class
            continue
        depth = len(begin[1].expandtabs())
        while enclosing and enclosing[-1][0] >= depth:
            enclosing.pop()
        enclosing.append((depth, begin[2], begin[3]))
        opens = _OPENS.search(source, begin.end(), end)
        closes = source.find(opens[1], opens.end()) + len(opens[1]) if opens else 0
        read = max(read, closes)
        if closes <= 0 or not _is_interface(enclosing):
            continue
        node = _parse(source[begin.start() : closes], bool(begin[1]))
        docstring = ast.get_docstring(node) if node is not None else None
        if node is not None and docstring:
            yield Documented(".".join(name for _, _, name in enclosing), signature(node), docstring)


def _is_interface(enclosing: list[tuple[int, str, str]]) -> bool:
    """Whether no name is private and nothing but classes is around: what is inside a function is its own."""
    return not any(name.startswith("_") for _, _, name in enclosing) and all(
        kind == "class" for _, kind, _ in enclosing[:-1]
    )


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """`name(a, b=1, *c)`: no annotations and no `self`; a class with its bases."""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(ast.unparse(base) for base in node.bases)})".replace("()", "")
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + [*arguments.defaults]
    shown = [_argument(a.arg, default) for a, default in zip(plain, defaults, strict=True)]
    if shown and plain[0].arg in ("self", "cls"):
        shown = shown[1:]
    if arguments.vararg:
        shown.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        shown.append("*")
    shown += [_argument(a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        shown.append("**" + arguments.kwarg.arg)
    return f"{node.name}({', '.join(shown)})"


def _argument(name: str, default: ast.expr | None) -> str:
    if default is None:
        return name
    value = ast.unparse(default)
    return f"{name}={value if len(value) <= _DEFAULT_CHARACTERS else '...'}"


def _parse(snippet: str, indented: bool) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
    """The definition a snippet begins with; None where the regular expressions were fooled."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # other people's invalid escapes
            warnings.simplefilter("ignore", DeprecationWarning)  # the same before Python 3.12
            body = ast.parse("if 1:\n" + snippet if indented else snippet).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    if indented and isinstance(body[0], ast.If):
        body = body[0].body
    node = body[0]
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None
