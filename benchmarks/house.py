"""Figures of the layout of the package: sizes and what is expected, rooms, words and code that nothing reaches.

Run: `make house`. `tests/unit/test_house.py` holds the package to the limits."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import TypeGuard

REPOSITORY = Path(__file__).parent.parent
PLATFORM = REPOSITORY / "platform"
PACKAGE = PLATFORM / "raytriever"
FOLDER_LIMIT = 20
# Largest sizes that are wanted.
EXPECTED = {
    "package lines": 60_000,
    "test lines": 50_000,
    "benchmark lines": 8_900,
    "flags of train": 75,
    "words in docs, README and CONTRIBUTING": 50_000,
}
# Words of no field; names are split at underscores and capitals. This file, its test, and the stored files of older
# versions are not searched.
DIALECT = re.compile(
    r"\b(told|hears?|heard|put aside|beside|whoever|anew|mailbox|news|torn|mend(?:s|ed|ing)?|at hand|"
    r"aims?|arms?|finders?|progression|readouts?)\b"
)
WRITTEN = (
    "platform",
    "tests",
    "benchmarks",
    "docs",
    "jobs",
    "dashboards",
    "cluster",
    "studies",
    ".ci",
    ".github",
    "Makefile",
    "README.md",
)
WRITTEN_SUFFIXES = ("", ".py", ".md", ".yaml", ".yml", ".html", ".js", ".css", ".json")
# A generated block of a page, with its markers; see `docs/build.py`.
GENERATED = re.compile(r"<!-- generated?: .*?<!-- end[^>]*-->", re.DOTALL)
# Names of loop variables that say nothing of what they hold.
VAGUE = {"one", "each", "own", "every"}
NOT_SEARCHED = ("benchmarks/house.py", "tests/unit/test_house.py")
RELATIVE_CLAUSES = re.compile(r"(What|Whether|Who|Which|Where|How|Why|When)\b")
# Modules whose texts hold flags of other programs; the texts of all others name settings by `errors.setting`.
FLAGS_OF_OTHERS = {
    "raytriever.cluster.ray_session": "`ray start`, and the memory of a container",
    "raytriever.losses.mw.cuda_kernel": "the compiler of CUDA",
    "raytriever.models.directory.hub_or_local": "pip",
    "raytriever.tracking.tensorboard_tracker": "tensorboard",
    "raytriever.experiments.operation.doctor": "`ray start` and nvidia-smi",
    "raytriever.core.reading.documents.markdown_html_pdf": "qpdf",
    "raytriever.tracking.mlflow_tracker": "the server of MLflow",
    "raytriever.tracking.tracker": "git",
}


def sizes() -> dict[str, int]:
    """Return lines, files, words and flags of the repository."""
    package, tests, benchmarks = (
        list(folder.rglob("*.py")) for folder in (PACKAGE, REPOSITORY / "tests", REPOSITORY / "benchmarks")
    )
    own_pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
    # Text between the markers of a generated block is not written by hand.
    words = [
        len(GENERATED.sub("", path.read_text(encoding="utf-8")).split())
        for path in [*own_pages, *(REPOSITORY / "docs").rglob("*.md")]
    ]
    program = "from raytriever.cli.main import run; run('train', ['--help-all'])"
    shown = subprocess.run([sys.executable, "-c", program], cwd=PLATFORM, capture_output=True, text=True, check=True)
    return {
        "package lines": _lines(package),
        "package files": len(package),
        "test lines": _lines(tests),
        "test files": len(tests),
        "benchmark lines": _lines(benchmarks),
        "flags of train": len(re.findall(r"^  (?:-\w, )?--(?!help)", shown.stdout, re.MULTILINE)),
        "words in docs, README and CONTRIBUTING": sum(words),
        "words in README": words[0],
    }


def _lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def rooms() -> dict[str, list[Path]]:
    """Return the files of each folder and module at the top of the package."""
    files: dict[str, list[Path]] = defaultdict(list)
    for path in modules().values():
        files[path.relative_to(PACKAGE).parts[0]].append(path)
    return dict(files)


@cache
def modules() -> dict[str, Path]:
    """Return the path of each module of the package by its dotted name."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PLATFORM).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


@cache
def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def nodes(module: str) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a module."""
    return list(ast.walk(tree(module)))


def folders() -> dict[str, list[str]]:
    """Return the Python files of each folder of the package."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in modules().values():
        files[str(path.parent.relative_to(PLATFORM))].append(path.name)
    return dict(files)


def crowded_folders() -> list[str]:
    """Return the folders with more than `FOLDER_LIMIT` files."""
    return [f"{folder}: {len(names)}" for folder, names in folders().items() if len(names) > FOLDER_LIMIT]


def shared_prefixes() -> list[str]:
    """Return the prefixes that three or more files of one folder share."""
    prefixes = []
    for folder, names in folders().items():
        counts = Counter(re.split(r"[_.]", name)[0] for name in names if name != "__init__.py")
        prefixes += [f"{folder}/{prefix}*: {count}" for prefix, count in counts.items() if count >= 3]
    return prefixes


def dialect() -> list[str]:
    """Return the places where a name, comment, message or docstring uses a word of no field."""
    places = []
    for path in _written_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = re.sub(r"([a-z])([A-Z])", r"\1 \2", line).replace("_", " ").lower()
            places += [f"{path.relative_to(REPOSITORY)}:{number}: {hit}" for hit in DIALECT.findall(words)]
    return places


def vague_loops() -> list[str]:
    """Return the variables of loops and comprehensions with a name of `VAGUE`."""
    places = []
    for path in _written_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.suffix == ".py" else ():
            if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                names = {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
                places += [f"{path.relative_to(REPOSITORY)}:{node.target.lineno}: {name}" for name in names & VAGUE]
    return places


def _written_files() -> Iterator[Path]:
    """Yield the source, text and result files of the repository."""
    for name in WRITTEN:
        for path in sorted((REPOSITORY / name).rglob("*")) if (REPOSITORY / name).is_dir() else [REPOSITORY / name]:
            is_written = path.is_file() and path.suffix in WRITTEN_SUFFIXES and "__pycache__" not in path.parts
            if is_written and not str(path.relative_to(REPOSITORY)).startswith(NOT_SEARCHED):
                yield path


def relative_docstrings() -> list[str]:
    """Return the docstrings that begin with a relative clause."""
    docstrings = []
    for module, path in modules().items():
        for node in nodes(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and RELATIVE_CLAUSES.match(text):
                    line = getattr(node, "lineno", 1)
                    docstrings.append(f"{path.relative_to(PLATFORM)}:{line}: {text.splitlines()[0]}")
    return docstrings


def repeated_class_names() -> list[str]:
    """Return the public class names that two or more public modules define, with the modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        if not module.rpartition(".")[2].startswith("_"):
            for node in tree(module).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(module)
    return [f"{name}: {', '.join(where)}" for name, where in places.items() if len(where) > 1]


def flag_literals() -> list[str]:
    """Return the strings outside the command line that spell a flag; docstrings may."""
    places = []
    for module, path in modules().items():
        if module.startswith("raytriever.cli") or module in FLAGS_OF_OTHERS:
            continue
        documents = {id(node.value) for node in nodes(module) if isinstance(node, ast.Expr)}
        for node in nodes(module):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
            if is_text and (match := re.search(r"(?<![\w-])--[a-z][\w-]*", node.value)):
                places.append(f"{path.relative_to(PLATFORM)}:{node.lineno}: {match[0]}")
    return places


def unknown_settings() -> list[str]:
    """Return the calls of `setting` and `flag_of` that name no flag, or a switch without True or False."""
    switches = _flags()
    places = []
    for module, path in modules().items():
        for node in nodes(module):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            name, is_marked = node.args[0], node.func.id == "setting"
            if (is_marked or node.func.id == "flag_of") and isinstance(name, ast.Constant):
                is_switch = switches.get(name.value)
                if is_switch is None or (is_marked and is_switch and len(node.args) < 2):
                    places.append(f"{path.relative_to(PLATFORM)}:{node.lineno}: {name.value}")
    return places


def _flags() -> dict[str, bool]:
    """Return the fields that `option` declares and the flags of the commands, with True for a switch."""
    flags = {"help": True}
    for module in modules():
        for node in nodes(module):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and _is_call(node.value, "option", "_count")
            ):
                flags[node.target.id] = ast.unparse(node.annotation).split(" ")[0] == "bool"
            elif module.startswith("raytriever.cli") and _is_call(node, "add_argument", "Argument"):
                switch = any(key.arg == "action" for key in node.keywords)
                texts = [part.value for part in node.args if isinstance(part, ast.Constant)]
                flags |= {text[2:].replace("-", "_"): switch for text in texts if text.startswith("--")}
    return flags


def _is_call(node: ast.AST | None, *names: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in names


def main() -> None:
    """Print the figures, and every offender."""
    import reached

    for name, value in sizes().items():
        print(f"{name}: {value:,}" + (f" (expected: at most {EXPECTED[name]:,})" if name in EXPECTED else ""))
    for name, files in sorted(rooms().items(), key=lambda room: -_lines(room[1])):
        print(f"  {name}: {_lines(files):,} lines, {len(files)} files")
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in modules().values()}
    longest = max(lengths, key=lambda path: lengths[path])
    print(
        f"files {len(lengths)}, median {median(lengths.values()):.0f} lines,"
        f" longest {lengths[longest]} ({longest.name})"
    )
    for title, offenders in {
        f"folders over {FOLDER_LIMIT} files": crowded_folders(),
        "prefixes that three files share": shared_prefixes(),
        "words of no field": dialect(),
        "loop variables that say nothing": vague_loops(),
        "docstrings that begin with a relative clause": relative_docstrings(),
        "public class names that occur twice": repeated_class_names(),
        "strings that spell a flag": flag_literals(),
        "names of settings that no flag has": unknown_settings(),
        "definitions that no command and no public name reaches": reached.unreached(reached.roots()),
    }.items():
        print(f"{title}: {len(offenders)}")
        print(*(f"  {offender}" for offender in offenders), sep="\n", end="\n" if offenders else "")


if __name__ == "__main__":
    main()
