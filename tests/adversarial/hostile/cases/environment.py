"""Variables of the environment that are wrong, dead or strange, and working folders that are gone."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import fifo, folder, link, mode, rows, write

LETTERS = "--dataset letters --model model"
PREPARE = f"prepare {LETTERS} --output out"
ENCODE = f"encode {LETTERS} --output out"
TRAIN = f"train {LETTERS} --output out --max-steps 2 --batch-size 8"
EVALUATE = "evaluate --datasets letters --model model --output out"


def tracking(name: str, uri: str, line: str = "", stage: str = TRAIN, fast: bool = False) -> Case:
    """An address of MLflow that does not work."""
    return Case(name, stage, line, env={"MLFLOW_TRACKING_URI": uri}, fast=fast)


CASES = of_area(
    "environment",
    tracking("a tracking server that does not answer", "http://127.0.0.1:9", "MLflow does not answer", fast=True),
    tracking("a tracking server of no known name", "http://no-such-host.invalid", "MLflow does not answer"),
    tracking("a tracking address of no known scheme", "carrier-pigeon://coop", "unknown scheme"),
    tracking("a tracking address of nothing", "http://", "MLflow does not answer"),
    tracking("a tracking address of a port too high", "http://127.0.0.1:99999", "is no address"),
    tracking("a tracking database without a driver", "mysql://u@127.0.0.1/db", "needs the Python package"),
    tracking("a tracking database that is a folder", "sqlite:///{here}/letters", "is a folder"),
    tracking("a tracking database in no folder", "sqlite:////nowhere/at/all/mlflow.db", "does not exist"),
    tracking("a tracking database of garbage", "sqlite:///{here}/letters/corpus.jsonl", "is no SQLite database"),
    tracking("a tracking server at evaluation", "http://127.0.0.1:9", "MLflow does not answer", EVALUATE),
    tracking(
        "a tracking server at tuning", "http://127.0.0.1:9", "MLflow does not answer", f"tune {LETTERS} --output out"
    ),
    tracking(
        "a tracking server at comparing",
        "http://127.0.0.1:9",
        "MLflow does not answer",
        "compare \"params.loss.loss = 'mw'\" --output p.html",
    ),
    Case("a cluster that does not answer", TRAIN, "RAY_ADDRESS", env={"RAY_ADDRESS": "127.0.0.1:9"}, seconds=60),
    Case("a cluster's address of nonsense", TRAIN, "RAY_ADDRESS", env={"RAY_ADDRESS": "not an address"}),
    Case(
        "a client's address that does not answer",
        TRAIN,
        "RAY_ADDRESS",
        env={"RAY_ADDRESS": "ray://127.0.0.1:9"},
        seconds=90,
    ),
    Case(
        "a cluster that does not answer to a job",
        "submit --working-dir . train",
        "http://127.0.0.1:9: the job cannot be submitted",
        (write("jobs/train.py", ""),),
        env={"RAY_API_SERVER_ADDRESS": "http://127.0.0.1:9"},
    ),
    Case(
        "a cache that is a file",
        ENCODE,
        "a part of the path is a file",
        env={"RAYTRIEVER_CACHE": "{here}/letters/corpus.jsonl"},
        fast=True,
    ),
    Case(
        "a cache within a file",
        ENCODE,
        "a part of the path is a file",
        env={"RAYTRIEVER_CACHE": "{here}/letters/corpus.jsonl/cache"},
    ),
    Case(
        "a cache of 300 letters",
        ENCODE,
        "the name is too long",
        env={"RAYTRIEVER_CACHE": "{here}/" + "n" * 300},
    ),
    Case(
        "a cache that links to itself",
        ENCODE,
        "symbolic links lead in a circle",
        (link("circle", "circle"),),
        env={"RAYTRIEVER_CACHE": "{here}/circle"},
    ),
    Case(
        "a cache that is a pipe",
        ENCODE,
        "a part of the path is a file",
        (fifo("pipe"),),
        env={"RAYTRIEVER_CACHE": "{here}/pipe"},
    ),
    Case(
        "a cache that may not be written",
        ENCODE,
        "permission denied",
        (folder("shut"), mode("shut", 0o555)),
        env={"RAYTRIEVER_CACHE": "{here}/shut"},
        unprivileged=True,
    ),
    Case(
        "a cache that may not be entered",
        "search x --dataset letters --model model",
        "permission denied",
        (folder("shut"), mode("shut", 0)),
        env={"RAYTRIEVER_CACHE": "{here}/shut"},
        unprivileged=True,
    ),
    Case(
        "a home that does not exist",
        "search is --dataset letters --model model",
        env={"HOME": "/nowhere", "RAYTRIEVER_CACHE": "{here}/cache"},
        code=0,
    ),
    Case(
        "a home that may not be written",
        "search x --dataset letters --model model",
        "permission denied",
        (folder("shut"), mode("shut", 0o555)),
        env={"HOME": "{here}/shut", "RAYTRIEVER_CACHE": ""},
        unprivileged=True,
    ),
    Case("a folder for temporary files that does not exist", PREPARE, env={"TMPDIR": "{here}/nowhere"}, code=0),
    Case("a folder for temporary files that is a file", PREPARE, env={"TMPDIR": "{here}/letters/corpus.jsonl"}, code=0),
    Case("a time zone that does not exist", PREPARE, env={"TZ": "Mars/Olympus"}, code=0),
    Case(
        "a language without letters",
        "search x --dataset letters --model modell\u00e9",
        "modell",
        env={"LANG": "C", "LC_ALL": "C"},
    ),
    Case("a language that does not exist", PREPARE, env={"LANG": "xx_YY.UTF-9", "LC_ALL": "xx_YY.UTF-9"}, code=0),
    Case(
        "data of other scripts under a language without letters",
        "search x --dataset m\u00fcller --model model",
        out="\u6f22\u5b57",
        make=(
            rows("m\u00fcller/corpus.jsonl", {"_id": "d", "title": "\u6f22\u5b57", "text": "x y"}),
            rows("m\u00fcller/queries.jsonl", {"_id": "q", "text": "x"}),
            write("m\u00fcller/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\td\t1\n"),
        ),
        env={"LANG": "C", "LC_ALL": "C"},
        code=0,
    ),
    Case(
        "output in ASCII",
        "search x --dataset m\u00fcller --model model",
        out="\\u6f22\\u5b57",
        make=(
            rows("m\u00fcller/corpus.jsonl", {"_id": "d", "title": "\u6f22\u5b57", "text": "x y"}),
            rows("m\u00fcller/queries.jsonl", {"_id": "q", "text": "x"}),
            write("m\u00fcller/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\td\t1\n"),
        ),
        env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        shell='"$@" 2>&2',
        code=0,
    ),
    Case(
        "a working folder that was removed",
        "prepare --dataset x --output out",
        "the working directory was removed",
        shell='mkdir gone && cd gone && rmdir ../gone && "$@"',
        code=2,
    ),
    Case("threads of nonsense", "search is --dataset letters --model model", env={"OMP_NUM_THREADS": "many"}, code=0),
    Case(
        "runs kept in a file",
        f"train {LETTERS} --max-steps 2",
        "a part of the path is a file",
        env={"RAYTRIEVER_RUNS": "{here}/letters/corpus.jsonl"},
    ),
    Case(
        "a service's key of two lines",
        "annotate --dataset letters --llm x --endpoint http://127.0.0.1:9/v1 --output out",
        "--key-variable: names a variable with a character that is invalid in a key",
        env={"OPENAI_API_KEY": "one\ntwo"},
    ),
    Case(
        "a service's key with letters of no header",
        "annotate --dataset letters --llm x --endpoint http://127.0.0.1:9/v1 --output out",
        "--key-variable: names a variable with a character that is invalid in a key",
        env={"OPENAI_API_KEY": "schl\u00fcssel\u2603"},
    ),
)
