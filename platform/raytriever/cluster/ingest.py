"""Write shards of a data set with Ray Data, and prepare a data set as a separate job.

1. One task per file reads blocks of raw rows; other tasks write the shards directly to the folder. Ray Data slows the
   readers down if writers are behind, so the object store holds a few blocks only, for a corpus of any size.
2. If a process dies, Ray repeats its task without limit. So attempts are counted in files, and the preparation ends if
   three processes have died on the same block.
3. User errors are sent between processes as JSON text, so nothing is unpickled for them."""

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
from raytriever.cluster.ray_session import ray_session
from raytriever.core.errors import DataError, ModelError, StorageError, UserError
from raytriever.core.processes import TRIES
from raytriever.core.store.disk import check_writable
from raytriever.core.store.unfinished_pieces import Attempts
from raytriever.data.data_settings import SplitConfig
from raytriever.data.dataset_statistics import describe
from raytriever.data.formats.file_blocks import FileBlock, read_blocks
from raytriever.data.formats.plan import Part
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.prepare_dataset import Request, Runner, block_bytes, in_processes, prepare
from raytriever.data.prepare.text_shards import WORK, ShardSummary, ShardWriter
from raytriever.models.description import describe as describe_model
from raytriever.models.description import prompt_table
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import SIDES, Prompts, check_length
from raytriever.models.resolve_model import read_files
from raytriever.models.tokenization import Template, content_tokenizer_json, load_tokenizer

# CPUs that a task reserves. A reader only decompresses and needs little, so every core still has a writer. Because the
# numbers differ, Ray Data does not fuse a reader and a writer into one task.
_READER_CPUS, _WRITER_CPUS = 0.05, 0.95
# Inputs of at least this many bytes are read with Ray. A session and its first data set need about 15 s to start. In
# this time, two cores prepare 40 MB of gzipped JSON.
RAY_FROM = 64 << 20
# Name of an empty file in the folder of the shards. It stops the readers after an error in an input.
_STOPPED = "stopped"
_ERRORS = {error.__name__: error for error in (DataError, ModelError, StorageError)}


def serialize_error(error: UserError) -> str:
    """Serialize a user error as JSON text: its class, what, where and remedy."""
    return json.dumps([type(error).__name__, *error.args])


def deserialize_error(text: str) -> UserError:
    """Restore an error from a text of `serialize_error`. A class that is not in `_ERRORS` becomes `UserError`."""
    name, what, where, remedy = json.loads(text)  # noqa: TID251 - an error of this program's own task
    return _ERRORS.get(name, UserError)(what, where, remedy)


def choose_runner(num_workers: int) -> Runner:
    """Return a runner: it uses processes of this machine for inputs below `RAY_FROM` bytes, else Ray tasks."""

    def run(writer: ShardWriter, total_bytes: int) -> Iterator[ShardSummary]:
        if total_bytes < RAY_FROM:
            yield from in_processes(writer, total_bytes)
        else:
            with ray_session(num_workers):
                yield from with_ingest_gauges(writer, run_in_ray_tasks(writer, total_bytes))

    return run


def run_in_ray_tasks(writer: ShardWriter, total_bytes: int) -> Iterator[ShardSummary]:
    """Write the shards of a data set in Ray tasks, and yield the summary of each shard when the shard is written.

    This is a `Runner` for preparations, and needs a Ray session."""
    size = block_bytes(total_bytes)
    # A row, one block of a file, is also one block of Ray Data; otherwise a task would get many rows. By default, Ray
    # Data reserves half of the CPUs, equally for readers and writers: one of two cores would have no writer.
    with quiet_data_context(target_max_block_size=size // 2, op_resource_reservation_ratio=0.0):
        parts = [{"part": index} for index in range(len(writer.parts))]
        shards = (
            ray.data.from_items(parts, override_num_blocks=len(parts))
            .flat_map(_Reader(writer.parts, size, writer.folder / _STOPPED), num_cpus=_READER_CPUS)
            .map_batches(_Writer(writer), batch_size=1, batch_format="pyarrow", num_cpus=_WRITER_CPUS)
        )
        error = ""
        for row in shards.iter_rows():
            if error:
                continue  # wait for every task to end, because the caller removes the folder that they write to
            if error := row["error"]:
                (writer.folder / _STOPPED).touch()
            else:
                summary = json.loads(row["summary"])  # noqa: TID251 - a report of this program's own task
                yield ShardSummary(**{**summary, "bad": tuple(summary["bad"])})
        if error:
            raise deserialize_error(error)


@contextmanager
def quiet_data_context(**settings: Any) -> Iterator[None]:
    """Apply settings of Ray Data within the block, and turn off its progress bars and log lines."""
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
    """Reader of an input file in blocks. It yields a user error as a value."""

    parts: tuple[Part, ...]
    block_bytes: int
    stopped: Path

    def __call__(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            for block in read_blocks(self.parts[row["part"]], row["part"], self.block_bytes):
                if self.stopped.exists():
                    return
                yield {**vars(block), "error": ""}
        except UserError as error:
            yield {**vars(FileBlock(row["part"], -1, -1, b"")), "error": serialize_error(error)}


@dataclass(frozen=True)
class _Writer:
    """Writer of a block as a shard. It returns a summary, or a user error as a value: Ray would retry exceptions."""

    writer: ShardWriter

    def __call__(self, batch: pa.Table) -> pa.Table:
        # Every core already has a task, so threads of the tokenizer would compete with other tasks.
        os.environ.setdefault("RAYON_NUM_THREADS", "1")
        summaries, errors = [], []
        for row in batch.to_pylist():
            summary, failure = "", row.pop("error")
            if not failure:
                try:
                    summary = json.dumps(asdict(self._write(FileBlock(**row))))
                except UserError as error:
                    failure = serialize_error(error)
            summaries.append(summary)
            errors.append(failure)
        return pa.table({"summary": pa.array(summaries, pa.large_string()), "error": pa.array(errors, pa.string())})

    def _write(self, block: FileBlock) -> ShardSummary:
        """Write a block; raises `DataError` if too many processes have died on it."""
        name = f"{block.part}-{block.number}"
        with Attempts(self.writer.folder / WORK) as attempts:
            if attempts.begin(name) >= TRIES:
                raise self.writer.fatal(block)
            summary = self.writer(block)
            attempts.end(name)
        return summary


@dataclass(frozen=True)
class Prepared:
    """Result of a preparation."""

    path: Path  # path of the data set
    lines: dict[str, str]  # lines of its summary table, by title
    quarantined: str | None  # line on the quarantined rows, if there are any
    splits: tuple[str, ...]  # names of the splits that have judgements


def run_preparation(
    dataset: str,
    format: str | None,
    model: ModelConfig,
    max_bad_rows: float,
    output: Path,
    log: Callable[[str], None],
    columns: str = "",
    division: SplitConfig | None = None,
) -> Prepared:
    """Prepare a data set and describe it: on this machine, or with Ray if the data set is large."""
    check_writable(output)
    files = read_files(model)
    description = describe_model(files, model)
    tokenizer = load_tokenizer(files.sides["query"].transformer)
    template = Template.of(tokenizer)
    table = prompt_table(description, model)
    tokenization = Tokenization(content_tokenizer_json(tokenizer), table.query, table.passage, table)
    lengths = {"passage": description.passage_length, "query": description.query_length}
    special = len(template.before) + len(template.after)

    def check_prompts(prompts: Prompts) -> None:
        for side in SIDES:
            [tokens] = tokenization.encode([""], prompts[side])
            check_length(prompts[side], len(tokens), lengths[side] - special, side)

    check_prompts(table.of())
    request = Request(dataset, tokenization, format, max_bad_rows, columns=columns, division=division or SplitConfig())
    prepared = prepare(request, choose_runner(num_workers=0), output, log)
    opened = prepared.open()
    table.check([opened.name])
    check_prompts(table.of(opened.name))
    lengths_of = {"documents": lengths["passage"], "queries": lengths["query"]}
    lines = describe(opened, prepared.meta["sides"], lengths_of, around=special)
    return Prepared(
        prepared.folder, lines, str(opened.quarantine) if opened.quarantine.total else None, tuple(opened.judgements)
    )
