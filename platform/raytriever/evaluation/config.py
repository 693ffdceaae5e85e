"""Settings of an evaluation. This module imports nothing heavy, because the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import option
from raytriever.paths import FOLDER


@dataclass(frozen=True)
class EvaluationConfig:
    """Split, metrics and rules of an evaluation."""

    split: str = option("test", "split with judgements that is evaluated", needs="suite!=mteb")
    metrics: str = option(
        "ndcg@10,mrr@10,recall@100,auc",
        "metrics, separated by commas: ndcg, mrr, recall, map, precision, success, r-precision, judged, acc (one of "
        "the best passages holds an answer), auc, query-auc; with cutoffs such as @10, or @100 without one",
    )
    relevance_level: int = option(
        1, "lowest grade of a relevant document; use 2 for the passages of TREC DL", minimum=1, needs="suite!=mteb"
    )
    drop_own_id: bool = option(
        True, "leave a document with the query's own id out of its results, as BEIR does; --no-drop-own-id keeps it"
    )
    suite: str | None = option(
        None,
        "evaluate all data sets of BEIR, of which missing ones are named in the output; or tasks of MTEB",
        choices=("beir", "mteb"),
    )
    tasks: str | None = option(
        None, "tasks of MTEB, separated by commas", form="NAME,...", needs="suite=mteb", reads=str
    )
    benchmark: str | None = option(
        None,
        "benchmark of MTEB, such as 'MTEB(eng, v2)', BEIR, NanoBEIR, BRIGHT or LongEmbed",
        form="NAME",
        needs="suite=mteb",
        reads=str,
    )
    data_root: str = option(
        "",
        "folder of local copies of the suite's data sets, each in a folder of its name",
        reads=FOLDER,
        form="DIR",
        needs="suite=beir",
    )
    calibration_split: str = option("dev", "split on which --calibrate chooses thresholds", needs="calibrate")
