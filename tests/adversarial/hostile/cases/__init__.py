"""All cases, one module an area."""

from __future__ import annotations

from hostile.case import Case
from hostile.cases import (
    characters,
    committed,
    environment,
    files_of_data,
    finished,
    flags,
    limits,
    models,
    paths,
    rows_of_data,
    secrecy,
    settings,
)

CASES: list[Case] = [
    *rows_of_data.CASES,
    *files_of_data.CASES,
    *committed.CASES,
    *models.CASES,
    *finished.CASES,
    *settings.CASES,
    *flags.CASES,
    *paths.CASES,
    *environment.CASES,
    *secrecy.CASES,
    *characters.CASES,
    *limits.CASES,
]
