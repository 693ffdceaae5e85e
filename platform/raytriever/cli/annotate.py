"""`annotate`: find positives with a language model and write them as a data set that `train` reads."""

from __future__ import annotations

import re
from pathlib import Path

from raytriever.annotation.config import AnnotationConfig, ServiceConfig, check_candidates
from raytriever.cli.arguments import (
    Parser,
    add_embeddings,
    add_output,
    add_path,
    add_settings,
    build_config,
    check_effects,
    lock_output,
    quote_command,
)
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.models.config import READING, ModelConfig
from raytriever.paths import OUTPUT, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig

_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
# Only dense candidates use the encoder.
_NEEDS = dict.fromkeys((*READING, "embeddings", "precision"), ("candidates=dense",)) | {
    "bm25_language": ("candidates=bm25",)
}


def main(words: list[str]) -> None:
    """Parse, annotate, print."""
    arguments = _parser().parse(words)
    annotation = build_config(arguments, AnnotationConfig)
    service = build_config(arguments, ServiceConfig)
    model = build_config(arguments, ModelConfig)
    data = build_config(arguments, DataConfig)
    training = build_config(arguments, TrainingConfig)
    check_effects(arguments, annotation, service, model, data, training, needs=_NEEDS)
    if not _SPLIT.fullmatch(arguments.split):
        raise ConfigError(
            f"{arguments.split!r} is not a valid name of a split", "--split", "use letters, digits, '_' and '-'"
        )
    check_candidates(annotation)
    check_paths(annotation, model, data)
    output = Path(arguments.output)
    if not arguments.dry_run:
        lock_output(arguments, output)

    from raytriever.annotation.job import AnnotationJob, run_annotation, summary

    job = AnnotationJob(
        data=data,
        split=arguments.split,
        annotation=annotation,
        service=service,
        model=model,
        precision=training.precision,
        embeddings=arguments.embeddings and Path(arguments.embeddings),
        answers=arguments.answers and Path(arguments.answers),
    )
    estimate, annotated = run_annotation(job, output, arguments.dry_run, warn, arguments.wait)
    if annotated is None:
        show(estimate)
        return
    show(summary(annotated, bool(service.price_in or service.price_out)))
    groups = "human-first" if annotation.agreed == "human" and annotated.human else "llm"
    words = ["--dataset", str(output), "--positives", groups, "--positives-order", "ranked"]
    if annotated.meta["negatives"]:
        words += ["--negatives-table", str(output / "negatives"), "--negatives-per-query", "5"]
    show(f"\nContinue with:\n  {quote_command('raytriever', 'train', *words)}")


def _parser() -> Parser:
    parser = Parser(
        prog="annotate",
        description="Select positives among the candidates of several retrievers with a language model.",
    )
    add_output(parser, "folder to write the annotated data set to")
    parser.add_argument(
        "--split",
        default="train",
        metavar="NAME",
        help="split whose queries are annotated; a new name means the queries without a judgement (default: train)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the estimated cost and send no request")
    add_path(
        parser,
        "--answers",
        OUTPUT,
        "DIR",
        "folder that keeps every answer, shared by all annotations (default: answers/ in the cache)",
    )
    add_embeddings(parser)
    add_settings(parser, ServiceConfig, "service")
    add_settings(parser, AnnotationConfig, "annotation")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows", "bm25_language"])
    add_settings(parser, ModelConfig, "encoder of dense candidates", only=READING)
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
