"""No file that the code reads can run code, and no text reaches a shell.

A lint over the syntax tree of everything that ships. What it lets through it names, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
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
    # Behind `stored_index.read_index`, which holds every byte against its digest before.
    ("platform/raytriever/retrieval/index/approximate/faiss_indexes.py", "faiss.read_index"),
    # A loss that the user wrote and named: it is code.
    ("platform/raytriever/losses/user_loss_file.py", "exec"),
    ("platform/raytriever/losses/user_loss_file.py", "compile"),
}


# What reads a file of somebody else without checking what it should hold.
UNCHECKED = {
    *(f"{module}.{name}" for module in ("np", "numpy") for name in ("load", "memmap", "fromfile", "genfromtxt")),
    *(f"pa.{name}" for name in ("memory_map", "ipc.open_file", "ipc.open_stream", "ipc.read_schema")),
    *(f"{module}.{name}" for module in ("pq", "parquet") for name in ("read_table", "read_schema", "ParquetFile")),
    *("json.load", "json.loads", "yaml.safe_load", "yaml.safe_load_all", "yaml.parse", "safe_open", "load_file"),
}
READERS = "platform/raytriever/core/reading/"
# File, call, and why it is not `reading`'s.
OWN_READERS = {
    ("evaluation/annotation/chat_completions.py", "json.loads"): "answers of a service; every error is caught",
    ("retrieval/endpoints/openai_client.py", "json.loads"): "answers of a service; every error is caught",
    ("retrieval/endpoints/embedding_requests.py", "json.loads"): "answers of a service; every error is caught",
    ("data/formats/csv_and_tsv.py", "json.loads"): "a cell of a table that looks like a list; other values stay text",
    ("data/formats/colbert_and_triples.py", "json.loads"): "a line of ids; what is no JSON is a bad row",
    (
        "retrieval/encoding/vectors_of_others.py",
        "np.memmap",
    ): "rows of numbers behind a header that was checked, in a file of their size",
    ("models/tokenization.py", "json.loads"): "the tokenizer in memory, as its library has just written it",
    ("cluster/ingest.py", "json.loads"): "reports and errors of this program's own tasks",
    ("evaluation/measurements.py", "np.load"): "a measurement of this program's own, whose digest was compared",
    ("data/formats/file_rows.py", "pa.ipc.open_stream"): "a batch of this program's own, of columns that were checked",
    ("core/store/lock_owner.py", "json.loads"): "the owner of a lock; a broken record is an unknown owner",
    ("evaluation/results.py", "json.loads"): "what was made a line before",
    ("training/background_jobs.py", "json.loads"): "a value that the first worker of the group has just sent",
    ("tracking/step_log.py", "json.loads"): "millions of lines; what does not fit is given to `parse_json`",
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


def open_doors(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is not to be."""
    for node in nodes:
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


def test_no_file_that_ships_opens_a_door_and_the_checked_readers_alone_read_files_of_others() -> None:
    doors, readers = set(), set()
    for file in FILES:
        name = file.relative_to(REPOSITORY).as_posix()
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        doors |= {(name, line, what) for line, what in open_doors(nodes) if (name, what) not in ALLOWED}
        if name.startswith("platform/") and not name.startswith(READERS):
            called = {dotted(node.func) for node in nodes if isinstance(node, ast.Call)}
            readers |= {(name.removeprefix("platform/raytriever/"), call) for call in called & UNCHECKED}
    assert not doors
    assert readers == set(OWN_READERS)
    assert {file.relative_to(REPOSITORY).parts[0] for file in FILES} == {"platform", "jobs", "benchmarks", "dashboards"}
    assert len(FILES) > 250
    assert all((REPOSITORY / file).is_file() for file, _ in ALLOWED)


OPEN = """
torch.load(path)
torch.load(path, weights_only=safe)
from pickle import loads
import cloudpickle as cp
from yaml import load
yaml.load(text, yaml.SafeLoader)
Loader = yaml.UnsafeLoader
eval(text)
importlib.import_module('pickle')
subprocess.run(command, shell=True)
subprocess.run(command, shell=asked)
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
yaml.safe_load(text)
np.load(path, allow_pickle=False)
subprocess.run(command)
AutoModel.from_pretrained(place, use_safetensors=True, trust_remote_code=False)
AutoTokenizer.from_pretrained(place, trust_remote_code=False)
"""


def test_the_lint_sees_an_open_door_and_lets_through_what_is_shut() -> None:
    seen = {line: bool(list(open_doors(ast.walk(ast.parse(line))))) for line in (OPEN + SHUT).split("\n") if line}
    assert seen == {line: line in OPEN.split("\n") for line in seen}
