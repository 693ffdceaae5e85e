"""The number of cases by stage and area, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hostile.case import Case

STAGES = [
    "prepare",
    "import",
    "train",
    "tune",
    "evaluate",
    "encode",
    "mine",
    "score",
    "index",
    "search",
    "export",
    "compare",
    "study",
    "annotate",
    "launch",
    "submit",
]
NONE = "(no stage)"


def coverage_table(cases: Iterable[Case], failed: Mapping[str, bool] | None = None) -> str:
    """Stages as rows, areas as columns, in Markdown; with results, `passed/all` where some failed."""
    cases = list(cases)
    areas = list(dict.fromkeys(case.area for case in cases))
    everywhere = [*STAGES, NONE]
    counts: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for case in cases:
        stage = case.stage if case.stage in STAGES else NONE
        for cell in ((stage, case.area), (stage, "all"), ("all", case.area), ("all", "all")):
            counts[cell] += 1
            wrong[cell] += (failed or {}).get(case.id, False)

    def cell(stage: str, area: str) -> str:
        number, bad = counts[stage, area], wrong[stage, area]
        return f"{number - bad}/{number}" if bad else str(number or "")

    head = ["stage", *areas, "all"]
    lines = [head, ["---", *("---:" for _ in head[1:])]]
    lines += [[stage, *(cell(stage, area) for area in head[1:])] for stage in [*everywhere, "all"]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "".join(
        "| " + " | ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)) + " |\n"
        for line in lines
    )
