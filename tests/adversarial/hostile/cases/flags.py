"""Flags that are misspelt, out of range, empty, contradictory or of the wrong kind, at every stage."""

from __future__ import annotations

from hostile.case import Case, of_area

LETTERS = "--dataset letters --model model"
MISLEADS = "so the metrics would mislead; give another split, or --allow-split-overlap"


def flag(words: str, line: str, fast: bool = False, name: str = "") -> Case:
    """A command line that is refused for what it says."""
    shown = words.partition(" ")[2].replace(LETTERS, "").replace("--output out", "")
    return Case(name or f"the words {shown}", words, line, fast=fast)


CASES = of_area(
    "flags",
    flag("prepare --outptu x", "--outptu: unknown flag; did you mean '--output'?", fast=True),
    flag("prepare", "missing: --output", fast=True, name="no words at all"),
    flag("prepare --output", "--output: has no value", fast=True, name="a flag without its value"),
    flag(f"prepare {LETTERS} --output ''", "the path is empty", fast=True, name="an empty output"),
    flag("prepare --dataset '' --output out", "the path is empty", fast=True, name="an empty data set"),
    flag(
        "prepare --model '' --dataset letters --output out",
        "the path is empty",
        name="an empty model",
    ),
    flag(f"prepare {LETTERS} --output out --max-bad-rows nan", "--max-bad-rows"),
    flag(
        f"prepare {LETTERS} --output out --query-length 1",
        "--query-length: 1 is out of range",
        name="a length that holds no text",
    ),
    flag(f"prepare {LETTERS} --output out stray", "unexpected argument 'stray'"),
    flag(f"train {LETTERS} --batch-size -8", "--batch-size", fast=True),
    flag(f"train {LETTERS} --learning-rate 1e999", "--learning-rate"),
    flag(
        f"train {LETTERS} --matryoshka-dims 4096 --output out",
        "--matryoshka-dims",
        name="a nested width above the model's",
    ),
    flag(
        f"train {LETTERS} --dataset-weights 1,2 --output out",
        "--dataset-weights",
        name="weights of data sets that are not given",
    ),
    flag(
        f"train {LETTERS} --negatives-table negatives --output out",
        "--negatives-table",
        name="a table of negatives that nothing draws from",
    ),
    flag(f"train {LETTERS} --loss kl --output out", "--teacher", name="a loss that wants a teacher without one"),
    flag(f"train {LETTERS} --truncate-dim 4096 --output out", "--truncate-dim"),
    flag(f"train {LETTERS} --train-split nope --output out", "no split 'nope'"),
    flag(
        f"train {LETTERS} --train-split test --output out",
        f"--train-split: the split 'test' is also that of --test-split, {MISLEADS}",
        fast=True,
        name="the test split to train on",
    ),
    flag(
        f"train {LETTERS} --dev-split train --output out",
        f"--train-split: the split 'train' is also that of --dev-split, {MISLEADS}",
        name="the training split as dev split",
    ),
    flag(
        f"train {LETTERS} --dev-split test --output out",
        f"--dev-split: the split 'test' is also that of --test-split, {MISLEADS}",
        name="one split as dev and test split",
    ),
    flag(
        f"train {LETTERS} --dev-split test --test-split train --output out",
        f"--train-split: the split 'train' is also that of --test-split, {MISLEADS}",
        name="the training split as test split",
    ),
    flag(f"train {LETTERS} --run-name ''", "--run-name", name="a run name of nothing"),
    flag(f"train {LETTERS} --wandb on", "--wandb"),
    flag(f"train {LETTERS} --lr 1", "--learning-rate"),
    flag(f"tune {LETTERS} --trials 0", "--trials", fast=True),
    flag(f"tune {LETTERS} --search-space nope", "--search-space"),
    flag(f"tune {LETTERS} --asha-factor 1", "--asha-factor"),
    flag("evaluate --datasets letters --model model --metrics ndgc@10 --output out", "ndcg"),
    flag("evaluate --datasets letters --model model --metrics '' --output out", "--metrics", fast=True),
    flag("evaluate --datasets letters --model model --calibrate accuracy=0.5 --output out", "--calibrate"),
    flag("evaluate --datasets letters --model model model --output out", "--model", name="one model twice"),
    flag(
        "evaluate --datasets letters letters --model model --output out",
        "--datasets",
        fast=True,
        name="one data set twice",
    ),
    flag(f"encode {LETTERS} --output out --actors 0", "--actors", fast=True),
    flag(f"mine {LETTERS} --output out --ranks 9:3", "--range-max", fast=True),
    flag(
        "score --dataset letters --model cross --output out",
        "--negatives: letters has no hard negatives",
        fast=True,
        name="nothing to score",
    ),
    flag(
        "score --dataset letters --model cross --negatives negatives --run r --output out",
        "r: no such file",
        name="two things to score",
    ),
    flag(
        "score --dataset letters --model model --negatives negatives --output out",
        "model: has no trained weights for classifier.bias",
        name="an encoder as cross-encoder",
    ),
    flag(f"index {LETTERS} --output out --index hsnw", "did you mean 'hnsw'?", fast=True),
    flag(f"index {LETTERS} --output out --index ivfpq --code-bytes 7", "--code-bytes"),
    flag(f"index {LETTERS} --output out --index ivf --lists 100000", "--lists"),
    flag(f"search '' {LETTERS}", "the query is empty", fast=True, name="an empty query"),
    flag(f"search x {LETTERS} --top -99999999999999999999", "--top"),
    flag(f"search x y {LETTERS}", "unexpected argument 'y'"),
    flag("export --model model --output out --formats onxn", "--formats", fast=True),
    flag("export --model model --output out --formats ''", "--formats"),
    flag("export --model model --output out --licence 'not a licence'", "--licence"),
    flag("export --model model --output out --push-to-hub 'a b c'", "--push-to-hub"),
    flag("compare", "RUN", fast=True, name="nothing to compare"),
    flag(
        'compare "params.x = \'unclosed"',
        "no such database",
        name="a filter that is cut",
    ),
    flag("study nope --output out", "unknown study 'nope'", fast=True),
    flag("study ood --output out --spilt nope", "", name="a flag that no study has"),
    flag("annotate --dataset letters --output out", "--endpoint: is missing", fast=True, name="no service named"),
    flag("annotate --dataset letters --llm x --endpoint nowhere --output out", "--endpoint"),
    flag("annotate --dataset letters --llm x --endpoint ftp://host/v1 --output out", "--endpoint"),
    flag(
        "annotate --dataset letters --llm x --endpoint http://127.0.0.1:9/v1 --candidates '' --output out",
        "--candidates",
    ),
    flag("annotate --dataset letters --llm x --endpoint http://127.0.0.1:9/v1 --split ../x --output out", "--split"),
    flag("launch --ray-port 0", "0 is not a port", fast=True),
    flag("launch --host 0.0.0.0", "--auth", fast=True),
    flag("launch --host 'not a host'", "--host: 'not a host' is no address of this machine"),
    flag("submit", "STAGE", fast=True, name="no stage to submit"),
    flag("submit train", "holds no jobs/", name="a folder without jobs"),
    flag("submit --working-dir nowhere train", "nowhere", fast=True),
    flag("trian", "did you mean 'train'?", fast=True, name="an unknown stage"),
)
