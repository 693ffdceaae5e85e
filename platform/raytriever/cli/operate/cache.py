"""`cache`: list cached data sets, models and embeddings, or prune them by size and age."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from math import inf

from raytriever.cli.command import Given
from raytriever.errors import ConfigError
from raytriever.operation.cache import CacheEntry, cache_entries, entries_to_prune, format_time
from raytriever.options import did_you_mean
from raytriever.store.cache import cache_folder, remove_entry
from raytriever.store.capacity import UNITS, format_size
from raytriever.terminal import text_table, warn

ACTIONS = ("list", "prune")


def run(given: Given) -> Iterator[str]:
    """List the entries or prune them."""
    if given.action not in ACTIONS:
        raise ConfigError(f"unknown action {given.action!r}", remedy=did_you_mean(given.action, ACTIONS))
    limits = {"--max-size": given.max_size, "--max-age": given.max_age}
    flags = [flag for flag, value in limits.items() if value is not None]
    if given.action == "prune" and not flags:
        remedy = "give a size, such as --max-size 10GB, or an age, such as --max-age 30d"
        raise ConfigError("`cache prune` needs --max-size or --max-age", remedy=remedy)
    if given.action == "list" and flags:
        raise ConfigError(f"`cache list` has no {flags[0]}", remedy="leave it out, or give `cache prune`")
    entries = cache_entries()
    yield from _list(entries) if given.action == "list" else _prune(entries, given.max_size, given.max_age)


def _list(entries: list[CacheEntry]) -> Iterator[str]:
    rows = [["last used", "size", "entry"]]
    for entry in entries:
        user = f" (in use by {entry.owner})" if entry.owner is not None else " (in use)" if entry.is_open else ""
        name = str(entry.path.relative_to(cache_folder()))
        rows.append([format_time(entry.used_at), format_size(entry.size), name + user])
    if entries:
        yield text_table(rows)
    yield f"{cache_folder()}: {len(entries)} entries, {format_size(sum(entry.size for entry in entries))}"


def _prune(entries: list[CacheEntry], max_size: int | None, max_age: float | None) -> Iterator[str]:
    left = sum(entry.size for entry in entries)
    limit = inf if max_size is None else max_size
    before = -inf if max_age is None else time.time() - max_age
    for entry in entries_to_prune(entries, limit, before):
        if remove_entry(entry.path):
            left -= entry.size
            yield f"removed {entry.path.relative_to(cache_folder())}, {format_size(entry.size)}"
        else:
            warn(f"{entry.path}: kept, because another process uses it")
    yield f"{cache_folder()}: {format_size(left)} left"
    if left > limit:
        size = format_size(int(limit))
        warn(f"more than {size} is left, because the other entries are in use or cannot be created again")


def read_size(text: str) -> int:
    """Read a size in bytes; raises `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?b)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{text!r} is not a size", "--max-size", "give a size such as 500MB or 10GB")
    return int(float(match[1]) * UNITS[(match[2] or "").upper()])


def read_age(text: str) -> float:
    """Read a time in seconds; raises `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hd])", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{text!r} is not an age", "--max-age", "give an age such as 12h or 30d")
    return float(match[1]) * (3_600 if match[2].lower() == "h" else 86_400)
