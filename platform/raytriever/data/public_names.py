"""Under which name users import what is defined somewhere inside a package.

`scipy.linalg._basic.solve` is `scipy.linalg.solve` to everyone, for `scipy/linalg/__init__.py` imports it.
The `from ... import` lines of packages are read, chains and stars included; the shortest public name wins.
"""

from __future__ import annotations

import re
from collections import defaultdict

_IMPORT = re.compile(r"^from[ ]+(\.*)([\w.]*)[ ]+import[ ]+(?:\(([^)]*)\)|([^\n(]+))", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")
_STAR = "*"


def is_public(name: str) -> bool:
    """Whether no part of a dotted name is private."""
    return not any(part.startswith("_") for part in name.split("."))


class PublicNames:
    """Collects what packages and their `api` modules import, then names what is defined elsewhere."""

    def __init__(self) -> None:
        self._importers: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)

    def read(self, exporter: str, package: str, source: str) -> None:
        """Take in the source of the module `exporter`, whose relative imports count from `package`."""
        for dots, module, several, one in _IMPORT.findall(source):
            parts = package.split(".")
            if dots:
                base = parts[: len(parts) - len(dots) + 1]
                module = ".".join([*base, module]) if module else ".".join(base)
            # Names of another package are its own to publish.
            if module.split(".")[0] != parts[0]:
                continue
            for item in _COMMENT.sub("", several or one).replace("\\", " ").split(","):
                name, _, alias = item.strip().partition(" as ")
                if name:
                    self._importers[module, name].append((exporter, alias.strip() or name))

    def of(self, module: str, name: str) -> str | None:
        """The shortest public dotted name of what `module` defines as `name`; None if it has none."""
        seen, todo = {(module, name)}, [(module, name)]
        while todo:
            where, called = todo.pop()
            further = [*self._importers.get((where, called), ())]
            further += [(exporter, called) for exporter, _ in self._importers.get((where, _STAR), ())]
            todo += (fresh := set(further) - seen)
            seen |= fresh
        names = sorted((f"{where}.{called}" for where, called in seen), key=lambda n: (n.count("."), len(n), n))
        return next(filter(is_public, names), None)
