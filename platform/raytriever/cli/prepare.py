"""`prepare`: check a data set of any format, tokenise it and write it as shards."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import (
    Parser,
    add_output,
    add_settings,
    build_config,
    lock_output,
    quote_command,
)
from raytriever.data.config import DataConfig, SplitConfig
from raytriever.models.config import ModelConfig
from raytriever.paths import check_paths
from raytriever.terminal import show, warn

_PROMPTS = ("query_prompt", "passage_prompt", "query_prompt_name", "passage_prompt_name", "dataset_prompts")
_MODEL = ("model", "revision", *_PROMPTS, "query_length", "passage_length")


def main(words: list[str]) -> None:
    """Parse, prepare, print."""
    arguments = _parser().parse(words)
    model = build_config(arguments, ModelConfig)
    data = build_config(arguments, DataConfig)
    division = build_config(arguments, SplitConfig)
    check_paths(data, division, model)
    output = lock_output(arguments)

    from raytriever.cluster.ingest import run_preparation

    prepared = run_preparation(
        data.dataset, arguments.format, model, data.max_bad_rows, output, warn, arguments.columns, division
    )
    width = max(map(len, prepared.lines))
    show("\n".join(f"{name:<{width}}  {value}" for name, value in prepared.lines.items()))
    if prepared.quarantined:
        show(prepared.quarantined)
    flags = ("--dataset", prepared.path, "--model", model.model)
    command: tuple[str | Path, ...] = ("search", *flags, "a question")
    if "train" in prepared.splits:
        command = ("train", *flags)
    elif prepared.splits:
        split = () if "test" in prepared.splits else ("--split", prepared.splits[0])
        command = ("evaluate", "--datasets", prepared.path, *split, "--model", model.model, "--output", "evaluation")
    show(f"\nContinue with:\n  {quote_command('raytriever', *command)}")


def _parser() -> Parser:
    parser = Parser(prog="prepare", description="Check, tokenise and shard a data set, and print a summary of it.")
    add_output(parser, "folder to write the prepared data set to")
    parser.add_argument("--format", metavar="NAME", help="the data set's format (default: recognised from its files)")
    parser.add_argument(
        "--columns",
        default="",
        metavar="NAMES",
        help="columns of a CSV or TSV file, such as `query=Frage,passage=Antwort` (default: recognised by their names)",
    )
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, SplitConfig, "splits of one CSV, TSV or JSONL file")
    add_settings(parser, ModelConfig, "model", only=_MODEL)
    return parser
