"""What holds for every hostile command, and what its own case says."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fnmatch import fnmatch

from hostile.case import CANARY, Case, matches
from hostile.running import Ended

LONGEST_LINE = 2000
BIDI = {"RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"}


def faults(case: Case, ended: Ended) -> Iterator[str]:
    """Yield a sentence for everything that is not as it must be."""
    lines = ended.err.splitlines()
    last = lines[-1] if lines else ""
    if ended.code is None:
        yield f"it did not end within {case.seconds:g} s"
    elif ended.code != case.code:
        yield f"exit code {ended.code} in place of {case.code}"
    traced = "Traceback" in ended.err + ended.out and "--debug" not in case.arguments
    if traced or "Exception ignored" in ended.err:
        yield "a traceback was printed"
    if ended.code == 2 and not case.shell and not last.startswith("error: "):
        yield "the last line of standard error is no `error: `"
    if len(last) > LONGEST_LINE:
        yield f"the last line has {len(last)} characters"
    # Python names what it runs in warnings of its own; none may reach a user.
    if re.search(r"^\S+\.py:\d+: \w*Warning", ended.err, re.MULTILINE):
        yield "a warning of Python was printed"
    if not matches(case.line.replace("{here}", str(ended.folder)), last):
        yield f"the last line does not hold {case.line!r}"
    if not matches(case.out, ended.out):
        yield f"standard output does not hold {case.out!r}"
    yield from _characters(ended)
    yield from _secrets(case, ended)
    yield from _leavings(case, ended)


def _characters(ended: Ended) -> Iterator[str]:
    for name, text in (("output", ended.out), ("error", ended.err)):
        wrong = {
            character
            for character in set(text) - {"\n", "\t"}
            if unicodedata.category(character) in ("Cc", "Cs") or unicodedata.bidirectional(character) in BIDI
        }
        if wrong:
            yield f"standard {name} holds control characters {sorted(wrong)!a}"


def _secrets(case: Case, ended: Ended) -> Iterator[str]:
    for secret in (CANARY, *case.absent):
        if secret in ended.out + ended.err:
            yield f"{secret!r} was printed"
        for file in sorted(ended.folder.parent.rglob("*")):
            name = str(file.relative_to(ended.folder)) if file.is_relative_to(ended.folder) else ""
            is_new = name not in ended.before and file.is_file() and not file.is_symlink()
            if is_new and secret.encode() in file.read_bytes():
                yield f"{secret!r} was written to {file.relative_to(ended.folder.parent)}"


def _leavings(case: Case, ended: Ended) -> Iterator[str]:
    for name in sorted(ended.after - ended.before):
        if ".aside-" in name:
            yield f"{name} was left"
        elif ended.code != 0 and not any(fnmatch(name, pattern) for pattern in case.leaves):
            yield f"{name} was left, though the command failed"
    for name in sorted(ended.before - ended.after):
        if not any(fnmatch(name, pattern) for pattern in case.leaves):
            yield f"{name} was removed"
    for path in ended.folder.parent.joinpath("cache").rglob("*.aside-*"):
        yield f"{path.name} was left in the cache"
    if ended.left:
        yield "processes were left"
