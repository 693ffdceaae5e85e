"""The public names are those of the committed list, documented with examples that run, and cheap to import."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import run_python

import raytriever as rt

sys.path.append(str(Path(__file__).parent))
from public_names import FILE, MODULES, described, public_objects

HEAVY = ("torch", "transformers", "ray", "mlflow", "numpy", "pandas", "datasets", "matplotlib", "mteb")


def test_the_public_names_are_those_of_the_list() -> None:
    # A change of the API is a change of the list: `python tests/unit/api/public_names.py` writes it.
    assert described() == FILE.read_text()


def test_dir_and_all_name_the_same() -> None:
    for module in MODULES.values():
        assert set(module.__all__) <= set(dir(module))
        assert module.__all__ == sorted(module.__all__)
        with pytest.raises(AttributeError, match="no attribute 'mean_squared'"):
            module.mean_squared  # noqa: B018


def members(value: Any) -> dict[str, Any]:
    """The public methods and properties of a class that are its own."""
    if not inspect.isclass(value):
        return {}
    return {name: getattr(value, name) for name in vars(value) if not name.startswith("_")}


def test_every_public_name_has_a_docstring_with_an_example_and_all_arguments() -> None:
    for name, value in public_objects().items():
        text = inspect.getdoc(value) or ""
        assert ">>>" in text, name
        assert "Examples:" in text, name  # docs/build.py makes a code block of this section
        own = members(value).values()
        assert all(inspect.getdoc(item) for item in own if callable(item) or isinstance(item, property)), name
        functions = [value] if inspect.isfunction(value) else filter(callable, members(value).values())
        for function in functions:
            documented = inspect.getdoc(function) or ""
            names = [
                parameter for parameter in inspect.signature(function).parameters if parameter not in ("self", "cls")
            ]
            missing = [name for name in names if not re.search(rf"^    (\w+, )*{name}(, \w+)*: ", documented, re.M)]
            assert not missing, (name, function.__name__)


# They compare models that they evaluate first.
SLOW = ("raytriever.compare", "raytriever.Report")
EXAMPLES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in public_objects()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_run(name: str, tiny_dataset: Path, tiny_encoder: Path) -> None:
    names = {
        "rt": rt,
        "np": np,
        "torch": torch,
        "mann_whitney": rt.losses.mann_whitney,
        "folder": tiny_dataset,
        "encoder": tiny_encoder,
        "data": rt.load_dataset(tiny_dataset),
        "model": None,
    }
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    parser = doctest.DocTestParser()
    value = public_objects()[name]
    for part, documented in {name: value, **members(value)}.items():
        text = inspect.getdoc(documented)
        if text and ">>>" in text:
            runner.run(parser.get_doctest(text, dict(names), part, name, 0))
    assert not runner.failures


def test_import_is_light() -> None:
    program = (
        "import sys, time\nbegan = time.perf_counter()\nimport raytriever\nseconds = time.perf_counter() - began\n"
        f"print(seconds, *(name for name in {HEAVY} if name in sys.modules))"
    )
    seconds = []
    for _ in range(3):
        done = run_python("-c", program)
        taken, *heavy = done.stdout.split()
        assert not heavy
        seconds.append(float(taken))
    assert min(seconds) < 0.1


def test_errors_and_settings_need_nothing_heavy() -> None:
    program = (
        "import sys, raytriever as rt\nrt.UserError, rt.Dataset, rt.Model, rt.Run, rt.Index, rt.train\n"
        f"print(*(name for name in {HEAVY} if name in sys.modules))"
    )
    done = run_python("-c", program)
    assert done.stdout.split() == []


def test_the_package_is_typed() -> None:
    assert (Path(rt.__file__).parent / "py.typed").is_file()
