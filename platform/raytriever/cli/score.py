"""`score`: a cross-encoder scores the positives and hard negatives of queries, for training to learn from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from raytriever.cli.arguments import (
    Parser,
    add_settings,
    add_wait,
    check_given,
    command_line,
    given,
    lock_output,
    path_of,
)
from raytriever.data.config import DataConfig
from raytriever.mining.config import ScoreConfig
from raytriever.options import check_options
from raytriever.paths import OUTPUT, check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, score, print."""
    arguments = _parser().parse(words)
    config = dataclasses.replace(ScoreConfig(), **given(arguments, ScoreConfig))
    data = dataclasses.replace(DataConfig(), **given(arguments, DataConfig))
    training = dataclasses.replace(TrainingConfig(), **given(arguments, TrainingConfig))
    for settings in (config, data, training):
        check_options(settings)
    check_given(arguments, config, data, training)
    check_paths(data, config)
    output = Path(arguments.output)
    lock_output(arguments, output)

    from raytriever.mining.teacher.job import ScoringJob, run_scoring

    job = ScoringJob(data.dataset, arguments.split, config, training.precision, data.max_bad_rows)
    done = run_scoring(job, output, warn)
    show(f"{'':<12}{'pairs':>12}{'mean':>10}{'deviation':>12}")
    for name, scores in (("positives", done.positives), ("candidates", done.candidates)):
        show(f"{name:<12}{len(scores):>12,}{scores.mean():>10.3f}{scores.std():>12.3f}")
    show(
        f"\n{done.queries:,} queries; {done.above:.1%} of the candidates score above their query's lowest positive; "
        f"scores are logits (the model's activation: {done.activation})"
    )
    if done.scored:
        show(f"{done.scored:,} pairs scored in {done.seconds:,.1f} s, {done.scored / done.seconds:,.0f} a second")
    if done.quarantined:
        show(done.quarantined)
    table = ["--negatives-table", config.negatives] if config.negatives else []
    words = ["--dataset", data.dataset, *table, "--negatives-per-query", "7", "--loss", "kl", "--teacher", str(output)]
    show(f"\nGo on with:\n  {command_line('python', 'jobs/train.py', *words)}")


def _parser() -> Parser:
    parser = Parser(prog="score", description="Let a cross-encoder score the pairs that training learns from.")
    parser.add_argument(
        "--output", type=path_of(OUTPUT, "--output"), required=True, metavar="DIR", help="folder to write the scores to"
    )
    parser.add_argument(
        "--split", default="train", metavar="NAME", help="split whose queries are scored (default: train)"
    )
    add_wait(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    add_settings(parser, ScoreConfig, "teacher")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
