"""`quickstart`: `train --loss mw --run-name quickstart`, with the few flags that a first run needs."""

from __future__ import annotations

from raytriever.cli import train
from raytriever.cli.arguments import Parser, add_output

WORDS = ("--loss", "mw", "--run-name", "quickstart")


def main(words: list[str]) -> None:
    """Parse, train, print."""
    _parser().parse(words)
    train.main([*WORDS, *words])


def _parser() -> Parser:
    purpose = "Train on the docstrings of Python with the MW loss, and measure. `raytriever train` has all settings."
    parser = Parser("quickstart", purpose)
    add_output(parser, "run directory (default: runs/quickstart)", required=False)
    parser.add_argument("--fresh", action="store_true", help="remove an earlier run in --output")
    return parser
