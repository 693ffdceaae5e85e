"""No file that the code reads can run code, and no text reaches a shell.

A lint over the syntax tree of everything that ships. What it lets through it names, with the reason.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FILES = sorted(
    file for part in ("platform", "jobs", "benchmarks", "dashboards") for file in (REPOSITORY / part).rglob("*.py")
)

# Modules whose reading runs what it reads, or that unpack archives without looking.
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "tarfile"}
# Methods of archives, whatever they are called.
METHODS = {"extractall", "extract", "_extract_member"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "shutil.unpack_archive",
    "tempfile.mktemp",
    "pandas.read_pickle",
    "pd.read_pickle",
    "torch.hub.load",
    "ssl._create_unverified_context",
    "faiss.read_index",
    "faiss.deserialize_index",
    "mlflow.pyfunc.load_model",
    *(f"yaml.{name}" for name in ("load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all")),
}
NAMES = {"yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader", "yaml.CLoader", "yaml.CUnsafeLoader"}
# What a keyword may not say, and what it must say where it is not said by default.
FORBIDDEN = {"shell": True, "trust_remote_code": True, "allow_pickle": True, "verify": False, "weights_only": False}
REQUIRED = {"torch.load": {"weights_only": True}}
# Weights: `from_pretrained` of these classes reads them.
MODELS = re.compile(r"^(transformers\.)?Auto(Model\w*)\.from_pretrained$")
MODEL_WORDS = {"use_safetensors": True, "trust_remote_code": False}
# Code of a model: unless it is forbidden, transformers asks a person at the terminal whether it may run.
PARTS = re.compile(r"^(transformers\.)?Auto((Tokenizer|Config)\.from_pretrained|Model\w*\.from_config)$")
# File, and what is let through there.
ALLOWED = {
    # Behind `index.store.read_index`, which holds every byte against its digest before.
    ("platform/raytriever/index/approximate/faiss_finders.py", "faiss.read_index"),
    # A loss that the user wrote and named: it is code.
    ("platform/raytriever/losses/own/function.py", "exec"),
    ("platform/raytriever/losses/own/function.py", "compile"),
}


# What reads a file of somebody else without checking what it should hold.
UNCHECKED = {
    *(f"{module}.{name}" for module in ("np", "numpy") for name in ("load", "memmap", "fromfile", "genfromtxt")),
    *(f"pa.{name}" for name in ("memory_map", "ipc.open_file", "ipc.open_stream", "ipc.read_schema")),
    *(f"{module}.{name}" for module in ("pq", "parquet") for name in ("read_table", "read_schema", "ParquetFile")),
    *("json.load", "json.loads", "yaml.safe_load", "yaml.safe_load_all", "yaml.parse", "safe_open", "load_file"),
}
READERS = "platform/raytriever/reading/"
# File, call, and why it is not `reading`'s.
OWN_READERS = {
    ("annotation/service.py", "json.loads"): "answers of a service; all that such a text can raise is caught",
    ("planning/workload.py", "json.loads"): "a file of the package",
    ("cluster/ingest.py", "json.loads"): "reports and errors of this program's own tasks",
    ("studies/run/study.py", "json.loads"): "what was made a line before",
    ("data/formats/rows.py", "pa.ipc.open_stream"): "a batch of this program's own, of columns that were checked",
    ("store/owner.py", "json.loads"): "the owner of a lock; a broken record is an unknown owner",
    ("evaluation/results.py", "json.loads"): "what was made a line before",
    ("training/background.py", "json.loads"): "a value that the first worker of the group has just sent",
    ("tracking/steps.py", "json.loads"): "millions of lines; what does not fit is given to `parse_json`",
}


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an expression that is names and dots; empty for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def says(call: ast.Call, word: str) -> object:
    """The constant that a keyword is given; None where it is not given, an ellipsis where it is no constant."""
    for keyword in call.keywords:
        if keyword.arg == word:
            return keyword.value.value if isinstance(keyword.value, ast.Constant) else ...
    return None


def open_doors(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is not to be."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names if name.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in MODULES:
                yield node.lineno, str(node.module)
            yield from ((node.lineno, call) for call in names_of(node) if call in CALLS | NAMES)
        elif isinstance(node, ast.Attribute) and dotted(node) in NAMES:
            yield node.lineno, dotted(node)
        elif isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::"):
            yield node.lineno, str(node.value)
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, call) for call in of_call(node))


def names_of(node: ast.ImportFrom) -> list[str]:
    return [f"{node.module}.{name.name}" for name in node.names]


def of_call(call: ast.Call) -> Iterator[str]:
    name = dotted(call.func)
    if name in BUILTINS or name in CALLS:
        yield name
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        yield call.func.attr
    if name == "importlib.import_module" and call.args and isinstance(call.args[0], ast.Constant):
        yield from [str(call.args[0].value)] if str(call.args[0].value).split(".")[0] in MODULES else []
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


def test_files_of_others_are_read_by_the_checked_readers_alone() -> None:
    uses = set()
    for file in FILES:
        name = file.relative_to(REPOSITORY).as_posix()
        if name.startswith("platform/") and not name.startswith(READERS):
            calls = (node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call))
            called = {dotted(call.func) for call in calls}
            uses |= {(name.removeprefix("platform/raytriever/"), call) for call in called & UNCHECKED}
    assert uses == set(OWN_READERS)


def test_no_file_opens_a_door() -> None:
    results = [
        (name, line, what)
        for file in FILES
        for line, what in open_doors(ast.parse(file.read_text(encoding="utf-8")))
        if ((name := str(file.relative_to(REPOSITORY))), what) not in ALLOWED
    ]
    assert not results


OPEN = """
torch.load(path)
torch.load(path, weights_only=False)
torch.load(path, weights_only=safe)
import pickle
from pickle import loads
import cloudpickle as cp
from yaml import load
yaml.load(text, yaml.SafeLoader)
Loader = yaml.UnsafeLoader
eval(text)
__import__(name)
importlib.import_module('pickle')
subprocess.run(command, shell=True)
subprocess.run(command, shell=asked)
os.system(command)
AutoModel.from_pretrained(place, use_safetensors=True)
AutoModel.from_pretrained(place, use_safetensors=True, trust_remote_code=True)
AutoTokenizer.from_pretrained(place)
AutoConfig.from_pretrained(place)
AutoModel.from_config(config)
np.load(path, allow_pickle=True)
zipfile.ZipFile(path).extractall(folder)
faiss.read_index(path)
requests.get(address, verify=False)
serve(host='0.0.0.0')
"""
SHUT = """
torch.load(path, weights_only=True)
model.eval()
re.compile(text)
yaml.safe_load(text)
np.load(path, allow_pickle=False)
subprocess.run(command)
AutoModel.from_pretrained(place, use_safetensors=True, trust_remote_code=False)
AutoTokenizer.from_pretrained(place, trust_remote_code=False)
"""


def test_the_lint_sees_an_open_door_and_lets_through_a_shut_one() -> None:
    assert [line for line in OPEN.split("\n") if line and not list(open_doors(ast.parse(line)))] == []
    assert [line for line in SHUT.split("\n") if list(open_doors(ast.parse(line)))] == []


def test_everything_that_ships_is_looked_at() -> None:
    there = {path.split(os.sep)[0] for path in (str(file.relative_to(REPOSITORY)) for file in FILES)}
    assert there == {"platform", "jobs", "benchmarks", "dashboards"}
    assert len(FILES) > 250
    named = {REPOSITORY / file for file, _ in ALLOWED}
    assert all(file.is_file() for file in named)
