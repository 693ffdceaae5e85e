"""Finished runs and results that were edited, torn or are of something else."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import cut, document, fifo, folder, link, removed, replaced, write

COMPARE = "compare run results --output page.html"
CONTINUE = "train --dataset letters --model model --output run --max-steps 4 --batch-size 8 --precision fp32"
SEARCH = "search is --dataset letters --model run"
EXPORT = "export --model model --evaluation results --output out"
METRICS, STEPS, RUN, CONFIG = "run/metrics.json", "run/steps.jsonl", "run/run.json", "run/config.yaml"
RESULTS, PER_QUERY = "results/results.json", "run/per_query/letters.json"
CHECKPOINT = "run/checkpoints/step-4"


def broken(file: str, words: str, fast: bool = False) -> list[Case]:
    """What can happen to any JSON file of a run."""
    name, stage = file.replace("/", " of "), words.split()[0]
    return [
        Case(f"{stage} after {name} became empty", words, "", (write(file, b""),), fast=fast),
        Case(f"{stage} after {name} was cut", words, "", (cut(file, 40),)),
        Case(f"{stage} after {name} became null", words, "", (write(file, b"null"),)),
        Case(f"{stage} after {name} became an array", words, "", (write(file, b"[1]"),)),
        Case(f"{stage} after {name} became an object of nothing", words, "", (write(file, b"{}"),)),
        Case(f"{stage} after {name} became no UTF-8", words, "", (write(file, b"\xff\xfe{}"),)),
        Case(f"{stage} after {name} was nested deeply", words, "", (write(file, b"[" * 100_000),)),
        Case(f"{stage} after {name} became a folder", words, "", (folder(file),)),
        Case(f"{stage} after {name} became a pipe", words, "", (fifo(file),)),
    ]


CASES = of_area(
    "finished",
    *broken(METRICS, COMPARE, fast=True),
    *broken(RESULTS, COMPARE),
    *broken(RESULTS, EXPORT),
    *broken(METRICS, CONTINUE),
    *broken(RUN, CONTINUE),
    *broken("run/model/config.json", SEARCH),
    Case("metrics of words", COMPARE, "", (document(METRICS, lambda c: c.update(after={"ndcg_at_10": "good"})),)),
    Case(
        "metrics of infinity",
        COMPARE,
        "",
        (write(METRICS, '{"dataset": "x", "split": "test", "after": {"ndcg_at_10": 1e999}}'),),
    ),
    Case("metrics of another data set", COMPARE, "", (document(METRICS, lambda c: c.update(dataset=7)),)),
    Case("steps that are torn", CONTINUE, code=0, make=(cut(STEPS, -40),), leaves=("run*",)),
    Case("steps with a line of garbage in their middle", COMPARE, "", (replaced(STEPS, '"step": 2,', '"step" 2,'),)),
    Case("steps of words", COMPARE, "", (replaced(STEPS, '"step": 2,', '"step": "two",'),)),
    Case("settings of a run that are garbage", COMPARE, "", (write(CONFIG, "loss: {"),)),
    Case("settings of a run that are gone", COMPARE, "", (removed(CONFIG),)),
    Case("settings of a run that were edited", CONTINUE, "", (replaced(CONFIG, "batch_size: 8", "batch_size: 16"),)),
    Case("queries of a run that are garbage", COMPARE, "", (write(PER_QUERY, "[" * 1000),)),
    Case("a run that is not finished", COMPARE, "", (removed(METRICS),)),
    Case("a model of a run that is torn", SEARCH, "torn", (cut("run/model/model.safetensors", -9),)),
    Case("a model of a run without manifest", SEARCH, "", (removed("run/model/manifest.json"),), code=0),
    Case(
        "a run with other settings",
        CONTINUE.replace("--batch-size 8", "--batch-size 16"),
        "holds a run with other settings",
    ),
    Case("a folder of data as run", "compare letters --output page.html", ""),
    Case("a run that links to itself", "compare circle --output page.html", "", (link("circle", "circle"),)),
    Case(
        "a page within a file",
        "compare results --output letters/corpus.jsonl/page.html",
        "a part of the path is a file",
    ),
    Case("a page that is a folder", "compare results --output letters", "is a directory"),
    Case(
        "results evaluated with other settings",
        "evaluate --datasets letters --model model --output results --metrics map",
        "",
        fast=True,
    ),
    Case("results as training output", "train --dataset letters --model model --output results", "", fast=True),
    Case("a run as prepared data", "encode --dataset run --model model --output out", ""),
    Case("a checkpoint as model", f"search is --dataset letters --model {CHECKPOINT}", ""),
)
