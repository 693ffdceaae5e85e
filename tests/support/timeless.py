"""Files of an evaluation without the seconds of search, in which two runs of one command differ."""

from __future__ import annotations

import json
import re
from pathlib import Path


def without_seconds(file: Path) -> bytes:
    """Return the content of a file; of `results.json` and `table.md` without the seconds of the costs."""
    content = file.read_bytes()
    if file.name == "results.json":
        results = json.loads(content)
        results["costs"] = [{**row, "seconds": None} for row in results["costs"]]
        return json.dumps(results).encode()
    if file.name == "table.md":
        before, _, costs = content.partition(b"\nCost\n")
        return before + re.sub(rb"\d+\.\d\d \|\n", b"|\n", costs)
    return content
