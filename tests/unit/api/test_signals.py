"""Signals belong to the program that uses the library: only commands and processes of the package handle any."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import raytriever

PACKAGE = Path(raytriever.__file__).parent
# Where a handler is set: that of commands; Ctrl-C in processes of a pool, which the parent handles; and the handler of
# the program, set again after Ray has replaced it.
SETTERS = {"interruption.py", "processes.py", "cluster/session.py"}
PROGRAM = """
import os, signal, sys, threading
import raytriever as rt

if __name__ == "__main__":
    data, model = sys.argv[1:]
    handled = []
    own = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM}
    for number in own:
        signal.signal(number, lambda number, frame: handled.append(signal.Signals(number)))
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def check():
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before

    os.mkdir("docs")
    open("docs/a.md", "w").write("# A\\n\\nabc")
    rt.Dataset.from_documents("docs", "imported", model=model)
    check()
    for index in (rt.build_index(model, data), rt.build_index(model, data, kind="hnsw", output="index")):
        check()
        real = index._current.search
        def ended(*arguments):
            for number in sorted(own):
                os.kill(os.getpid(), number)
            return real(*arguments)
        object.__setattr__(index._current, "search", ended)
        assert len(index.search(["abc"], top_k=3)[0]) == 3
        assert handled == sorted(own), handled
        handled.clear()
        index.add({"new": "abc"})
        index.remove(["new"])
        index.refresh()
        index.close()
        check()
    print("done")
"""


def test_a_handler_is_set_in_three_places_and_used_by_commands_alone() -> None:
    setters, users = set(), set()
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("signal.signal", "signal.setitimer", "signal.siginterrupt") or "add_signal_handler" in called:
                setters.add(name)
            if called.rpartition(".")[2] == "interruptible":
                users.add(name)
    assert setters == SETTERS
    assert users == {"cli/main.py"}


@pytest.mark.slow
def test_a_program_keeps_its_handlers_and_receives_its_signals(
    tiny_dataset: Path, tiny_encoder: Path, workplace: Path
) -> None:
    Path("program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", str(tiny_dataset), str(tiny_encoder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr
