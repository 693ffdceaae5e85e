"""Variables of the environment that are wrong, dead or strange, and working folders that are gone."""

from __future__ import annotations

from hostile.case import Case, Maker, of_area
from hostile.making import folder, link, mode, write

LETTERS = "--dataset letters --model model"
PREPARE = f"prepare {LETTERS} --output out"
ENCODE = f"encode {LETTERS} --output out"
TRAIN = f"train {LETTERS} --output out --max-steps 2 --batch-size 8"
EVALUATE = "evaluate --datasets letters --model model --output out"


SEARCH = f"search is {LETTERS}"
LINES = {
    "m\u00fcller/corpus.jsonl": '{"_id": "d", "title": "\u6f22\u5b57", "text": "x y"}',
    "m\u00fcller/queries.jsonl": '{"_id": "q", "text": "x"}',
    "m\u00fcller/qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\td\t1",
}
OTHER_SCRIPTS = tuple(write(name, f"{text}\n") for name, text in LINES.items())
SHUT = (folder("shut"), mode("shut", 0o555))


def tracking(name: str, uri: str, line: str = "", stage: str = TRAIN) -> Case:
    """An address of MLflow that does not work."""
    return Case(name, stage, line, env={"MLFLOW_TRACKING_URI": uri})


def cache(name: str, path: str, line: str, *make: Maker) -> Case:
    """A cache that cannot be used."""
    env = {"RAYTRIEVER_CACHE": f"{{here}}/{path}"}
    return Case(name, ENCODE, line, make, env=env)


def accepted(name: str, **env: str) -> Case:
    """An odd variable that stops nothing."""
    return Case(name, PREPARE, env=env, code=0)


CASES = of_area(
    "environment",
    tracking("a tracking server that does not answer", "http://127.0.0.1:9", "MLflow does not answer"),
    tracking("a tracking server of no known name", "http://no-such-host.invalid", "MLflow does not answer"),
    tracking("a tracking address of no known scheme", "carrier-pigeon://coop", "unknown scheme"),
    tracking("a tracking address of a port too high", "http://127.0.0.1:99999", "is not a valid address"),
    tracking("a tracking database that is a folder", "sqlite:///{here}/letters", "is a folder"),
    tracking("a tracking database of garbage", "sqlite:///{here}/letters/corpus.jsonl", "is not an SQLite database"),
    *[
        tracking(f"a tracking server at {words.split()[0]}", "http://127.0.0.1:9", "MLflow does not answer", words)
        for words in (EVALUATE, f"tune {LETTERS} --output out", "compare \"params.loss.loss = 'mw'\" --output p.html")
    ],
    *[
        Case(f"a cluster at {address}", TRAIN, "RAY_ADDRESS", env={"RAY_ADDRESS": address}, seconds=90)
        for address in ("127.0.0.1:9", "not an address", "ray://127.0.0.1:9")
    ],
    cache("a cache that is a file", "letters/corpus.jsonl", "a part of the path is a file"),
    cache("a cache within a file", "letters/corpus.jsonl/cache", "a part of the path is a file"),
    cache("a cache of 300 letters", "n" * 300, "the name is too long"),
    cache("a cache that links to itself", "circle", "symbolic links form a loop", link("circle", "circle")),
    Case("a home that does not exist", SEARCH, env={"HOME": "/nowhere", "RAYTRIEVER_CACHE": "{here}/cache"}, code=0),
    Case(
        "a home that may not be written",
        SEARCH,
        "permission denied",
        SHUT,
        env={"HOME": "{here}/shut", "RAYTRIEVER_CACHE": ""},
        unprivileged=True,
    ),
    accepted("a folder for temporary files that does not exist", TMPDIR="{here}/nowhere"),
    accepted("a time zone that does not exist", TZ="Mars/Olympus"),
    accepted("a language that does not exist", LANG="xx_YY.UTF-9", LC_ALL="xx_YY.UTF-9"),
    accepted("threads of nonsense", OMP_NUM_THREADS="many"),
    Case(
        "data of other scripts under a language without letters",
        "search x --dataset m\u00fcller --model model",
        out="\u6f22\u5b57",
        make=OTHER_SCRIPTS,
        env={"LANG": "C", "LC_ALL": "C"},
        code=0,
    ),
    Case(
        "output in ASCII",
        "search x --dataset m\u00fcller --model model",
        out="\\u6f22\\u5b57",
        make=OTHER_SCRIPTS,
        env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        shell='"$@" 2>&2',
        code=0,
    ),
    Case(
        "a working folder that was removed",
        "prepare --dataset x --output out",
        "the working directory was removed",
        shell='mkdir gone && cd gone && rmdir ../gone && "$@"',
    ),
    Case(
        "runs kept in a file",
        f"train {LETTERS} --max-steps 2",
        "a part of the path is a file",
        env={"RAYTRIEVER_RUNS": "{here}/letters/corpus.jsonl"},
    ),
    *[
        Case(
            f"a service's key {name}",
            "annotate --dataset letters --llm x --base-url http://127.0.0.1:9/v1 --output out",
            "key_variable: names a variable whose value is not a valid key",
            env={"OPENAI_API_KEY": key},
        )
        for name, key in {"of two lines": "one\ntwo", "with letters of no header": "schl\u00fcssel\u2603"}.items()
    ],
)
