"""Settings of an evaluation. This module imports nothing heavy, because the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.paths import FOLDER
from raytriever.core.setting_declarations import Need, option
from raytriever.core.unknown_names import did_you_mean

# The names are repeated from `metrics.answer_confidence`, which imports NumPy and would slow `--help` down.
CONFIDENCES = ("score", "entropy", "combined")
MTEB = "mteb"
DTYPES = ("fp32", "int8", "binary", "ubinary")


def read_dtypes(text: str) -> str:
    """Check a comma-separated list of types of quantized embeddings and return it without repetitions."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"give one or more of {', '.join(DTYPES)}")
    for name in names:
        if name not in DTYPES:
            raise ValueError(did_you_mean(name, DTYPES))
    return ",".join(dict.fromkeys(names))


def read_dims(text: str) -> str:
    """Check a comma-separated list of embedding dimensions and return it without repetitions."""
    try:
        dims = dict.fromkeys(int(dim) for dim in text.split(","))
    except ValueError as error:
        raise ValueError("give whole numbers, such as 64,128,256") from error
    for dim in dims:
        if dim < 1:
            raise ConfigError(f"{dim} is out of range", setting("truncate_dim"), "give a value of at least 1")
    return ",".join(map(str, dims))


@dataclass(frozen=True)
class EvaluationConfig:
    """Settings of an evaluation: split, metrics and rules."""

    split: str = option("test", "split with judgements that is evaluated", needs=Need("suite", MTEB, negated=True))
    metrics: str = option(
        "ndcg@10,mrr@10,recall@100,auc",
        "metrics, separated by commas: ndcg, mrr, recall, map, precision, success, r-precision, judged, acc (one of "
        "the best passages holds an answer), auc, query-auc; with cutoffs such as @10, or @100 without one",
    )
    relevance_level: int = option(
        1,
        "lowest grade of a relevant document; use 2 for the passages of TREC DL",
        minimum=1,
        needs=Need("suite", MTEB, negated=True),
    )
    drop_own_id: bool = option(
        True,
        f"leave a document with the query's own id out of its results, as BEIR does; "
        f"{flag_of('drop_own_id', False)} keeps it",
    )
    suite: str | None = option(
        None,
        "evaluate all data sets of BEIR, of which missing ones are named in the output; or tasks of MTEB",
        choices=("beir", MTEB),
    )
    tasks: str | None = option(
        None, "tasks of MTEB, separated by commas", metavar="NAME,...", needs=Need("suite", MTEB), reads=str
    )
    benchmark: str | None = option(
        None,
        "benchmark of MTEB, such as 'MTEB(eng, v2)', BEIR, NanoBEIR, BRIGHT or LongEmbed",
        metavar="NAME",
        needs=Need("suite", MTEB),
        reads=str,
    )
    data_root: str = option(
        "",
        "folder of local copies of the suite's data sets, each in a folder of its name",
        reads=FOLDER,
        metavar="DIR",
        needs=Need("suite", "beir"),
    )
    calibration_split: str = option(
        "dev",
        f"split on which {flag_of('calibrate')} chooses thresholds; with few queries, or if it is that of "
        f"{flag_of('split')}, thresholds are tested on the queries on which they are chosen",
        needs="calibrate",
    )
    confidence: str = option(
        "entropy",
        "what decides whether a query is answered: its best score, the entropy of its 20 best scores, or combined, "
        "which asks BM25 too",
        choices=CONFIDENCES,
        needs="calibrate",
    )
    dtype: str | None = option(
        None,
        f"types of stored embeddings, separated by commas, evaluated at each {flag_of('truncate_dim')}: "
        f"{', '.join(DTYPES)}",
        metavar="TYPE,...",
        needs=Need("suite", MTEB, negated=True),
        reads=read_dtypes,
    )
    truncate_dim: str | None = option(
        None,
        f"number of first components of an embedding to keep; several numbers, or one with {flag_of('dtype')}, are "
        "evaluated next to the whole embedding, which is encoded once",
        metavar="N,...",
        reads=read_dims,
    )
    rescore_multiplier: int | None = option(
        None,
        "candidates per result that a search of quantized embeddings rescores with the query in fp32 (default: 2)",
        minimum=1,
        needs="dtype",
    )

    @property
    def dims(self) -> tuple[int, ...]:
        """The numbers of components of `truncate_dim`."""
        return tuple(map(int, self.truncate_dim.split(","))) if self.truncate_dim else ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types of `dtype`. By default, this is fp32 if there are several dimensions, and empty otherwise."""
        if self.dtype:
            return tuple(self.dtype.split(","))
        return ("fp32",) if len(self.dims) > 1 else ()

    @property
    def model_dim(self) -> int | None:
        """Dimension to which all models are truncated; None if `truncate_dim` is unset or only adds variants."""
        return self.dims[0] if self.dims and not self.dtypes else None
