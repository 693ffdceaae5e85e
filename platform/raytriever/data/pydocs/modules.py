"""Source files of the installed Python packages and the public names under which users import what they define.

Tests, examples, generated code and vendored copies are skipped. Of several public names the shortest is used."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from raytriever.store.commit import walk

_OWN = "raytriever"  # editing the project must not change its data
_SITES = ("site-packages", "dist-packages")
_SKIPPED = re.compile(
    r"_?(?:tests?|testing|vendor|vendored|_vendor|third_party|externals|thirdparty|examples?|benchmarks?|"
    r"conformance|idlelib|idle_test|lib2to3|turtledemo|__pycache__|node_modules|site-packages|dist-packages)"
)
_SKIPPED_FILE = re.compile(r"(?:test_.*|.*_tests?|conftest|.*_pb2|.*_pb2_grpc|setup)\.py")


def installed_versions() -> list[str]:
    """This Python and every installed distribution with its version, sorted, without raytriever itself."""
    versions = {
        f"{distribution.name.lower()} {distribution.version}"
        for distribution in distributions(path=[str(site) for site in source_roots()[1:]])
        if distribution.name and distribution.name.lower() != _OWN
    }
    return [f"python {platform.python_version()}", *sorted(versions)]


def source_roots() -> list[Path]:
    """Return the standard library, then the folders that packages are installed in."""
    sites = [Path(entry) for entry in sys.path if Path(entry).name in _SITES and Path(entry).is_dir()]
    return [Path(sysconfig.get_path("stdlib")), *dict.fromkeys(sites)]


def modules_of(*roots: Path) -> Iterator[tuple[str, Path]]:
    """Yield dotted name and file of each module that is part of an interface, in the order of their names."""
    for root in roots:
        for here, folders, files in walk(root):
            folders[:] = sorted(name for name in folders if _is_package(name))
            inside = Path(here).relative_to(root).parts
            for file in sorted(files):
                if file.endswith(".py") and not _SKIPPED_FILE.fullmatch(file):
                    parts = inside if file == "__init__.py" else (*inside, file.removesuffix(".py"))
                    if parts and all(part.isidentifier() for part in parts):
                        yield ".".join(parts), Path(here, file)


def packages_by_size(roots: list[Path]) -> list[list[tuple[str, Path]]]:
    """Return the modules of each package below the roots, the packages with the most source first."""
    packages: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for module, file in modules_of(*roots):
        packages[module.partition(".")[0]].append((module, file))
    return sorted(packages.values(), key=lambda package: -sum(file.stat().st_size for _, file in package))


def _is_package(name: str) -> bool:
    return name.isidentifier() and name != _OWN and not _SKIPPED.fullmatch(name)


_IMPORT = re.compile(r"^from[ ]+(\.*)([\w.]*)[ ]+import[ ]+(?:\(([^)]*)\)|([^\n(]+))", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")
_STAR = "*"


def is_public(name: str) -> bool:
    """Return True if no part of a dotted name is private."""
    return not any(part.startswith("_") for part in name.split("."))


class PublicNames:
    """Public names: the imports of packages and of their `api` modules, for definitions of other modules."""

    def __init__(self) -> None:
        self._importers: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)

    def read(self, exporter: str, package: str, source: str) -> None:
        """Add the source of the module `exporter`, whose relative imports start at `package`."""
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
        """Return the shortest public dotted name of what `module` defines as `name`; None if it has none."""
        seen, todo = {(module, name)}, [(module, name)]
        while todo:
            where, called = todo.pop()
            further = [*self._importers.get((where, called), ())]
            further += [(exporter, called) for exporter, _ in self._importers.get((where, _STAR), ())]
            todo += (fresh := set(further) - seen)
            seen |= fresh
        names = sorted((f"{where}.{called}" for where, called in seen), key=lambda n: (n.count("."), len(n), n))
        return next(filter(is_public, names), None)
