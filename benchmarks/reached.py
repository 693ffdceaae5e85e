"""Code of the package that no command, study or public name reaches; `benchmarks/house.py` prints it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache

from house import PLATFORM, REPOSITORY, modules, nodes, tree

# Definitions that Python, Ray, numba or PyTorch call by name.
CALLED_BY_LIBRARIES = re.compile(r"__\w+__|visit_\w+|forward|emit|format|default|main|study")
# Loaded by name: numba loads the cache locator while it compiles, Ray loads the hook of `ray job submit`.
LOADED_BY_NAME = ("raytriever.cluster.numba_cache",)
# Their `__all__` lists the public API.
PUBLIC = (
    "raytriever",
    "raytriever.losses",
    "raytriever.metrics",
    "raytriever.sentence_transformers",
)


def definitions(module: str) -> dict[str, ast.stmt]:
    """Return the functions, classes and constants that a module defines at its top level."""
    statements: dict[str, ast.stmt] = {}
    for node in tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            statements[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                statements.update({name.id: node for name in ast.walk(target) if isinstance(name, ast.Name)})
    return statements


def _scope(module: str) -> Mapping[str, tuple[str, str]]:
    """Return the definition behind each imported name of a module: (module, name), the name empty for a module."""
    known, names = modules(), {}
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names[alias.asname or alias.name] = (full, "") if full in known else (node.module or "", alias.name)
        elif isinstance(node, ast.Import):
            names.update(
                {alias.asname: (alias.name, "") for alias in node.names if alias.asname and alias.name in known}
            )
    return names


def unreached(roots: set[str]) -> list[str]:
    """Return the top-level definitions and methods that no root reaches, with their lines.

    Args:
        roots: modules whose every definition is an entry point: the commands and the public API.
    """
    scopes = {module: _scope(module) for module in modules()}
    own = {module: definitions(module) for module in modules()}
    reached: set[tuple[str, str]] = set()
    loaded: set[str] = set()
    attributes: set[str] = set()
    public: set[tuple[str, str]] = set()

    def load(module: str) -> None:
        if module in loaded:
            return
        loaded.add(module)
        for statement in tree(module).body:
            defines = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            assigns = isinstance(statement, ast.Assign | ast.AnnAssign)
            if not defines and (not assigns or _calls(statement)):
                follow(module, statement)

    def reach(module: str, name: str) -> None:
        if name not in own.get(module, {}):
            if name in scopes.get(module, {}):  # exported from another module
                reach(*scopes[module][name])
            return
        if (module, name) not in reached:
            reached.add((module, name))
            load(module)
            follow(module, own[module][name])

    def follow(module: str, node: ast.AST) -> None:
        # A module that is passed as a value may be asked for anything in it.
        owners = {id(part.value) for part in _uses(node) if isinstance(part, ast.Attribute)}
        for part in _uses(node):
            if isinstance(part, ast.Name):
                if part.id in own[module]:
                    reach(module, part.id)
                elif part.id in scopes[module]:
                    target, name = scopes[module][part.id]
                    for item in [name] if name else own.get(target, {}) if id(part) not in owners else ():
                        reach(target, item)
            elif isinstance(part, ast.Attribute):
                attributes.add(part.attr)
                if isinstance(part.value, ast.Name) and part.value.id in scopes[module]:
                    reach(scopes[module][part.value.id][0], part.attr)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                attributes.update(re.findall(r"[A-Za-z_]\w+", part.value) if len(part.value) < 60 else ())
                owner, _, name = part.value.rpartition(".")  # `rows.INFONCE` names a definition next to this module
                reach(f"{module.rpartition('.')[0]}.{owner}", name)
            elif isinstance(part, ast.keyword) and part.arg:
                attributes.add(part.arg)

    for module in roots:
        load(module)
        for name in own[module]:
            reach(module, name)
    for file in (REPOSITORY / "studies").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in own:
                for alias in node.names:
                    reach(node.module, alias.name)
            elif isinstance(node, ast.Attribute):
                attributes.add(node.attr)
    for module in PUBLIC:
        load(module)
        reach(module, "__getattr__")
        for node in ast.walk(own[module]["__all__"]):
            if isinstance(node, ast.Constant):
                reach(module, node.value)
                public.add(scopes[module].get(node.value, (module, node.value)))
    lines = []
    for module, names in own.items():
        path = modules()[module].relative_to(PLATFORM)
        for name, node in names.items():
            if name.startswith("__") or CALLED_BY_LIBRARIES.fullmatch(name):
                continue
            size = (node.end_lineno or 0) - node.lineno + 1
            if (module, name) not in reached:
                lines.append(f"{path}:{node.lineno}: {name} ({size} lines)")
            elif isinstance(node, ast.ClassDef) and not _extends_a_library(node, scopes[module], own[module]):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        known = method.name in attributes or CALLED_BY_LIBRARIES.fullmatch(method.name)
                        known = known or ((module, name) in public and not method.name.startswith("_"))
                        if not known:
                            size = (method.end_lineno or 0) - method.lineno + 1
                            lines.append(f"{path}:{method.lineno}: {name}.{method.name} ({size} lines)")
    return lines


@cache
def _uses(node: ast.AST) -> list[ast.AST]:
    """Return the names, attributes, texts and keywords in a statement."""
    return [part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute | ast.Constant | ast.keyword)]


def _calls(statement: ast.stmt) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(statement))


def _extends_a_library(node: ast.ClassDef, scope: Mapping[str, object], own: Mapping[str, object]) -> bool:
    """Return whether a base class is defined outside the package: the library calls its methods."""
    bases = [base.id if isinstance(base, ast.Name) else "." for base in node.bases]
    return any(base not in scope and base not in own for base in bases if base != "Protocol")


def roots() -> set[str]:
    """Return the modules whose every definition is an entry point: the commands and the recipes."""
    packages = ("raytriever.cli.", "raytriever.experiments.recipes.")
    return {name for name in modules() if name.startswith((*packages, *LOADED_BY_NAME))}
