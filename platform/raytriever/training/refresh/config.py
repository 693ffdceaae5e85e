"""Settings of the refresh of hard negatives. Imports nothing heavy, because the command line reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from raytriever.data.config import DataConfig
from raytriever.data.records import ORIGINS
from raytriever.errors import ConfigError, flag_of, setting
from raytriever.mining.config import MiningConfig
from raytriever.options import check_changed, option
from raytriever.training.config import worker_count, worker_range

ASYNC, SYNC, ROLLING = "async", "sync", "rolling"
MODES = (ASYNC, SYNC, ROLLING)
METHOD = "dense"


def rank_range(value: Any) -> str:
    """Read a range of ranks `A:B`, whole numbers with A below B; empty for none.

    Raises:
        ValueError: it is no range.
    """
    ends = re.fullmatch(r"(\d{1,9}):(\d{1,9})", str(value))
    if value and (ends is None or int(ends[1]) >= int(ends[2])):
        raise ValueError("give two whole numbers, the lower first, as in 30:200")
    return f"{int(ends[1])}:{int(ends[2])}" if ends else ""


@dataclass(frozen=True)
class RefreshConfig:
    """Settings of the refreshes: interval, ranks of the negatives, and processes that encode."""

    refresh_every: int | None = option(
        None, "steps between two refreshes of the hard negatives with the current encoder", minimum=1
    )
    refresh_mode: str = option(
        ASYNC,
        "async: training continues during a refresh; sync: it waits; rolling: only a share of the corpus is encoded",
        choices=MODES,
        needs="refresh_every",
    )
    refresh_share: float = option(
        0.25,
        "share of the corpus that a rolling refresh encodes again, a different share each time",
        above=0,
        maximum=1,
        needs="refresh_mode=rolling",
    )
    refresh_pool: int | str = option(
        1,
        "number of processes that encode, or the smallest and the largest number",
        reads=worker_count,
        form="N|MIN:MAX",
        needs="refresh_every",
    )
    refresh_negatives: int = option(
        30,
        f"negatives that a refresh keeps for each query; each epoch samples {flag_of('negatives_per_query')} of them",
        minimum=1,
        needs="refresh_every",
    )
    refresh_ranks: str = option(
        "",
        "ranks of these negatives in the search results, first included and last excluded",
        reads=rank_range,
        form="A:B",
        needs="refresh_every",
    )
    refresh_max_score: float | None = option(None, "remove candidates with a higher score", needs="refresh_every")
    refresh_absolute_margin: float | None = option(
        None,
        "distance that a negative must keep below the lowest score of a positive",
        minimum=0,
        needs="refresh_every",
    )
    refresh_relative_margin: float | None = option(
        None,
        "the same as a share of that score: 0.05 keeps candidates with at most 95 % of it",
        minimum=0,
        needs="refresh_every",
    )

    @property
    def pool(self) -> tuple[int, int]:
        """The smallest and the largest number of processes that re-encode."""
        return worker_range(self.refresh_pool)

    @property
    def ranks(self) -> tuple[int, int | None]:
        """The first rank, and the rank after the last; None for no end."""
        first, _, end = rank_range(self.refresh_ranks).partition(":")
        return int(first or 0), int(end) if end else None

    @property
    def mining(self) -> MiningConfig:
        """The settings of the mining of each round."""
        return MiningConfig(
            method=METHOD,
            num_negatives=self.refresh_negatives,
            range_min=self.ranks[0],
            range_max=self.ranks[1],
            max_score=self.refresh_max_score,
            absolute_margin=self.refresh_absolute_margin,
            relative_margin=self.refresh_relative_margin,
        )


def check_refresh(refresh: RefreshConfig, data: DataConfig, total_steps: int | None) -> None:
    """Check the settings against each other; raises `ConfigError`."""
    check_changed(refresh)
    every = refresh.refresh_every
    if every is None:
        return
    if not data.negatives_per_query:
        raise ConfigError(
            "there are no hard negatives to refresh",
            setting("refresh_every"),
            f"give {setting('negatives_per_query')}, such as 5, too",
        )
    if total_steps is not None and every >= total_steps:
        raise ConfigError(
            f"no steps are left after the first refresh, at step {every} of {total_steps}",
            setting("refresh_every"),
            f"give less than {total_steps}, or train longer",
        )
    first, end = refresh.ranks
    if end is not None and refresh.refresh_negatives > end - first:
        raise ConfigError(
            f"{refresh.refresh_negatives} negatives cannot be taken from {end - first} ranks",
            setting("refresh_negatives"),
            f"give at most {end - first}, or a longer range of {setting('refresh_ranks')}",
        )
    from raytriever.data.sampling.examples import parse_mix  # imports numpy, which `--help` does not need

    shares = parse_mix(data.negatives_mix)
    if shares is not None and not shares[ORIGINS.index(METHOD)]:
        raise ConfigError(
            f"gives refreshed negatives no share: {data.negatives_mix}",
            setting("negatives_mix"),
            "add dense, as in dense=0.5",
        )
