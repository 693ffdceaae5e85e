"""Finished runs and results that were edited, damaged or are of something else."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import cut, document, fifo, folder, link, removed, replaced, write

COMPARE = "compare run results --output page.html"
CONTINUE = "train --dataset letters --model model --output run --max-steps 4 --batch-size 8 --precision fp32"
SEARCH = "search is --dataset letters --model run"
EXPORT = "export --model model --evaluation results --output out"
STEPS, RUN, CONFIG = "run/steps.jsonl", "run/run.json", "run/config.yaml"
RESULTS, RUN_RESULTS, PER_QUERY = (
    "results/results.json",
    "run/evaluation/results.json",
    "run/evaluation/per_query/letters.json",
)
CHECKPOINT = "run/checkpoints/step-4"


def broken(file: str, words: str, special: bool = True) -> list[Case]:
    """What can happen to any JSON file of a run; `special` where it may become something else than a file."""
    name, stage = file.replace("/", " of "), words.split()[0]
    cases = [
        Case(f"{stage} after {name} became empty", words, file, (write(file, b""),)),
        Case(f"{stage} after {name} was cut", words, file, (cut(file, 40),)),
        Case(f"{stage} after {name} became null", words, file, (write(file, b"null"),)),
        Case(f"{stage} after {name} became an array", words, file, (write(file, b"[1]"),)),
        Case(f"{stage} after {name} became no UTF-8", words, file, (write(file, b"\xff\xfe{}"),)),
        Case(f"{stage} after {name} was nested deeply", words, file, (write(file, b"[" * 100_000),)),
    ]
    if special:
        cases += [
            Case(f"{stage} after {name} became a folder", words, file.split("/")[0], (folder(file),)),
            Case(f"{stage} after {name} became a pipe", words, file.split("/")[0], (fifo(file),)),
        ]
    return cases


NOTHING = [
    Case("results of a run of nothing at comparing", COMPARE, RUN_RESULTS, (write(RUN_RESULTS, b"{}"),)),
    Case("results of nothing at comparing", COMPARE, RESULTS, (write(RESULTS, b"{}"),)),
    Case("results of nothing at export", EXPORT, RESULTS, (write(RESULTS, b"{}"),)),
    Case("a model's config of nothing", SEARCH, "run/model", (write("run/model/config.json", b"{}"),)),
]
CASES = of_area(
    "finished",
    *NOTHING,
    *broken(RUN_RESULTS, COMPARE),
    *broken(RESULTS, COMPARE),
    *broken(RESULTS, EXPORT),
    *broken(RUN_RESULTS, CONTINUE, special=False),
    *broken(RUN, CONTINUE, special=False),
    *broken("run/model/config.json", SEARCH),
    Case(
        "metrics of words",
        CONTINUE,
        "run/evaluation/results.json: is damaged or changed: 'models.after.letters.ndcg_at_10' is a text, expected ",
        (document(RUN_RESULTS, lambda c: c["models"]["after"]["letters"].update(ndcg_at_10="good")),),
    ),
    Case("steps that are cut short", CONTINUE, code=0, make=(cut(STEPS, -40),), leaves=("run*",)),
    Case(
        "steps with a line of garbage in their middle",
        COMPARE,
        make=(replaced(STEPS, '"step": 2,', '"step" 2,'),),
        code=0,
    ),
    Case(
        "steps of words",
        COMPARE,
        "run/steps.jsonl at byte ...: is damaged or changed: 'step' is a text, expected a whole number",
        (replaced(STEPS, '"step": 2,', '"step": "two",'),),
    ),
    Case("settings of a run that are garbage", COMPARE, "run/config.yaml: is not YAML", (write(CONFIG, "loss: {"),)),
    Case("settings of a run that are gone", COMPARE, make=(removed(CONFIG),), code=0),
    Case(
        "settings of a run that were edited",
        CONTINUE,
        "output run: holds a run with other settings",
        (replaced(CONFIG, "batch_size: 8", "batch_size: 16"),),
    ),
    Case(
        "queries of a run that are garbage",
        COMPARE,
        "run/evaluation/per_query/letters.json: is damaged or changed: it is nested more than 100 deep",
        (write(PER_QUERY, "[" * 1000),),
    ),
    Case(
        "a run that is not finished", COMPARE, "run: holds a run that is not finished", (removed("run/metrics.json"),)
    ),
    Case("a model of a run that is cut short", SEARCH, "incomplete", (cut("run/model/model.safetensors", -9),)),
    Case("a model of a run without manifest", SEARCH, "", (removed("run/model/manifest.json"),), code=0),
    Case(
        "a run with other settings",
        CONTINUE.replace("--batch-size 8", "--batch-size 16"),
        "holds a run with other settings",
    ),
    Case("a folder of data as run", "compare letters --output page.html", "letters: holds no run"),
    Case(
        "a run that links to itself",
        "compare circle --output page.html",
        "'circle' is neither a directory nor an id or filter of MLflow runs",
        (link("circle", "circle"),),
    ),
    Case(
        "a page within a file",
        "compare results --output letters/corpus.jsonl/page.html",
        "a part of the path is a file",
    ),
    Case("a page that is a folder", "compare results --output letters", "is a directory"),
    Case(
        "results evaluated with other settings",
        "evaluate --datasets letters --model model --output results --metrics map",
        "output results: holds another evaluation",
    ),
    Case(
        "results as training output",
        "train --dataset letters --model model --output results",
        "output results: is not empty and holds no run",
    ),
    Case("a run as prepared data", "encode --dataset run --model model --output out", "run: is in no known format"),
    Case("a checkpoint as model", f"search is --dataset letters --model {CHECKPOINT}", code=0),
)
