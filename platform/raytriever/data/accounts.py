"""The accounts of a preparation: what was read of each file, what of it was bad, and whether that is too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from raytriever.data.assemble import BadRows
from raytriever.data.formats.plan import Part
from raytriever.data.quarantine import bad_entry, check_share
from raytriever.data.shards import ShardReport


def accounts_of(
    parts: Sequence[Part], reports: Sequence[ShardReport], late: BadRows
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """For each file its rows, its bad rows and the first of them; and all bad rows, by file and row."""
    rows: Counter[int] = Counter()
    entries: list[tuple[int, dict[str, Any]]] = []
    for report in reports:
        rows[report.part] += report.rows
        entries += [(report.part, entry) for entry in report.bad]
    entries += [(part, bad_entry(parts[part].where, row, *told)) for (part, row), told in late.items()]
    entries.sort(key=lambda entry: (entry[0], entry[1]["row"]))
    bad = Counter(part for part, _ in entries)
    first: dict[int, dict[str, Any]] = {}
    for part, entry in entries:
        first.setdefault(part, entry)
    files = [
        {"where": part.where, "split": part.split, "rows": rows[place], "bad": bad[place], "first": first.get(place)}
        for place, part in enumerate(parts)
    ]
    return files, [entry for _, entry in entries]


def refuse_hopeless(part: Part, report: ShardReport, max_share: float) -> None:
    """Stop at once where a file begins with nothing but bad rows, rather than read it to its end."""
    if report.number == 0 and report.rows == len(report.bad):
        check_share(part.where, report.rows, len(report.bad), report.bad[0] if report.bad else None, max_share)


def check_files(files: Sequence[Mapping[str, Any]], max_share: float, splits: Sequence[str] | None) -> None:
    """Raise `DataError` where a file has too many bad rows.

    Args:
        files: as `accounts_of` tells them.
        max_share: the share of rows, 0 to 1, that may be bad.
        splits: those whose judgements matter; all where None.
    """
    for file in files:
        if splits is None or file["split"] is None or file["split"] in splits:
            check_share(file["where"], file["rows"], file["bad"], file["first"], max_share)
