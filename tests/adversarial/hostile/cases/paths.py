"""Paths that are too long, lead in circles, may not be entered, or are no files: devices, pipes and sockets."""

from __future__ import annotations

from hostile.case import Case, Maker, of_area
from hostile.making import fifo, folder, link, mode, removed, rows, socket_file, write

LONG = "n" * 300
DEEP = "/".join(["deep" * 50] * 30)
LETTERS = "--dataset letters --model model"
TOO_LONG = "name is too long"
CIRCLE = "form a loop"
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
    "annotate": "annotate --dataset letters --llm x --base-url http://127.0.0.1:9/v1 --output PATH",
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
    "annotate": "annotate --dataset PATH --llm x --base-url http://127.0.0.1:9/v1 --output out",
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
    "the settings": "train --config PATH",
    "the negatives": f"train {LETTERS} --negatives-table PATH --negatives-per-query 1 --output out",
    "the embeddings": "index --dataset letters --model model --embeddings PATH --output out",
    "the teacher": f"train {LETTERS} --loss kl --negatives-per-query 1 --teacher PATH --output out",
    "the evaluation": "export --model model --evaluation PATH --output out",
    "the answers": "annotate --dataset letters --llm x --base-url http://127.0.0.1:9/v1 --answers PATH --output out",
    "the prompts": "annotate --dataset letters --llm x --base-url http://127.0.0.1:9/v1 --prompts PATH --output out",
    "the run": "compare PATH --output out.html",
    "the study": "study PATH.yaml --output out",
    "the search space": "tune --dataset letters --model model --search-space ./PATH --output out",
    "the TREC run": "score --dataset letters --model cross --run PATH --output out",
}


def over(what: str, commands: dict[str, str], path: str, line: str, *make: Maker) -> list[Case]:
    """One path for every command of a table."""
    return [
        Case(f"{what} for {name}", words.replace("PATH", path), line, tuple(make)) for name, words in commands.items()
    ]


def prepared(name: str, line: str, *make: Maker, words: str = "--output out") -> Case:
    """Preparation of a data set or for an output that cannot be used."""
    return Case(name, f"prepare {LETTERS} {words}", line, make)


def forbidden(name: str, words: str, path: str, bits: int = 0, *make: Maker) -> Case:
    """A file or folder that this user may not use."""
    return Case(name, words, "permission denied", (*make, mode(path, bits)), unprivileged=True)


CORPUS, TEST = "letters/corpus.jsonl", "letters/qrels/test.tsv"
PREPARE, EXPORT = f"prepare {LETTERS} --output out", "export --model model --output out"
SHUT = {
    "an output": f"prepare {LETTERS} --output shut/out",
    "a run": f"train {LETTERS} --max-steps 2 --output shut/out",
    "results": "evaluate --datasets letters --model model --output shut/out",
    "a page": "compare results --output shut/page.html",
}
CASES = of_area(
    "paths",
    *over("an output of 300 letters", WRITES, LONG, TOO_LONG),
    *over("an output that links to itself", WRITES, "circle/out", "circle", link("circle", "circle")),
    *over("an output within a file", WRITES, f"{CORPUS}/out", "a part of the path is a file"),
    *over("an output on a file system of the kernel", WRITES, "/proc/nowhere/out", "/proc/nowhere"),
    *over("data of 300 letters", DATA, LONG, TOO_LONG),
    *over("data that link to themselves", DATA, "circle", CIRCLE, link("circle", "circle")),
    *over("data that are a pipe", DATA, "pipe.jsonl", PIPE, fifo("pipe.jsonl")),
    *over("data that are no folder", DATA, "nowhere/at/all", "nowhere/at/all"),
    *over("a model of 300 letters", MODEL, LONG, TOO_LONG),
    *over("a model that links to itself", MODEL, "./circle", CIRCLE, link("circle", "circle")),
    *over("300 letters", OTHERS, LONG, TOO_LONG),
    *over("a link to itself", OTHERS, "circle", "circle", link("circle", "circle")),
    *over("a pipe", OTHERS, "pipe", "pipe", fifo("pipe")),
    *[
        Case(f"data that are {what}", f"prepare --dataset {path} --model model --output out", line, make)
        for what, path, line, make in (
            ("a path of 6000 letters", DEEP, TOO_LONG, ()),
            ("a socket", "s.jsonl", PIPE, (socket_file("s.jsonl"),)),
            ("the device of nothing", "/dev/null", PIPE, ()),
        )
    ],
    Case("data that are a device", "prepare --dataset /dev/zero --model model --output out", PIPE),
    prepared("an output that is a device", "/dev/null: a part of the path is a file", words="--output /dev/null"),
    Case("a page that is a pipe", "compare results --output pipe", PIPE, (fifo("pipe"),)),
    prepared("a corpus that is a pipe", PIPE, fifo(CORPUS)),
    prepared("a corpus that is a socket", PIPE, socket_file(CORPUS)),
    prepared("a corpus that links to itself", CIRCLE, link(CORPUS, "corpus.jsonl")),
    prepared("a corpus that links to nothing", "no such file or folder", link(CORPUS, "gone")),
    prepared("a corpus that links to a device", PIPE, link(CORPUS, "/dev/zero")),
    prepared("judgements that are a pipe", PIPE, fifo(TEST)),
    Case(
        "a folder that links to the one above",
        "prepare --dataset set --model model --output out",
        CIRCLE,
        (rows("set/train.jsonl", {"anchor": "a", "positive": "b"}), link("set/again", "..")),
    ),
    forbidden("a corpus that may not be read", PREPARE, CORPUS),
    forbidden("data that may not be entered", PREPARE, "letters"),
    forbidden("a folder within that may not be entered", PREPARE, "letters/qrels"),
    forbidden("a model that may not be read", EXPORT, "model/model.safetensors"),
    forbidden("a model that may not be entered", EXPORT, "model"),
    forbidden("a run that may not be read", "compare results --output page.html", "results/results.json"),
    forbidden("settings that may not be read", "train --config mine.yaml", "mine.yaml", 0, write("mine.yaml", "a: b")),
    *[
        forbidden(f"{what} that may not be written", words, "shut", 0o555, folder("shut"))
        for what, words in SHUT.items()
    ],
    prepared("an output that exists already", "already exists", words="--output letters"),
    Case("a folder of other things as output", f"train {LETTERS} --output letters", "holds no run"),
    Case("no output with the home's sign", "export --model '~/no such model' --output out", "no such directory"),
    Case(
        "a model removed with its folder",
        "search x --dataset letters --model model",
        "model: the hub cannot be reached and the model is not in its local cache",
        (removed("model"),),
    ),
)
