"""Flags that are misspelt, out of range, empty, contradictory or of the wrong kind, at every stage."""

from __future__ import annotations

from hostile.case import Case, of_area

LETTERS = "--dataset letters --model model"
ANNOTATE = "annotate --dataset letters --llm x --base-url http://127.0.0.1:9/v1"


def flag(words: str, line: str, name: str = "") -> Case:
    """A command line that is refused for what it says."""
    shown = words.partition(" ")[2].replace(LETTERS, "").replace("--output out", "")
    return Case(name or f"the words {shown}", words, line)


CASES = of_area(
    "flags",  # out of range, unknown or contradictory values of each stage are in `tests/unit/cli`
    flag(f"train {LETTERS} --dropout 1.5", "dropout"),
    flag(f"train {LETTERS} --keep 0", "keep"),
    flag(f"tune {LETTERS} --trials 0", "trials"),
    flag(f"tune {LETTERS} --searcher bayes", "searcher"),
    flag(f"tune {LETTERS} --search-space nope", "search_space"),
    flag(f"tune {LETTERS} --metric nope", "metric"),
    flag("evaluate --datasets letters --model model --metrics '' --output out", "metrics"),
    flag(f"encode {LETTERS} --output out --actors 0", "actors"),
    flag(f"index {LETTERS} --output out --index ivfpq --code-bytes 7", "code_bytes"),
    flag(f"index {LETTERS} --output out --index ivf --lists 100000", "lists"),
    flag("export --model model --output out --formats onxn", "formats"),
    flag('compare "params.x = \'unclosed"', "no such database", name="a filter that is cut"),
    flag(f"{ANNOTATE} --timeout 0 --output out", "timeout"),
    flag(f"{ANNOTATE} --budget -1 --output out", "budget"),
)
