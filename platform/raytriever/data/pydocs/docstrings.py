"""Docstrings of a source file, found without importing it, each as a question and an answer.

1. A regular expression finds the beginnings of classes and functions; their indentation gives the nesting.
2. If a docstring follows, only the header and the docstring are parsed with `ast`. Bodies are not parsed, so a whole
   environment takes seconds, not minutes.
3. The first sentence is the question, the rest of the docstring the answer. Markup (reStructuredText roles, back
   quotes, underlines, doctest prompts) is removed."""

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
    """Public class or function: its name within the module (`Series.map`), its signature, its docstring."""

    name: str
    signature: str
    docstring: str


def documented(source: str) -> Iterator[Documented]:
    """Yield the public documented definitions of a module or a class in it, in the order of the file."""
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
    """Return True if no name is private and only classes enclose it: definitions inside functions are private."""
    return not any(name.startswith("_") for _, _, name in enclosing) and all(
        kind == "class" for _, kind, _ in enclosing[:-1]
    )


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """Return the signature as `name(a, b=1, *c)`, without annotations and `self`; a class with its bases."""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(ast.unparse(base) for base in node.bases)})".replace("()", "")
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + [*arguments.defaults]
    parameters = [_argument(a.arg, default) for a, default in zip(plain, defaults, strict=True)]
    if parameters and plain[0].arg in ("self", "cls"):
        parameters = parameters[1:]
    if arguments.vararg:
        parameters.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        parameters.append("*")
    parameters += [_argument(a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        parameters.append("**" + arguments.kwarg.arg)
    return f"{node.name}({', '.join(parameters)})"


def _argument(name: str, default: ast.expr | None) -> str:
    if default is None:
        return name
    value = ast.unparse(default)
    return f"{name}={value if len(value) <= _DEFAULT_CHARACTERS else '...'}"


def _parse(snippet: str, indented: bool) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
    """Return the definition at the beginning of a snippet; None if the regular expressions were wrong."""
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


_ROLE = re.compile(r":[\w:+-]+:`+([^`]*?)`+")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_+")
_MARKDOWN_LINK = re.compile(r"\[([^\]\[]+)\]\([^)\s]*\)")
_QUOTES = re.compile(r"`+~?([^`]*)`+_*")
_DIRECTIVE = re.compile(r"^\s*\.\.\s.*$|^\s*:[a-z-]+:(?!`).*$", re.MULTILINE)
_RULE = re.compile(r"^\s*[-=~^*+#_.]{3,}\s*$", re.MULTILINE)
_PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.)\s?", re.MULTILINE)
_FIELD = re.compile(r"^\s*:(?:(?:returns?|rtype|yields?):|(?:param|parameter|arg|type|raises)\s)\s*", re.MULTILINE)
_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)(?<!cf)[.!?](?=\s+[A-Z0-9(]|\s*$)")
_EMPHASIS = re.compile(r"(?<!\w)\*{1,2}(\w[^*\n]*?)\*{1,2}(?!\w)")
_WORD = re.compile(r"[A-Za-z]{2,}")
_UNLIKE_A_QUESTION = re.compile(
    r"^(?:args|arguments|parameters|returns|usage|examples?|notes?|todo|deprecated|alias|same as|see|"
    r"internal|tests?|helper|copyright|this|these|class for|override)\b|https?://|[{}<>|\\]|::|==|\bTODO\b|^\W|"
    r"[:,;(-]$|\b(?:by|of|the|as|an?|in|for|with|and|or|to|from|on|is|are|that)$",
    re.IGNORECASE,
)
MIN_QUERY_WORDS, MAX_QUERY_WORDS = 4, 40
MAX_UNSTOPPED_WORDS = 12  # a longer one without a full stop was cut off
MIN_REST_WORDS = 25
MAX_REST_CHARACTERS = 1200


def question_and_answer(docstring: str) -> tuple[str, str] | None:
    """Return the first sentence and the rest, both cleaned; None where either says too little.

    The sentence does not stand in the rest, not even where the docstring repeats it.
    """
    first, _, after = docstring.strip().partition("\n\n")
    if first.count("\n") > 4 or "\n " in first or ">>>" in first:
        return None
    first = flat(first)
    end = _END.search(first)
    sentence, left = (first[: end.end()], first[end.end() :]) if end else (first, "")
    words = len(_WORD.findall(sentence))
    if words > MAX_UNSTOPPED_WORDS and sentence[-1] not in ".!?":
        return None
    if not MIN_QUERY_WORDS <= words <= MAX_QUERY_WORDS or _UNLIKE_A_QUESTION.search(sentence):
        return None
    rest = without(f"{left} {flat(after[: 2 * MAX_REST_CHARACTERS])}", sentence)
    rest = rest if len(rest) <= MAX_REST_CHARACTERS else rest[:MAX_REST_CHARACTERS].rpartition(" ")[0]
    if len(_WORD.findall(rest)) < MIN_REST_WORDS:
        return None
    return sentence, rest


def flat(text: str) -> str:
    """Return the text without markup, in one line."""
    for pattern, by in (
        (_FIELD, ""),
        (_DIRECTIVE, ""),
        (_RULE, ""),
        (_PROMPT, ""),
        (_LINK, r"\1"),
        (_MARKDOWN_LINK, r"\1"),
        (_ROLE, lambda role: role[1].lstrip("~!").partition(" <")[0]),
        (_QUOTES, r"\1"),
        (_EMPHASIS, r"\1"),
    ):
        text = pattern.sub(by, text)
    # A docstring can spell half of a surrogate pair, which no file can hold.
    return " ".join(text.encode(errors="ignore").decode().split())


def without(text: str, sentence: str) -> str:
    """Return the text without verbatim repetitions of the sentence, in any case and with or without the full stop."""
    bare = sentence.rstrip(".!? ")
    if bare.lower() not in text.lower():
        return " ".join(text.split())
    return " ".join(re.sub(re.escape(bare) + r"[.!?]?", " ", text, flags=re.IGNORECASE).split())


def normalised(text: str) -> str:
    """Return letters and digits in lower case, separated by blanks: equal results are equal texts for a reader."""
    return " ".join(re.findall(r"[^\W_]+", text.lower()))
