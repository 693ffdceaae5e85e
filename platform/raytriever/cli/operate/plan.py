"""`plan`: print what a corpus takes at each stage, and which stage exceeds a limit first."""

from __future__ import annotations

from raytriever.cli.arguments import Parser, add_settings, build_config
from raytriever.paths import check_paths
from raytriever.planning.config import PlanConfig, check_plan
from raytriever.terminal import show

COMMON = (
    "--documents",
    "--queries",
    "--words-per-document",
    "--model",
    "--gpus",
    "--nodes",
    "--cores-per-node",
    "--memory-per-node",
    "--disk-per-node",
    "--max-hours",
    "--price-per-gpu-hour",
    "--price-per-node-hour",
    "--price-per-tb-month",
    "--price-per-million-requests",
)


def main(words: list[str]) -> None:
    """Parse, compute, print."""
    config = build_config(_parser().parse(words), PlanConfig)
    check_paths(config)
    check_plan(config)

    from raytriever.planning.report import lines
    from raytriever.planning.workload import ModelSize, Workload, measurements, rates

    work = Workload(config, ModelSize.of(config), rates())
    for line in lines(work, measurements()):
        show(line)


def _parser() -> Parser:
    parser = Parser(
        "plan",
        "Compute bytes, hours, nodes, GPU hours, requests and money of each stage for a corpus of any size.",
        common=COMMON,
    )
    add_settings(parser, PlanConfig, "plan")
    return parser
