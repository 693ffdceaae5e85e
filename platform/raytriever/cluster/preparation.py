"""Prepares a data set for a model as a job of its own, and tells what it found.

Training prepares by itself; the job is for corpora one would rather see checked, with their lengths, before any GPU
waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raytriever.cluster.ingest import by_size
from raytriever.data.prepare import Request, prepare
from raytriever.data.prepared import read_prepared
from raytriever.data.statistics import describe
from raytriever.data.tokenise import Tokenisation
from raytriever.models.config import ModelConfig
from raytriever.models.description import describe as describe_model
from raytriever.models.description import tower_directory
from raytriever.models.source import resolve_model
from raytriever.models.template import Template
from raytriever.models.tokenisation import content_tokenizer_json, load_tokenizer
from raytriever.storage import check_writable, read_manifest


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
    place = prepare(request, by_size(num_workers=0), output, say)
    opened = read_prepared(place)
    sides = read_manifest(place, verify=False)["meta"]["sides"]
    lengths = {"documents": description.passage_length, "queries": description.query_length}
    lines = describe(opened, sides, lengths, around=len(template.before) + len(template.after))
    return Prepared(place, lines, str(opened.quarantine) if opened.quarantine.total else None)
