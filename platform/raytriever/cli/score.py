"""`score`: score positives and hard negatives with a cross-encoder, the teacher of a later training."""

from __future__ import annotations

from raytriever.cli.arguments import (
    Parser,
    add_output,
    add_settings,
    build_config,
    check_effects,
    lock_output,
    quote_command,
)
from raytriever.data.config import DataConfig
from raytriever.mining.config import ScoreConfig
from raytriever.paths import check_paths
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig


def main(words: list[str]) -> None:
    """Parse, score, print."""
    arguments = _parser().parse(words)
    config = build_config(arguments, ScoreConfig)
    data = build_config(arguments, DataConfig)
    training = build_config(arguments, TrainingConfig)
    check_effects(arguments, config, data, training)
    check_paths(data, config)
    output = lock_output(arguments)

    from raytriever.mining.teacher import run_scoring

    result = run_scoring(config, data, output, warn, split=arguments.split, precision=training.precision)
    show(f"{'':<12}{'pairs':>12}{'mean':>10}{'deviation':>12}")
    for name, scores in (("positives", result.positives), ("candidates", result.candidates)):
        show(f"{name:<12}{len(scores):>12,}{scores.mean():>10.3f}{scores.std():>12.3f}")
    show(
        f"\n{result.queries:,} queries; {result.above:.1%} of the candidates score above the lowest positive of "
        f"their query; scores are logits (the model's activation: {result.activation})"
    )
    if result.scored:
        show(
            f"{result.scored:,} pairs scored in {result.seconds:,.1f} s, {result.scored / result.seconds:,.0f} a second"
        )
    if result.quarantined:
        show(result.quarantined)
    table = ["--negatives-table", config.negatives] if config.negatives else []
    words = ["--dataset", data.dataset, *table, "--negatives-per-query", "7", "--loss", "kl", "--teacher", str(output)]
    show(f"\nContinue with:\n  {quote_command('raytriever', 'train', *words)}")


def _parser() -> Parser:
    parser = Parser(
        prog="score", description="Score pairs of query and passage with a cross-encoder, as a teacher for training."
    )
    add_output(parser, "folder to write the scores to")
    parser.add_argument(
        "--split", default="train", metavar="NAME", help="split whose queries are scored (default: train)"
    )
    add_settings(parser, ScoreConfig, "teacher")
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision"])
    return parser
