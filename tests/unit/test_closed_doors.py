"""No file that the code reads can run code, and no text reaches a shell.

`make check` bans calls and modules by rules of ruff (`S`, and `TID251` with the list in `pyproject.toml`). What depends
on the words of a call, which ruff does not read, is a lint over the syntax tree of everything that ships."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FILES = sorted(
    file for part in ("platform", "jobs", "benchmarks", "dashboards") for file in (REPOSITORY / part).rglob("*.py")
)
# Methods of archives, whatever they are called; and calls of modules that are imported where they are used.
METHODS = {"extractall", "extract", "_extract_member"}
CALLS = {"compile", "__import__", "faiss.read_index", "faiss.deserialize_index"}
# What a keyword may not say, and what it must say where it is not said by default.
FORBIDDEN = {"trust_remote_code": True, "allow_pickle": True, "verify": False, "weights_only": False}
REQUIRED = {"torch.load": {"weights_only": True}}
# Weights: `from_pretrained` of these classes reads them.
MODELS = re.compile(r"^(transformers\.)?Auto(Model\w*)\.from_pretrained$")
MODEL_WORDS = {"use_safetensors": True, "trust_remote_code": False}
# Code of a model: unless it is forbidden, transformers asks a person at the terminal whether it may run.
PARTS = re.compile(r"^(transformers\.)?Auto((Tokenizer|Config)\.from_pretrained|Model\w*\.from_config)$")
# File, and what is let through there.
ALLOWED = {
    # Behind `stored_index.read_index`, which holds every byte against its digest before.
    ("platform/raytriever/retrieval/index/approximate/faiss_indexes.py", "faiss.read_index"),
    # A loss that the user wrote and named: it is code.
    ("platform/raytriever/losses/user_loss_file.py", "compile"),
}


def says(call: ast.Call, word: str) -> object:
    """The constant that a keyword is given; None where it is not given, an ellipsis where it is no constant."""
    for keyword in call.keywords:
        if keyword.arg == word:
            return keyword.value.value if isinstance(keyword.value, ast.Constant) else ...
    return None


def open_doors(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of every call that is not to be."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield from ((node.lineno, call) for call in of_call(node))


def of_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    if name in CALLS:
        yield name
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        yield call.func.attr
    for word, wrong in FORBIDDEN.items():
        if name == "read_manifest" and word == "verify":  # of digests, which `check_directory` compares when it is time
            continue
        said = says(call, word)
        if said is not None and said is not (not wrong):
            yield f"{word}={'?' if said is ... else said}"
    required = dict(REQUIRED.get(name, {}))
    if MODELS.match(name):
        required |= MODEL_WORDS
    elif PARTS.match(name):
        required |= {"trust_remote_code": False}
    yield from (f"{name} without {word}={right}" for word, right in required.items() if says(call, word) is not right)


def test_no_file_that_ships_opens_a_door() -> None:
    doors = set()
    for file in FILES:
        name = file.relative_to(REPOSITORY).as_posix()
        doors |= {(name, line, what) for line, what in open_doors(file.read_text("utf-8"))}
    assert {(name, what) for name, _, what in doors} == ALLOWED, doors
    assert {file.relative_to(REPOSITORY).parts[0] for file in FILES} == {"platform", "jobs", "benchmarks", "dashboards"}
    assert len(FILES) > 250


OPEN = """
torch.load(path)
torch.load(path, weights_only=safe)
from pickle import loads
import cloudpickle as cp
from yaml import load
yaml.load(text, yaml.SafeLoader)
yaml.safe_load(text)
json.loads(text)
eval(text)
exec(text)
compile(text, "", "exec")
faiss.read_index(path)
subprocess.run(command, shell=True)
os.system(command)
AutoModel.from_pretrained(place)
AutoModel.from_pretrained(place, use_safetensors=True, trust_remote_code=True)
AutoTokenizer.from_pretrained(place)
AutoModel.from_config(config)
np.load(path, allow_pickle=True)
zipfile.ZipFile(path).extractall(folder)
requests.get(address, verify=False)
serve(host='0.0.0.0')
"""
SHUT = """
torch.load(path, weights_only=True)
model.eval()
re.compile(text)
subprocess.run(command)
AutoModel.from_pretrained(place, use_safetensors=True, trust_remote_code=False)
AutoTokenizer.from_pretrained(place, trust_remote_code=False)
"""


def test_the_lints_see_an_open_door_and_let_through_what_is_shut() -> None:
    text = "import json, os, subprocess\nimport numpy as np\nimport requests, torch, yaml\n" + OPEN + SHUT
    ruff = [sys.executable, "-m", "ruff", "check", "--output-format", "json"]
    file = ["--stdin-filename", "platform/raytriever/snippet.py", "-"]
    done = subprocess.run([*ruff, *file], input=text, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    seen = {row["location"]["row"] for row in json.loads(done.stdout) if re.match(r"S\d|TID251", row["code"])}
    seen |= {line for line, _ in open_doors(text)}
    lines = dict(enumerate(text.split("\n"), 1))
    unseen = [line for number, line in lines.items() if line in OPEN.split("\n") and line and number not in seen]
    assert not unseen
    assert not [lines[number] for number in seen if lines[number] in SHUT.split("\n")]
