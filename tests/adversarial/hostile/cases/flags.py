"""Flags that are misspelt, out of range, empty, contradictory or of the wrong kind, at every stage."""

from __future__ import annotations

from hostile.case import Case, of_area

LETTERS = "--dataset letters --model model"
ANNOTATE = "annotate --dataset letters --llm x --endpoint http://127.0.0.1:9/v1"
MISLEADS = "so the metrics would mislead; give another split, or allow_split_overlap=True"


def flag(words: str, line: str, name: str = "") -> Case:
    """A command line that is refused for what it says."""
    shown = words.partition(" ")[2].replace(LETTERS, "").replace("--output out", "")
    return Case(name or f"the words {shown}", words, line)


CASES = of_area(
    "flags",  # out of range, unknown or contradictory values of each stage are in `tests/unit/cli`
    flag("prepare --outptu x", "--outptu: unknown flag; did you mean '--output'?"),
    flag("prepare", "missing: --output", name="no words at all"),
    flag("prepare --output", "--output: has no value", name="a flag without its value"),
    flag(f"prepare {LETTERS} --output ''", "the path is empty", name="an empty output"),
    flag("prepare --dataset '' --output out", "the path is empty", name="an empty data set"),
    flag(f"prepare {LETTERS} --output out --query-length 1", "query_length: 1 is out of range", name="a short query"),
    flag(f"prepare {LETTERS} --output out stray", "unexpected argument 'stray'"),
    flag(f"train {LETTERS} --batch-size -8", "batch_size"),
    flag(f"train {LETTERS} --learning-rate 1e999", "learning_rate"),
    flag(f"train {LETTERS} --dropout 1.5", "dropout"),
    flag(f"train {LETTERS} --keep 0", "keep"),
    flag(f"train {LETTERS} --matryoshka-dims 4096 --output out", "matryoshka_dims", name="a width above the model's"),
    flag(f"train {LETTERS} --loss kl --output out", "teacher", name="a loss that wants a teacher without one"),
    *[
        flag(
            f"train {LETTERS} {words} --output out",
            f"{one}_split: the split '{split}' is also that of {other}_split, {MISLEADS}",
        )
        for words, one, split, other in (
            ("--train-split test", "train", "test", "test"),
            ("--dev-split train", "train", "train", "dev"),
            ("--dev-split test", "dev", "test", "test"),
            ("--dev-split test --test-split train", "train", "train", "test"),
        )
    ],
    flag(f"train {LETTERS} --run-name ..", "run_name"),
    flag(f"tune {LETTERS} --trials 0", "trials"),
    flag(f"tune {LETTERS} --searcher bayes", "searcher"),
    flag(f"tune {LETTERS} --search-space nope", "search_space"),
    flag(f"tune {LETTERS} --metric nope", "metric"),
    flag("evaluate --datasets letters --model model --metrics ndcg@0 --output out", "ndcg@0"),
    flag("evaluate --datasets letters --model model --metrics '' --output out", "metrics"),
    flag("evaluate --datasets letters letters --model model --output out", "datasets", name="one data set twice"),
    flag(f"encode {LETTERS} --output out --actors 0", "actors"),
    flag(f"mine {LETTERS} --output out --range-min 9 --range-max 3", "range_max"),
    flag(
        "score --dataset letters --model model --negatives negatives --output out",
        "model: has no trained weights for classifier.bias",
        name="an encoder as cross-encoder",
    ),
    flag(f"index {LETTERS} --output out --index hsnw", "did you mean 'hnsw'?"),
    flag(f"index {LETTERS} --output out --index ivfpq --code-bytes 7", "code_bytes"),
    flag(f"index {LETTERS} --output out --index ivf --lists 100000", "lists"),
    flag(f"search '' {LETTERS}", "the query is empty", name="an empty query"),
    flag(f"search x {LETTERS} --top -99999999999999999999", "--top"),
    flag("export --model model --output out --formats onxn", "formats"),
    flag("export --model model --output out --licence 'not a licence'", "licence"),
    flag("export --model model --output out --push-to-hub 'a b c'", "push_to_hub"),
    flag("compare", "RUN", name="nothing to compare"),
    flag('compare "params.x = \'unclosed"', "no such database", name="a filter that is cut"),
    flag("study nope --output out", "'nope' is no file of a study"),
    flag("study nope.yaml --output out --spilt nope", "--spilt", name="a flag that no study has"),
    flag("annotate --dataset letters --output out", "endpoint: is missing", name="no service named"),
    flag("annotate --dataset letters --llm x --endpoint ftp://host/v1 --output out", "endpoint"),
    flag(f"{ANNOTATE} --timeout 0 --output out", "timeout"),
    flag(f"{ANNOTATE} --split ../x --output out", "--split"),
    flag(f"{ANNOTATE} --budget -1 --output out", "budget"),
    flag("trian", "did you mean 'train'?", name="an unknown stage"),
)
