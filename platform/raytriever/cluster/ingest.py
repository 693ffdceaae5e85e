"""Write shards of a data set with Ray Data, and prepare a data set as a job of its own.

1. One task per file reads chunks of raw rows; further tasks write shards straight to the folder. Ray Data slows readers
   down when writers are behind, so the object store holds a few chunks whatever the corpus.
2. Ray repeats a task whose process dies. The writer sees the mark of the first attempt and finds the row that caused it
   (`data.shards`), so no row can kill it twice.
3. User errors travel between processes as JSON text; nothing is unpickled for them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import DataContext

from raytriever.cluster.gauges import with_ingest_gauges
from raytriever.cluster.session import ray_session
from raytriever.data.formats.chunks import Chunk, read_chunks
from raytriever.data.formats.plan import Part
from raytriever.data.prepare.pipeline import Request, Runner, chunk_bytes, in_processes, prepare
from raytriever.data.prepare.prepared import read_prepared
from raytriever.data.prepare.shards import ShardReport, ShardWriter
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.data.statistics import describe
from raytriever.errors import DataError, ModelError, StorageError, UserError
from raytriever.models.config import ModelConfig
from raytriever.models.description import describe as describe_model
from raytriever.models.description import tower_directory
from raytriever.models.source import resolve_model
from raytriever.models.tokenisation import Template, content_tokenizer_json, load_tokenizer
from raytriever.storage import check_writable, read_manifest

_KINDS = {one.__name__: one for one in (DataError, ModelError, StorageError)}


def serialize_error(mistake: UserError) -> str:
    """A mistake as JSON: its kind, what, where, remedy."""
    return json.dumps([type(mistake).__name__, mistake.what, mistake.where, mistake.remedy])


def deserialize_error(text: str) -> UserError:
    """The mistake that `serialize_error` made a text of, of the kind it was where every process knows that kind."""
    kind, what, where, remedy = json.loads(text)
    return _KINDS.get(kind, UserError)(what, where, remedy)


# A reader only unpacks: so little is asked for it that every core still has a writer. That the two ask for different
# shares keeps them tasks of their own.
_READER_CPUS, _WRITER_CPUS = 0.05, 0.95
# A session and its first data set take some 15 s to start, in which two cores prepare 40 MB of gzipped JSON.
RAY_FROM = 64 << 20


def choose_runner(num_workers: int) -> Runner:
    """The runner for a job: processes of this machine where they are done before Ray Data has begun, else Ray tasks.

    Args:
        num_workers: training processes that the session, if one must be started, will be asked for.
    """

    def run(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
        if total_bytes < RAY_FROM:
            yield from in_processes(writer, total_bytes)
        else:
            with ray_session(num_workers):
                yield from with_ingest_gauges(writer, run_in_ray_tasks(writer, total_bytes))

    return run


def run_in_ray_tasks(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
    """The runner for `data.prepare` inside a Ray session; reports come in the order in which shards are done."""
    size = chunk_bytes(total_bytes)
    # Each chunk is a block of its own, or one task would be given many.
    with quiet_data_context(target_max_block_size=size // 2):
        parts = [{"part": index} for index in range(len(writer.parts))]
        shards = (
            ray.data.from_items(parts, override_num_blocks=len(parts))
            .flat_map(_Reader(writer.parts, size), num_cpus=_READER_CPUS)
            .map_batches(_Writer(writer), batch_size=1, batch_format="pyarrow", num_cpus=_WRITER_CPUS)
        )
        for row in shards.iter_rows():
            if row["mistake"]:
                raise deserialize_error(row["mistake"])
            report = json.loads(row["report"])
            yield ShardReport(**{**report, "bad": tuple(report["bad"])})


@contextmanager
def quiet_data_context(**settings: Any) -> Iterator[None]:
    """Settings of Ray Data for the length of a block, and without what it tells of itself."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    settings |= {"enable_progress_bars": False, "print_on_execution_start": False}
    before = {name: getattr(context, name) for name in settings}
    for name, value in settings.items():
        setattr(context, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)


@dataclass(frozen=True)
class _Reader:
    """A part to its chunks, or to the mistake that stands in the way of reading it."""

    parts: tuple[Part, ...]
    chunk_bytes: int

    def __call__(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            for chunk in read_chunks(self.parts[row["part"]], row["part"], self.chunk_bytes):
                yield {**vars(chunk), "mistake": ""}
        except UserError as mistake:
            yield {**vars(Chunk(row["part"], -1, -1, b"")), "mistake": serialize_error(mistake)}


@dataclass(frozen=True)
class _Writer:
    """A chunk to the report on its shard. Mistakes travel as values: raised, Ray would wrap and retry them."""

    writer: ShardWriter

    def __call__(self, batch: pa.Table) -> pa.Table:
        # Every core has a task; a tokenizer with threads of its own would only get in the others' way.
        os.environ.setdefault("RAYON_NUM_THREADS", "1")
        reports, mistakes = [], []
        for row in batch.to_pylist():
            report, mistake = "", row.pop("mistake")
            if not mistake:
                try:
                    report = json.dumps(asdict(self.writer(Chunk(**row))))
                except UserError as error:
                    mistake = serialize_error(error)
            reports.append(report)
            mistakes.append(mistake)
        return pa.table({"report": pa.array(reports, pa.large_string()), "mistake": pa.array(mistakes, pa.string())})


@dataclass(frozen=True)
class Prepared:
    """Where the data set stands, the lines of its table, and a line on bad rows, if any were left out."""

    path: Path
    lines: dict[str, str]
    quarantined: str | None


def run_preparation(
    dataset: str,
    format: str | None,
    model: ModelConfig,
    max_bad_rows: float,
    output: Path,
    say: Callable[[str], None],
) -> Prepared:
    """Prepare and describe; on this machine, or on the Ray cluster where there is much to do.

    Raises:
        UserError: something a user can mend; see `errors`.
    """
    check_writable(output)
    directory = resolve_model(model.model, model.revision)
    description = describe_model(directory, model)
    tokenizer = load_tokenizer(tower_directory(directory, "query"))
    template = Template.of(tokenizer)
    tokenisation = Tokenisation(content_tokenizer_json(tokenizer), description.query_prefix, description.passage_prefix)
    request = Request(dataset, tokenisation, format, max_bad_rows)
    place = prepare(request, choose_runner(num_workers=0), output, say)
    opened = read_prepared(place)
    sides = read_manifest(place, verify=False)["meta"]["sides"]
    lengths = {"documents": description.passage_length, "queries": description.query_length}
    lines = describe(opened, sides, lengths, around=len(template.before) + len(template.after))
    return Prepared(place, lines, str(opened.quarantine) if opened.quarantine.total else None)
