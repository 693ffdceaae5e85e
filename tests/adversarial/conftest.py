"""The server of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiny_models import write_cross_encoder

sys.path.append(str(Path(__file__).parent))

from hostile.case import Case
from hostile.running import Ended, Runner

# Two commands at a time: most wait for a disk or for processes of their own.
PROCESSES = 2


@pytest.fixture(scope="session")
def tiny_cross(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of random weights."""
    return write_cross_encoder(tiny_encoder, tmp_path_factory.mktemp("cross") / "cross")


@pytest.fixture(scope="session")
def runner(
    tiny_dataset: Path, tiny_encoder: Path, tiny_cross: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """Runs hostile commands in folders of their own."""
    given = {"letters": tiny_dataset, "model": tiny_encoder, "cross": tiny_cross}
    runner = Runner(tmp_path_factory.mktemp("hostile"), given)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def ended(runner: Runner, request: pytest.FixtureRequest) -> Iterator[Callable[[Case], Ended]]:
    """How a case ended. The commands of all chosen cases run ahead of the tests, two at a time."""
    chosen = [_case_of(item) for item in request.session.items]
    with ThreadPoolExecutor(PROCESSES) as pool:
        futures = {case.id: pool.submit(runner.run, case) for case in chosen if case is not None}
        try:
            yield lambda case: futures[case.id].result()
        finally:
            pool.shutdown(cancel_futures=True)


def _case_of(item: pytest.Item) -> Case | None:
    case = item.callspec.params.get("case") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    return case if isinstance(case, Case) else None
