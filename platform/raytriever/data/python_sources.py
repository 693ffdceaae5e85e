"""The source files of this Python: the standard library and what is installed, and their versions.

Tests, examples, generated code and vendored copies are nobody's interface and are passed over.
"""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from raytriever.storage import walk

_OWN = "raytriever"  # editing the project must not change its data
_SITES = ("site-packages", "dist-packages")
_SKIPPED = re.compile(
    r"_?(?:tests?|testing|vendor|vendored|_vendor|third_party|externals|thirdparty|examples?|benchmarks?|"
    r"conformance|idlelib|idle_test|lib2to3|turtledemo|__pycache__|node_modules|site-packages|dist-packages)"
)
_SKIPPED_FILE = re.compile(r"(?:test_.*|.*_tests?|conftest|.*_pb2|.*_pb2_grpc|setup)\.py")


def installed_versions() -> list[str]:
    """This Python and every installed distribution with its version, sorted, without raytriever itself."""
    found = {
        f"{distribution.name.lower()} {distribution.version}"
        for distribution in distributions(path=[str(site) for site in source_roots()[1:]])
        if distribution.name and distribution.name.lower() != _OWN
    }
    return [f"python {platform.python_version()}", *sorted(found)]


def source_roots() -> list[Path]:
    """The standard library, then the folders that packages are installed in."""
    sites = [Path(entry) for entry in sys.path if Path(entry).name in _SITES and Path(entry).is_dir()]
    return [Path(sysconfig.get_path("stdlib")), *dict.fromkeys(sites)]


def modules_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Dotted name and file of each module that is part of an interface, in the order of their names."""
    for here, folders, files in walk(root):
        folders[:] = sorted(name for name in folders if _is_package(name))
        inside = Path(here).relative_to(root).parts
        for file in sorted(files):
            if file.endswith(".py") and not _SKIPPED_FILE.fullmatch(file):
                parts = inside if file == "__init__.py" else (*inside, file.removesuffix(".py"))
                if parts and all(part.isidentifier() for part in parts):
                    yield ".".join(parts), Path(here, file)


def _is_package(name: str) -> bool:
    return name.isidentifier() and name != _OWN and not _SKIPPED.fullmatch(name)
