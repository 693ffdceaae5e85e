"""Actions of most commands: import what is heavy, call the job with the checked settings, yield the lines to print.

`evaluate`, `study`, `train`, `tune` and the commands of `cli/operate` have modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raytriever.cli.arguments import quote_command
from raytriever.cli.command import Given
from raytriever.terminal import warn


def _next(*words: object) -> str:
    """Return the lines that recommend the next command."""
    return f"\nContinue with:\n  {quote_command('raytriever', *words)}"


def import_documents(given: Given) -> Iterator[str]:
    """Write a folder of documents as a data set."""
    from raytriever.documents.job import import_folder
    from raytriever.documents.summary import summary_lines

    summary = import_folder(given.folder, given.output, given.documents, given.model, warn)
    yield from summary_lines(summary, given.documents, given.model.model)


def prepare(given: Given) -> Iterator[str]:
    """Check, tokenize and shard a data set."""
    from raytriever.cluster.ingest import run_preparation

    data, model = given.data, given.model
    prepared = run_preparation(
        data.dataset, given.format, model, data.max_bad_rows, given.output, warn, given.columns, given.division
    )
    width = max(map(len, prepared.lines))
    yield from (f"{name:<{width}}  {value}" for name, value in prepared.lines.items())
    if prepared.quarantined:
        yield prepared.quarantined
    flags = ("--dataset", prepared.path, "--model", model.model)
    if "train" in prepared.splits:
        yield _next("train", *flags)
    elif prepared.splits:
        split = () if "test" in prepared.splits else ("--split", prepared.splits[0])
        words = ("--datasets", prepared.path, *split, "--model", model.model)
        yield _next("evaluate", *words, "--output", "evaluation")
    else:
        yield _next("search", *flags, "a question")


def annotate(given: Given) -> Iterator[str]:
    """Select positives with a language model."""
    from raytriever.annotation.job import run_annotation, summary

    estimate, annotated = run_annotation(
        given.annotation,
        given.service,
        given.model,
        given.data,
        given.output,
        warn,
        split=given.split,
        precision=given.training.precision,
        embeddings=_path(given.embeddings),
        answers=_path(given.answers),
        dry_run=given.dry_run,
        wait=given.wait,
    )
    if annotated is None:
        yield estimate
        return
    yield summary(annotated, bool(given.service.price_in or given.service.price_out))
    groups = "human-first" if given.annotation.agreed == "human" and annotated.human else "llm"
    words = ["--dataset", str(given.output), "--positives", groups, "--positives-order", "ranked"]
    if annotated.meta["negatives"]:
        words += ["--negatives-table", str(given.output / "negatives"), "--negatives-per-query", "5"]
    yield _next("train", *words)


def mine(given: Given) -> Iterator[str]:
    """Find hard negatives."""
    from raytriever.mining.job import format_counts, run_mining

    mined, quarantined = run_mining(
        given.mining,
        given.model,
        given.data,
        given.output,
        warn,
        split=given.split,
        precision=given.training.precision,
        seed=given.training.seed,
        round=given.round,
        embeddings=_path(given.embeddings),
    )
    yield format_counts(mined)
    counts = mined.counts_per_query
    short, none = int((counts < mined.wanted).sum()), int((counts == 0).sum())
    yield f"\n{len(counts):,} queries; {short:,} of them have fewer than {mined.wanted}, {none:,} have none"
    if quarantined:
        yield quarantined
    number = min(given.mining.num_negatives, 5)
    words = "--dataset", given.data.dataset, "--negatives-table", given.output, "--negatives-per-query", number
    yield _next("train", *words)


def score(given: Given) -> Iterator[str]:
    """Score pairs with a cross-encoder."""
    from raytriever.mining.teacher import run_scoring

    precision = given.training.precision
    result = run_scoring(given.teacher, given.data, given.output, warn, split=given.split, precision=precision)
    yield f"{'':<12}{'pairs':>12}{'mean':>10}{'deviation':>12}"
    for name, scores in (("positives", result.positives), ("candidates", result.candidates)):
        yield f"{name:<12}{len(scores):>12,}{scores.mean():>10.3f}{scores.std():>12.3f}"
    yield (
        f"\n{result.queries:,} queries; {result.above:.1%} of the candidates score above the lowest positive of "
        f"their query; scores are logits (the model's activation: {result.activation})"
    )
    if result.scored:
        speed = f"{result.scored / result.seconds:,.0f} a second"
        yield f"{result.scored:,} pairs scored in {result.seconds:,.1f} s, {speed}"
    if result.quarantined:
        yield result.quarantined
    table = ["--negatives-table", given.teacher.negatives] if given.teacher.negatives else []
    words = ["--dataset", given.data.dataset, *table, "--negatives-per-query", "7", "--loss", "kl"]
    yield _next("train", *words, "--teacher", given.output)


def compare(given: Given) -> Iterator[str]:
    """Compare finished runs on one page."""
    from raytriever.report.comparison import compare_runs

    compare_runs(given.runs, Path(given.page))
    yield f"{given.page} (open it in a browser)"


def search(given: Given) -> Iterator[str]:
    """Find the best passages for a query."""
    from raytriever.search.exact import format_hits, search_dataset

    words = given.query, given.top, given.threshold
    yield format_hits(search_dataset(given.model, given.data.dataset, *words, given.training.precision))


def encode(given: Given) -> Iterator[str]:
    """Encode the passages or the queries of a data set."""
    from raytriever.cluster.encoding import run_encoding
    from raytriever.encoding.store import EMBEDDINGS, SCALES

    precision = given.training.precision
    store = run_encoding(given.encoding, given.model, given.data, given.output, warn, precision=precision)
    size = sum(file.stat().st_size for name in (EMBEDDINGS, SCALES) for file in store.path.rglob(name))
    yield f"{len(store):,} embeddings of width {store.width}, {store.meta['dtype']}, {size / 1e6:,.1f} MB"
    yield f"\n{given.output}"


def index(given: Given) -> Iterator[str]:
    """Build an approximate index, or open it, measure it and search it."""
    from raytriever.index.approximate.store import FINDER
    from raytriever.search.approximate import format_answers, format_measurements, run_index
    from raytriever.store.disk import files_below

    opened = run_index(
        given.approximate,
        given.model,
        given.data,
        given.output,
        warn,
        precision=given.training.precision,
        seed=given.training.seed,
        split=given.split,
        embeddings=_path(given.embeddings),
    )
    embeddings, size = opened.index.embeddings, sum(file.stat().st_size for file in files_below(given.output / FINDER))
    action = "opened" if opened.seconds is None else f"built in {opened.seconds:,.1f} s"
    yield (
        f"{given.approximate.index} over {len(embeddings):,} passages of width {embeddings.shape[1]}, {action}; "
        f"{size / 1e6:,.1f} MB, and {embeddings.nbytes / 1e6:,.1f} MB of embeddings"
    )
    if given.split:
        yield "\n" + format_measurements(opened, given.split)
    if given.query:
        yield "\n" + format_answers(opened, given.query, given.top)
    yield f"\n{given.output}"


def export_model(given: Given) -> Iterator[str]:
    """Write a model for other runtimes."""
    from raytriever.export.model import export, push_to_hub

    yield from map(str, export(given.model, given.export, given.output, warn))
    if given.export.push_to_hub:
        yield push_to_hub(given.output, given.export.push_to_hub)
    yield f"\n{given.output}"


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
