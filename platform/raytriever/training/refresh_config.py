"""The settings of refreshing hard negatives while training. Imports nothing heavy: the command line reads it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.options import flag_of, option

ASYNC, SYNC, ROLLING = "async", "sync", "rolling"
MODES = (ASYNC, SYNC, ROLLING)


@dataclass(frozen=True)
class RefreshConfig:
    """When hard negatives are mined anew with the encoder as it is, from where in its ranking, and by how many."""

    refresh_every: int | None = option(
        None, "steps between two refreshes of the hard negatives by the encoder itself; without it there is none",
        minimum=1,
    )  # fmt: skip
    refresh_mode: str = option(
        ASYNC,
        "training goes on meanwhile, waits for the new table, or goes on while a share of the corpus is re-encoded",
        choices=MODES,
    )
    refresh_share: float = option(
        0.25, "share of the corpus that a rolling refresh re-encodes, in turn", above=0, maximum=1
    )
    refresh_pool: str = option("1", "actors that re-encode, `SIZE` or `MIN:MAX`")

    @property
    def pool(self) -> tuple[int, int]:
        """The fewest and the most actors; raises `ConfigError` for what is no size."""
        words = self.refresh_pool.split(":")
        if len(words) > 2 or not all(word.isascii() and word.isdigit() for word in words):
            raise ConfigError(f"{self.refresh_pool!r} is no size", "--refresh-pool", "give SIZE or MIN:MAX, as in 1:4")
        least, most = int(words[0]), int(words[-1])
        if not 1 <= least <= most:
            raise ConfigError(f"{self.refresh_pool!r} is out of range", "--refresh-pool", "give 1 <= MIN <= MAX")
        return least, most


def check_refresh(refresh: RefreshConfig, data: DataConfig, total_steps: int | None) -> None:
    """Hold the settings to each other; raises `ConfigError`.

    Args:
        refresh: each setting already within its own range.
        data: what groups are made of.
        total_steps: of the training, None where that is not known yet.
    """
    if refresh.refresh_every is None:
        for field in dataclasses.fields(refresh)[1:]:
            if getattr(refresh, field.name) != field.default:
                where = flag_of(field.name)
                raise ConfigError("has no effect without refreshes", where, "give --refresh-every, such as 500, too")
        return
    _ = refresh.pool
    if refresh.refresh_mode != ROLLING and refresh.refresh_share != RefreshConfig.refresh_share:
        raise ConfigError("has no effect", "--refresh-share", "give --refresh-mode rolling, too")
    if not data.negatives_per_query:
        raise ConfigError(
            "there are no hard negatives to refresh", "--refresh-every", "give --negatives-per-query, such as 5, too"
        )
    if total_steps is not None and refresh.refresh_every >= total_steps:
        raise ConfigError(
            f"{refresh.refresh_every} leaves no refresh in {total_steps} steps",
            "--refresh-every",
            f"give less than {total_steps}, or train longer",
        )
