"""Prepared directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytriever.data.prepare import prepare_dataset


def prepare(*arguments: Any, **settings: Any) -> Path:
    """Prepare a data set, and return its folder."""
    return prepare_dataset.prepare(*arguments, **settings).folder
