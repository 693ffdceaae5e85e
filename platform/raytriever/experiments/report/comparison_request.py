"""Checks of the arguments of a comparison. This module imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from raytriever.core.errors import ConfigError, setting
from raytriever.core.store.disk import check_writable

RUN_ID = re.compile(r"[0-9a-f]{32}")
# A filter for MLflow's search begins with a kind of field (`metrics.`, `params.`, ...) or with an attribute of runs.
_FILTER = re.compile(
    r"\s*(?:metrics?\.|param(?:eter)?s?\.|tags?\.|datasets?\.|attributes?\.|attr\.|run\."
    r"|(?:run_id|run_name|status|start_time|end_time|artifact_uri|user_id)\b).*?"
    r"(?:[=<>]|\s(?:i?like|(?:not\s+)?in|is)\s)",
    re.IGNORECASE,
)


def check_comparison(runs: Sequence[str], output: Path) -> None:
    """Check that each argument is a directory, a run id or a filter of MLflow, and that the page can be written."""
    for word in runs:
        if not (Path(word).is_dir() or RUN_ID.fullmatch(word) or _FILTER.match(word)):
            remedy = "give a directory, a run id (32 hex digits), or a filter such as \"params.loss.loss = 'mw'\""
            raise ConfigError(f"{word!r} is neither a directory nor an id or filter of MLflow runs", remedy=remedy)
    if output.is_dir():
        raise ConfigError("is a directory", setting("output", output), "give the path of the HTML file to write")
    check_writable(output.parent)
