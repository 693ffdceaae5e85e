"""Write docs/benchmarks.md from benchmarks/page.md and benchmarks/results: `python benchmarks/page.py`.

In the template, `{NAME: FIGURE}` is replaced by a figure of the newest result of that name, and `{NAME}` by its day. A
figure that misses its threshold says so. A test compares the committed page with the output of this script."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TEMPLATE = ROOT / "benchmarks" / "page.md"
PAGE = ROOT / "docs" / "benchmarks.md"
DATED = re.compile(r"(.+)-(\d{4}-\d{2}-\d{2})\.json")
MARK = re.compile(r"\{([a-z_0-9-]+)(?:: ([^}]+))?\}")


def newest(folder: Path) -> dict[str, tuple[str, Any]]:
    """Return the day and the content of the newest result of each name."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        if match := DATED.fullmatch(path.name):
            results[match[1]] = match[2], json.loads(path.read_text(encoding="utf-8"))
    return results


def page(folder: Path = RESULTS, template: str = "") -> str:
    """Return the page; raises ValueError for a result that the template does not name."""
    template = template or TEMPLATE.read_text(encoding="utf-8")
    results = newest(folder)
    if missing := [name for name in results if not name.startswith("study-") and name not in template]:
        raise ValueError(f"benchmarks/page.py: name {', '.join(missing)} in benchmarks/page.md")

    def value(mark: re.Match[str]) -> str:
        name, figure = mark.groups()
        if name not in results:
            return "not measured"
        day, content = results[name]
        if figure is None:
            return day
        end = content.get("ends", content)[figure]
        return _number(end["value"]) + ("" if end["holds"] else f" (**missed:** {end['target']})")

    return MARK.sub(value, template)


def _number(value: float) -> str:
    """Return three digits, and four just below 1, where the fourth is what matters."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 0.99 <= value < 1 else f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
