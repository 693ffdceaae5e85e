"""`cache`: list cached data sets, models and embeddings, or prune them to a size."""

from __future__ import annotations

from raytriever.capacity import format_size
from raytriever.cli.arguments import Parser
from raytriever.errors import ConfigError
from raytriever.operation.cache import CacheEntry, cache_entries, entries_to_prune, prune
from raytriever.operation.disk_usage import format_time, parse_size
from raytriever.options import did_you_mean
from raytriever.storage import cache_folder
from raytriever.terminal import show, warn

ACTIONS = ("list", "prune")


def main(words: list[str]) -> None:
    """Parse, then list or prune."""
    arguments = _parser().parse(words)
    if arguments.action not in ACTIONS:
        raise ConfigError(f"unknown action {arguments.action!r}", remedy=did_you_mean(arguments.action, ACTIONS))
    if (arguments.action == "prune") != (arguments.max_size is not None):
        if arguments.action == "prune":
            raise ConfigError("`cache prune` needs --max-size", remedy="give a size, such as --max-size 10GB")
        raise ConfigError("`cache list` has no --max-size", remedy="leave it out, or give `cache prune`")
    entries = cache_entries()
    if arguments.action == "list":
        _list(entries)
    else:
        _prune(entries, arguments.max_size)


def _list(entries: list[CacheEntry]) -> None:
    from raytriever.terminal import text_table

    rows = [["last used", "size", "entry", "content"]]
    for entry in entries:
        content = entry.content + (f"; in use by {entry.owner}" if entry.owner is not None else "")
        rows.append(
            [format_time(entry.used_at), format_size(entry.size), str(entry.path.relative_to(cache_folder())), content]
        )
    if entries:
        show(text_table(rows))
    show(f"{cache_folder()}: {len(entries)} entries, {format_size(sum(entry.size for entry in entries))}")


def _prune(entries: list[CacheEntry], limit: int) -> None:
    left = sum(entry.size for entry in entries)
    for entry in entries_to_prune(entries, limit):
        if prune(entry):
            left -= entry.size
            show(f"removed {entry.path.relative_to(cache_folder())}, {format_size(entry.size)}: {entry.content}")
        else:
            warn(f"{entry.path}: kept, because another process is writing to it")
    show(f"{cache_folder()}: {format_size(left)} left")
    if left > limit:
        warn(f"more than {format_size(limit)} is left, because the other entries are in use or cannot be created again")


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a size", "--max-size", str(error)) from error


def _parser() -> Parser:
    parser = Parser("cache", "List cached data sets, models and embeddings, or remove the least recently used ones.")
    parser.add_argument("action", metavar="|".join(ACTIONS), help="list the entries, or prune the cache to --max-size")
    parser.add_argument(
        "--max-size",
        type=_size,
        metavar="SIZE",
        help="prune: size to keep, such as 500MB or 10GB; the least recently used entries are removed first",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser
