"""Paths that are too long, lead in circles, may not be entered, or are no files: devices, pipes and sockets."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import fifo, folder, link, mode, removed, rows, socket_file, write

LONG = "n" * 300
DEEP = "/".join(["deep" * 50] * 30)
LETTERS = "--dataset letters --model model"
TOO_LONG = "name is too long"
CIRCLE = "in a circle"
PIPE = "is a pipe, a socket or a device"
# How each stage writes, and reads data and models: the words around the path.
WRITES = {
    "prepare": f"prepare {LETTERS} --output PATH",
    "train": f"train {LETTERS} --max-steps 2 --output PATH",
    "tune": f"tune {LETTERS} --output PATH",
    "evaluate": "evaluate --datasets letters --model model --output PATH",
    "encode": f"encode {LETTERS} --output PATH",
    "mine": "mine --dataset letters --method bm25 --output PATH",
    "score": "score --dataset letters --model cross --negatives negatives --output PATH",
    "index": f"index {LETTERS} --output PATH",
    "export": "export --model model --output PATH",
    "compare": "compare results --output PATH",
    "study": "study mw-in-domain --output PATH --data-root letters",
    "annotate": "annotate --dataset letters --llm x --endpoint http://127.0.0.1:9/v1 --output PATH",
    "launch": "launch --ray-port 46379 --dashboard-port 48265 --mlflow-port 45000 --database PATH",
}
DATA = {
    "prepare": "prepare --dataset PATH --model model --output out",
    "train": "train --dataset PATH --model model --output out",
    "tune": "tune --dataset PATH --model model --output out",
    "evaluate": "evaluate --datasets PATH --model model --output out",
    "encode": "encode --dataset PATH --model model --output out",
    "mine": "mine --dataset PATH --method bm25 --output out",
    "score": "score --dataset PATH --model cross --negatives negatives --output out",
    "index": "index --dataset PATH --model model --output out",
    "search": "search x --dataset PATH --model model",
    "annotate": "annotate --dataset PATH --llm x --endpoint http://127.0.0.1:9/v1 --output out",
}
MODEL = {
    "prepare": "prepare --dataset letters --model PATH --output out",
    "train": "train --dataset letters --model PATH --output out",
    "evaluate": "evaluate --datasets letters --model PATH --output out",
    "encode": "encode --dataset letters --model PATH --output out",
    "score": "score --dataset letters --model PATH --negatives negatives --output out",
    "search": "search x --dataset letters --model PATH",
    "export": "export --model PATH --output out",
}
OTHERS = {
    "the working folder": "submit --working-dir PATH train",
    "the settings": "train --config PATH",
    "the negatives": f"train {LETTERS} --negatives-table PATH --negatives-per-query 1 --output out",
    "the embeddings": "index --dataset letters --model model --embeddings PATH --output out",
    "the teacher": f"train {LETTERS} --loss kl --negatives-per-query 1 --teacher PATH --output out",
    "the evaluation": "export --model model --evaluation PATH --output out",
    "the answers": "annotate --dataset letters --llm x --endpoint http://127.0.0.1:9/v1 --answers PATH --output out",
    "the prompts": "annotate --dataset letters --llm x --endpoint http://127.0.0.1:9/v1 --prompts PATH --output out",
    "the run": "compare PATH --output out.html",
    "the data packs": "study mw-in-domain --output out --data-root PATH",
    "the search space": "tune --dataset letters --model model --search-space ./PATH --output out",
    "the TREC run": "score --dataset letters --model cross --run PATH --output out",
}
FAST = {"prepare", "train", "search", "export"}


def over(what: str, commands: dict[str, str], path: str, line: str, *make: object, fast: bool = False) -> list[Case]:
    """One path for every command of a table."""
    return [
        Case(f"{what} for {name}", words.replace("PATH", path), line, tuple(make), fast=fast and name in FAST)
        for name, words in commands.items()
    ]


CASES = of_area(
    "paths",
    *over("an output of 300 letters", WRITES, LONG, TOO_LONG, fast=True),
    *over("an output that links to itself", WRITES, "circle/out", "circle", link("circle", "circle")),
    *over("an output within a file", WRITES, "letters/corpus.jsonl/out", "a part of the path is a file"),
    *over("an output on a file system of the kernel", WRITES, "/proc/nowhere/out", "/proc/nowhere"),
    *over("data of 300 letters", DATA, LONG, TOO_LONG, fast=True),
    *over("data that link to themselves", DATA, "circle", CIRCLE, link("circle", "circle")),
    *over("data that are a pipe", DATA, "pipe.jsonl", PIPE, fifo("pipe.jsonl")),
    *over("data that are no folder", DATA, "nowhere/at/all", "nowhere/at/all", fast=True),
    *over("a model of 300 letters", MODEL, LONG, TOO_LONG),
    *over("a model that links to itself", MODEL, "./circle", CIRCLE, link("circle", "circle")),
    *over("300 letters", OTHERS, LONG, TOO_LONG),
    *over("a link to itself", OTHERS, "circle", "circle", link("circle", "circle")),
    *over("a pipe", OTHERS, "pipe", "pipe", fifo("pipe")),
    Case("a path of 6000 letters", f"prepare --dataset {DEEP} --model model --output out", TOO_LONG),
    Case("a path with a NUL of the shell", "prepare --dataset 'a%00b' --model model --output out", "a%00b"),
    Case(
        "data that are a socket",
        "prepare --dataset s.jsonl --model model --output out",
        PIPE,
        (socket_file("s.jsonl"),),
    ),
    Case(
        "data that are a device",
        "prepare --dataset /dev/zero --model model --output out",
        PIPE,
        fast=True,
    ),
    Case(
        "data that are the device of nothing",
        "prepare --dataset /dev/null --model model --output out",
        PIPE,
    ),
    Case(
        "an output that is a device", f"prepare {LETTERS} --output /dev/null", "/dev/null: a part of the path is a file"
    ),
    Case("a page that is a pipe", "compare results --output pipe", PIPE, (fifo("pipe"),)),
    Case(
        "a corpus that is a pipe",
        f"prepare {LETTERS} --output out",
        PIPE,
        (fifo("letters/corpus.jsonl"),),
        fast=True,
    ),
    Case(
        "a corpus that is a socket",
        f"prepare {LETTERS} --output out",
        PIPE,
        (socket_file("letters/corpus.jsonl"),),
    ),
    Case(
        "a corpus that links to itself",
        f"prepare {LETTERS} --output out",
        CIRCLE,
        (link("letters/corpus.jsonl", "corpus.jsonl"),),
    ),
    Case(
        "a corpus that links to nothing",
        f"prepare {LETTERS} --output out",
        "no such file or folder",
        (link("letters/corpus.jsonl", "gone"),),
    ),
    Case(
        "a corpus that links to a device",
        f"prepare {LETTERS} --output out",
        PIPE,
        (link("letters/corpus.jsonl", "/dev/zero"),),
    ),
    Case(
        "judgements that are a pipe",
        f"prepare {LETTERS} --output out",
        PIPE,
        (fifo("letters/qrels/test.tsv"),),
    ),
    Case(
        "a folder that links to the one above",
        "prepare --dataset set --model model --output out",
        CIRCLE,
        (rows("set/train.jsonl", {"anchor": "a", "positive": "b"}), link("set/again", "..")),
    ),
    Case(
        "a corpus that may not be read",
        f"prepare {LETTERS} --output out",
        "permission denied",
        (mode("letters/corpus.jsonl", 0),),
        unprivileged=True,
    ),
    Case(
        "data that may not be entered",
        f"prepare {LETTERS} --output out",
        "permission denied",
        (mode("letters", 0),),
        unprivileged=True,
    ),
    Case(
        "a folder within that may not be entered",
        f"prepare {LETTERS} --output out",
        "permission denied",
        (mode("letters/qrels", 0),),
        unprivileged=True,
    ),
    Case(
        "a model that may not be read",
        "export --model model --output out",
        "model/model.safetensors: permission denied; make it readable for this user",
        (mode("model/model.safetensors", 0),),
        unprivileged=True,
    ),
    Case(
        "a model that may not be entered",
        "export --model model --output out",
        "permission denied",
        (mode("model", 0),),
        unprivileged=True,
    ),
    Case(
        "an output that may not be written",
        f"prepare {LETTERS} --output shut/out",
        "permission denied",
        (folder("shut"), mode("shut", 0o555)),
        unprivileged=True,
    ),
    Case(
        "a run that may not be written",
        f"train {LETTERS} --max-steps 2 --output shut/out",
        "permission denied",
        (folder("shut"), mode("shut", 0o555)),
        unprivileged=True,
    ),
    Case(
        "results that may not be written",
        "evaluate --datasets letters --model model --output shut/out",
        "permission denied",
        (folder("shut"), mode("shut", 0o555)),
        unprivileged=True,
    ),
    Case(
        "a page that may not be written",
        "compare results --output shut/page.html",
        "permission denied",
        (folder("shut"), mode("shut", 0o555)),
        unprivileged=True,
    ),
    Case(
        "a run that may not be read",
        "compare results --output page.html",
        "permission denied",
        (mode("results/results.json", 0),),
        unprivileged=True,
    ),
    Case(
        "settings that may not be read",
        "train --config mine.yaml",
        "mine.yaml: permission denied; make it readable for this user",
        (write("mine.yaml", "loss: {loss: mw}"), mode("mine.yaml", 0)),
        unprivileged=True,
    ),
    Case("an output that is there already", f"prepare {LETTERS} --output letters", "is there already"),
    Case("a folder of other things as output", f"train {LETTERS} --output letters", "holds no run"),
    Case("no output with the home's sign", "export --model '~/no such model' --output out", "no such directory"),
    Case(
        "a model removed with its folder",
        "search x --dataset letters --model model",
        "model: the hub cannot be reached and the model is not in its local cache",
        (removed("model"),),
        fast=True,
    ),
)
