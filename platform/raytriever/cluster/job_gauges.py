"""What jobs that go through many rows or texts tell whoever watches the cluster: totals, while they have a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath

from raytriever.cluster.gauges import Gauges
from raytriever.data.shards import ShardReport, ShardWriter
from raytriever.retrieval.corpus import Runner
from raytriever.retrieval.encode_shard import ShardEncoder


def watched_ingest(writer: ShardWriter, reports: Iterator[ShardReport]) -> Iterator[ShardReport]:
    """The same reports, told as they pass; the run is called after the folder of the data set's first file."""
    where = PurePath(writer.parts[0].where)
    gauges = Gauges(f"ingest/{where.parent.name or where.name}")
    rows = bad = 0

    def tell(running: bool) -> None:
        gauges.tell("ingest_running", running, "1 while rows are read, checked and written, 0 after")
        gauges.tell("ingest_rows", rows, "rows that are done, the bad ones too")
        gauges.tell("ingest_quarantined", bad, "bad rows that were put aside")

    tell(True)
    for report in reports:
        rows, bad = rows + report.rows, bad + len(report.bad)
        tell(True)
        yield report
    tell(False)


def watched_encoding(run: Runner, gauges: Gauges) -> Runner:
    """The same runner, which tells how many texts all its calls have encoded."""
    texts = 0

    def watched(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        def count(more: int) -> None:
            nonlocal texts
            texts += more
            gauges.tell("encoding_texts", texts, "texts that the job has encoded so far")
            advance(more)

        gauges.tell("encoding_texts", texts, "texts that the job has encoded so far")
        run(encoder, missing, count)

    return watched


def tell_evaluation(evaluation: str, model: str, dataset: str, metrics: Mapping[str, float]) -> Gauges:
    """Tell the metrics of a model on a data set; they are there as long as the answer is kept."""
    gauges = Gauges(f"{evaluation}/{model}/{dataset}")
    for name, value in metrics.items():
        gauges.tell(f"evaluation_{name}", value, f"{name.replace('_', ' ')} of a model on a data set")
    return gauges
