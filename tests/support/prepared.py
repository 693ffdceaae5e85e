"""Prepared directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytriever.data.prepare import pipeline


def prepare(*arguments: Any, **settings: Any) -> Path:
    """Prepare a data set, and return its folder."""
    return pipeline.prepare(*arguments, **settings).folder
