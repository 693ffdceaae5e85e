"""The settings of the data. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import option


@dataclass(frozen=True)
class DataConfig:
    """Which data set is read, which of its splits, and how many of its rows may be bad."""

    dataset: str = option("pydocs", "`pydocs`, or the path of a folder in BEIR layout")
    train_split: str = option("train", "the split trained on")
    dev_split: str = option("dev", "the split that decides when to stop")
    test_split: str = option("test", "the split measured before and after")
    max_bad_rows: float = option(
        0.01, "share of a file's rows that may be bad before the job stops", minimum=0, maximum=1
    )
    positives_per_query: int = option(1, "positives of each query in its group, at most", minimum=1)
    negatives_per_query: int = option(0, "hard negatives drawn for each query", minimum=0)
