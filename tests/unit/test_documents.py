"""The documents: generated pages are current, links and paths exist, and the code in them runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]


def _script(path: str) -> ModuleType:
    """Import a script of the repository by its path."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_benchmarks_is_what_the_script_writes() -> None:
    page = _script("benchmarks/page.py")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python benchmarks/page.py"
