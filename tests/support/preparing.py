"""Preparation of a data set as tests need it: the path of the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytriever.data.prepare.pipeline import prepare_directory


def prepare(*arguments: Any, **options: Any) -> Path:
    """Return the folder of `prepare_directory`."""
    return prepare_directory(*arguments, **options).folder
