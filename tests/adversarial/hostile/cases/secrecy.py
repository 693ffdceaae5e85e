"""Secrets in flags, files of settings, data and the environment: refused or masked, and written nowhere."""

from __future__ import annotations

from hostile.case import CANARY, Case, of_area
from hostile.making import rows, write

LETTERS = "--dataset letters --model model"
ADDRESSES = {
    "a password": f"s3://key:{CANARY}@bucket/x",
    "a signature of Azure": f"abfss://c@a.dfs.core.windows.net/x?sp=r&sig={CANARY}",
    "a signature of Amazon": f"https://b.s3.amazonaws.com/x?X-Amz-Signature={CANARY}",
    "a key": f"https://host/x?key={CANARY}",
    "a password as parameter": f"https://host/x?a=1&pwd={CANARY}",
    "a key id": f"https://host/x?AWSAccessKeyId={CANARY}",
    "a parameter of a store": f"gs://bucket/x?whatever={CANARY}",
    "a token as user": f"https://{CANARY}@host/x",
    "a token of the hub": f"hf_{CANARY}",
    "a fragment": f"https://host/x#access_token={CANARY}",
}
FLAGS = {
    "prepare": "prepare --dataset 'X' --model model --output out",
    "train": "train --dataset 'X' --model model --output out",
    "tune": "tune --dataset 'X' --model model --output out",
    "evaluate": "evaluate --datasets letters 'X' --model model --output out",
    "encode": f"encode {LETTERS} --output 'X'",
    "mine": "mine --dataset letters --method dense --embeddings 'X' --output out",
    "score": "score --dataset letters --model cross --negatives 'X' --output out",
    "index": "index --dataset letters --model 'X' --output out",
    "search": "search x --dataset 'X' --model model",
    "export": "export --model 'X' --output out",
    "compare": "compare 'X' --output page.html",
    "study": "study 'X.yaml' --output out",
    "annotate": "annotate --dataset letters --llm x --base-url 'X' --output out",
}
REFUSED = "put the secret into an environment variable"

CASES = of_area(
    "secrecy",
    *[
        Case(f"{name} in an address", FLAGS["prepare"].replace("X", address), REFUSED)
        for name, address in ADDRESSES.items()
    ],
    *[
        Case(f"a signature in a flag of {stage}", words.replace("X", ADDRESSES["a signature of Azure"]), REFUSED)
        for stage, words in FLAGS.items()
        if stage != "prepare"
    ],
    Case(
        "a secret in settings",
        "train --config mine.yaml",
        REFUSED,
        (write("mine.yaml", f"data: {{dataset: 's3://k:{CANARY}@b/x'}}"),),
    ),
    Case(
        "a secret in the settings of a stage",
        "train --config mine.yaml",
        REFUSED,
        (write("mine.yaml", f"stages: [{{name: a, data: {{negatives_table: 's3://b/x?sig={CANARY}'}}}}]"),),
    ),
    Case(
        "a secret in a broken file of settings",
        "train --config mine.yaml",
        "is not YAML",
        (write("mine.yaml", f"data: {{dataset: s3://k:{CANARY}@b/x"),),
    ),
    Case("a secret in a flag that is not known", f"train --datset https://k:{CANARY}@host/x", "unknown flag"),
    Case("a secret joined to its flag", f"train --dataset=https://k:{CANARY}@host/x", REFUSED),
    Case("a secret in a traceback", f"train --dataset https://k:{CANARY}@host/x --debug", REFUSED),
    Case(
        "a secret in the address of tracking",
        f"train {LETTERS} --output out --max-steps 2",
        "http://***@127.0.0.1:9",
        env={"MLFLOW_TRACKING_URI": f"http://ada:{CANARY}@127.0.0.1:9"},
    ),
    Case(
        "a secret as a token of tracking",
        f"train {LETTERS} --output out --max-steps 2",
        "http://127.0.0.1:9: MLflow does not answer",
        env={"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_TRACKING_TOKEN": CANARY},
    ),
    Case(
        "a secret in a row of data",
        "prepare --dataset letters --model model --output out --max-bad-rows 0",
        "***",
        (rows("letters/queries.jsonl", {f"https://host?sig={CANARY}": "x"}),),
    ),
    Case(
        "a secret in a name of a file",
        "prepare --dataset set --model model --output out",
        "no known format",
        (write(f"set/x?sig={CANARY}.txt", ""),),
    ),
    Case(
        "a service's key",
        "annotate --dataset letters --llm x --base-url http://127.0.0.1:9/v1 --retries 0 --output out",
        "http://127.0.0.1:9/v1: gives no usable answer: no connection",
        env={"OPENAI_API_KEY": CANARY},
    ),
    Case(
        "a password in a service's address",
        f"annotate --dataset letters --llm x --base-url http://u:{CANARY}@127.0.0.1:9/v1 --output out",
        REFUSED,
    ),
    Case("a secret of the environment as data set", f"prepare --dataset {CANARY} --model model --output out", "***"),
    Case("a secret of the environment as name", f"train {LETTERS} --loss {CANARY} --output out", "***"),
)
