"""`cache`: list what is kept to save time, or shrink it to a size."""

from __future__ import annotations

from raytriever.cli.arguments import Parser
from raytriever.errors import ConfigError
from raytriever.operation.cache import CacheEntry, cache_entries, prune, to_prune
from raytriever.operation.disk_usage import read_size, size_text, time_text
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
        raise ConfigError("belong together", "prune, --max-size", "as in `raytriever cache prune --max-size 10GB`")
    entries = cache_entries()
    if arguments.action == "list":
        _list(entries)
    else:
        _prune(entries, arguments.max_size)


def _list(entries: list[CacheEntry]) -> None:
    from raytriever.terminal import plain_table

    rows = [["last used", "size", "entry", "what it is"]]
    for entry in entries:
        made = entry.made + (f"; in use by {entry.owner}" if entry.owner is not None else "")
        rows.append([time_text(entry.used), size_text(entry.size), str(entry.path.relative_to(cache_folder())), made])
    if entries:
        show(plain_table(rows))
    show(f"{cache_folder()}: {len(entries)} entries, {size_text(sum(entry.size for entry in entries))}")


def _prune(entries: list[CacheEntry], most: int) -> None:
    left = sum(entry.size for entry in entries)
    for entry in to_prune(entries, most):
        if prune(entry):
            left -= entry.size
            show(f"removed {entry.path.relative_to(cache_folder())}, {size_text(entry.size)}: {entry.made}")
        else:
            warn(f"{entry.path}: left alone, a process has begun to write it")
    show(f"{cache_folder()}: {size_text(left)} left")
    if left > most:
        warn(f"that is more than {size_text(most)}: what is left is in use, or cannot be made again")


def _size(text: str) -> int:
    try:
        return read_size(text)
    except ValueError as error:
        raise ConfigError(f"{text!r}", "--max-size", str(error)) from error


def _parser() -> Parser:
    parser = Parser("cache", "List what is kept to save time, or remove what was not used for longest.")
    parser.add_argument("action", metavar="|".join(ACTIONS), help="what to do")
    parser.add_argument(
        "--max-size",
        type=_size,
        metavar="SIZE",
        help="prune: remove the least recently used entries until so much is left, such as 500MB or 10GB",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    return parser
