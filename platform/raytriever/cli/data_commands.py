"""Commands that prepare data: `import`, `prepare`, `annotate`, `mine` and `score`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from raytriever.cli.arguments import Argument, number
from raytriever.cli.command import Command, Given, SettingsGroup
from raytriever.cli.shared_arguments import (
    DATA,
    EMBEDDINGS,
    MODEL,
    PRECISION,
    PRECISION_AND_SEED,
    next_command,
    optional_path,
)
from raytriever.core.errors import ConfigError
from raytriever.core.paths import DOCUMENTS, PATH
from raytriever.core.setting_declarations import Need
from raytriever.core.terminal import warn
from raytriever.data.data_settings import DataConfig, ImportConfig, SplitConfig
from raytriever.evaluation.annotation.annotation_settings import AnnotationConfig, LlmConfig
from raytriever.models.model_settings import READING, ModelConfig
from raytriever.retrieval.external_encoders.endpoint_settings import endpoint_needs
from raytriever.retrieval.mining.mining_settings import MiningConfig, ScoreConfig

_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_IMPORT = ("model", "revision", "passage_prompt", "passage_prompt_name", "passage_length")
_PROMPTS = ("query_prompt", "passage_prompt", "query_prompt_name", "passage_prompt_name", "dataset_prompts")
_DATA_AND_BM25 = SettingsGroup("data", DataConfig, "data", "dataset", "max_bad_rows", "bm25_language")
_DENSE_METHOD = Need("method", "dense", "cross-query")
_DENSE_CANDIDATES = Need("candidates", "dense")


def _split(help: str, reads: Callable[[str], str] | None = None) -> Argument:
    return Argument("--split", f"{help} (default: train)", reads, default="train")


def _new_split(text: str) -> str:
    if not _SPLIT.fullmatch(text):
        raise ConfigError(f"{text!r} is not a valid name of a split", "--split", "use letters, digits, '_' and '-'")
    return text


def import_documents(given: Given) -> Iterator[str]:
    """Write a folder of documents as a data set."""
    from raytriever.data.documents.import_folder import import_folder
    from raytriever.data.documents.import_summary import summary_lines

    summary = import_folder(given.folder, given.output, given.documents, given.model, warn)
    yield from summary_lines(summary, given.documents, given.model.model)


IMPORT = Command(
    import_documents,
    output="folder to write the data set to, in BEIR layout; an earlier import there is replaced",
    arguments=[Argument("folder", "folder of documents, or its URI", DOCUMENTS)],
    settings=[
        SettingsGroup("documents", ImportConfig, "import"),
        SettingsGroup("model", ModelConfig, "model", *_IMPORT),
    ],
)


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
        yield next_command("train", *flags)
    elif prepared.splits:
        split = () if "test" in prepared.splits else ("--split", prepared.splits[0])
        words = ("--datasets", prepared.path, *split, "--model", model.model)
        yield next_command("evaluate", *words, "--output", "evaluation")
    else:
        yield next_command("search", *flags, "a question")


PREPARE = Command(
    prepare,
    output="folder to write the prepared data set to",
    arguments=[
        Argument("--format", "the data set's format (default: recognized from its files)"),
        Argument(
            "--columns",
            "columns of a CSV or TSV file, such as `query=Frage,passage=Antwort` (default: recognized by their names)",
            metavar="NAMES",
            default="",
        ),
    ],
    settings=[
        DATA,
        SettingsGroup("division", SplitConfig, "splits of one CSV, TSV or JSONL file"),
        SettingsGroup("model", ModelConfig, "model", "model", "revision", *_PROMPTS, "query_length", "passage_length"),
    ],
)


def annotate(given: Given) -> Iterator[str]:
    """Select positives with a language model."""
    from raytriever.evaluation.annotation.annotate_queries import run_annotation, summary

    estimate, annotated = run_annotation(
        given.annotation,
        given.service,
        given.model,
        given.data,
        given.output,
        warn,
        split=given.split,
        precision=given.training.precision,
        embeddings=optional_path(given.embeddings),
        answers=optional_path(given.answers),
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
    yield next_command("train", *words)


ANNOTATE = Command(
    annotate,
    output="folder to write the annotated data set to",
    writes=lambda given: not given.dry_run,
    arguments=[
        _split("split whose queries are annotated; with a new name, all queries without a judgement", _new_split),
        Argument("--dry-run", "print the estimated cost and send no request", action="store_true"),
        Argument(
            "--answers",
            "folder that keeps every answer, shared by all annotations (default: answers/ in the cache)",
            PATH,
        ),
        EMBEDDINGS,
    ],
    settings=[
        SettingsGroup("service", LlmConfig, "service"),
        SettingsGroup("annotation", AnnotationConfig, "annotation"),
        _DATA_AND_BM25,
        SettingsGroup("model", ModelConfig, "encoder of dense candidates", *READING),
        PRECISION,
    ],
    needs=dict.fromkeys((*READING, "embeddings", "precision"), (_DENSE_CANDIDATES,))
    | {"bm25_language": [Need("candidates", "bm25")]},
)


def mine(given: Given) -> Iterator[str]:
    """Find hard negatives."""
    from raytriever.retrieval.mining.mining_job import format_counts, run_mining

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
        embeddings=optional_path(given.embeddings),
    )
    yield format_counts(mined)
    counts = mined.counts_per_query
    short, none = int((counts < mined.wanted).sum()), int((counts == 0).sum())
    yield f"\n{len(counts):,} queries; {short:,} have fewer than {mined.wanted} negatives, {none:,} have none"
    if quarantined:
        yield quarantined
    number = min(given.mining.num_negatives, 5)
    words = "--dataset", given.data.dataset, "--negatives-table", given.output, "--negatives-per-query", number
    yield next_command("train", *words)


MINE = Command(
    mine,
    output="folder to write the negatives table to",
    arguments=[
        _split("split whose queries get negatives"),
        Argument(
            "--round",
            "number of this round of mining, which the table records (default: 0)",
            number("--round", int, 0, 2**31 - 1, "give at least 0"),
            metavar="N",
            default=0,
        ),
        EMBEDDINGS,
    ],
    settings=[SettingsGroup("mining", MiningConfig, "mining"), _DATA_AND_BM25, MODEL, PRECISION_AND_SEED],
    needs=dict.fromkeys((*READING, "embeddings"), (_DENSE_METHOD,))
    | endpoint_needs()
    | {"precision": [_DENSE_METHOD, Need("judge")]},
)


def score(given: Given) -> Iterator[str]:
    """Score pairs with a cross-encoder."""
    from raytriever.retrieval.mining.teacher_scoring import run_scoring

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
    yield next_command("train", *words, "--teacher", given.output)


SCORE = Command(
    score,
    output="folder to write the scores to",
    arguments=[_split("split whose queries are scored")],
    settings=[SettingsGroup("teacher", ScoreConfig, "teacher"), DATA, PRECISION],
)
