"""What comes of an annotation job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raytriever.annotation.asking import Counts


@dataclass(frozen=True)
class Annotated:
    """What came of a job.

    Args:
        told: the meta of the manifest.
        human: whether people judged anything relevant in the split.
        counts: what happened on the way.
        retried: requests sent again, by what failed.
        quarantined: a line on bad rows, if any were left out.
    """

    told: dict[str, Any]
    human: bool
    counts: Counts
    retried: dict[str, int]
    quarantined: str | None
