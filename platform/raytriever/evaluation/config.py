"""Settings of an evaluation. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import option
from raytriever.paths import FOLDER


@dataclass(frozen=True)
class EvaluationConfig:
    """Which split is measured, by what, and what counts."""

    split: str = option("test", "the judged split")
    metrics: str = option(
        "ndcg@10,mrr@10,recall@100,auc",
        "what is measured, separated by commas: ndcg, mrr, recall, map, precision, success, r-precision, judged, acc "
        "(holds an answer), auc, query-auc, with cutoffs such as @10; without one, @100",
    )
    relevance_level: int = option(1, "grade from which on a document is relevant; TREC DL's passages want 2", minimum=1)
    drop_own_id: bool = option(
        True, "leave out a document with the query's own id, as BEIR does; --no-drop-own-id keeps it"
    )
    suite: str | None = option(
        None, "all data sets of a benchmark; missing ones are named in the output", choices=("beir",)
    )
    data_root: str = option(
        "",
        "folder of local copies of the suite's data sets, each under its name there",
        reads=FOLDER,
        form="DIR",
        needs="suite",
    )
    calibration_split: str = option("dev", "the split on which --calibrate chooses thresholds", needs="calibrate")
