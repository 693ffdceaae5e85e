"""Every JSON file of a run, edited at every place: it is still read, or refused in one line; never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluations import write_evaluation

from indexes import write_index
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.store import EmbeddingStore
from raytriever.errors import UserError
from raytriever.evaluation.files import read_per_query
from raytriever.evaluation.results import read_results
from raytriever.experiment.directory import RunDirectory
from raytriever.index.approximate.build import DocumentVectors, build_index
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.store import read_meta
from raytriever.report.comparison import write_comparison
from raytriever.report.finished_runs import read_directory
from raytriever.report.page import choose_queries
from raytriever.report.tables import result_tables, threshold_table
from raytriever.store.commit import read_manifest
from raytriever.tracking.run_state import has_unsent_data
from raytriever.tracking.steps import StepLog, read_curves
from raytriever.training.checkpoint import read_state
from raytriever.training.refresh import Ledger, Round, read_ledger
from raytriever.training.validation import Record, Stop, read_records, read_stop, write_record, write_stop
from raytriever.tuning.trial_log import find_best, read_trials, sweep_rows

FIXTURES = Path(__file__).parents[1] / "fixtures" / "version_0_1"
# What stands in place of a value; 1e999 is read as infinity.
VALUES = [
    "null",
    '"text"',
    "-1",
    "0",
    "1.5",
    "true",
    "[]",
    "{}",
    "NaN",
    "1e999",
    "1" * 400,
    "[" * 150 + "]" * 150,
    '["a"]',
]


def edits(value: Any) -> Iterator[Any]:
    """The value with each of its values in turn replaced by a `_Raw`, and with each of its keys left out."""
    for raw in VALUES:
        yield _Raw(raw)
    if isinstance(value, dict):
        for key in value:
            yield {name: one for name, one in value.items() if name != key}
            yield from ({**value, key: edited} for edited in edits(value[key]))
        yield {**value, "further": 1}
    if isinstance(value, list) and value:
        yield value[1:]
        yield from ([edited, *value[1:]] for edited in edits(value[0]))


class _Raw:
    def __init__(self, text: str) -> None:
        self.text = text


def text_of(value: Any) -> str:
    """The value as JSON, with what stands in it as text put in."""
    raws: list[str] = []

    def mark(raw: _Raw) -> str:
        raws.append(raw.text)
        return f"<<{len(raws) - 1}>>"

    text = json.dumps(value, default=mark)
    for number, raw in enumerate(raws):
        text = text.replace(f'"<<{number}>>"', raw)
    return text


def damaged(text: str) -> Iterator[str]:
    yield from (text[: len(text) * part // 7] for part in range(7))
    yield "[" * 100_000
    yield "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")


def check(file: Path, read: Callable[[], object]) -> tuple[int, int]:
    """How many edits are refused, and how many there are; any other error than a `UserError` is the test's."""
    whole = file.read_text()
    read()
    refusals: list[str] = []
    count = 0
    for text in [*map(text_of, edits(json.loads(whole))), *damaged(whole)]:
        file.write_text(text)
        count += 1
        try:
            read()
        except UserError as error:
            refusals.append(str(error))
    file.write_text(whole)
    read()
    assert not [line for line in refusals if "\n" in line]
    return len(refusals), count


def copy(name: str, to: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, to / Path(name).name))


def compared(folder: Path, to: Path) -> None:
    write_comparison(to / "page.html", [read_directory(folder, "run")])


def tables(folder: Path) -> None:
    results = read_results(folder)
    result_tables(results["models"], results["pairs"], results["baselines"])
    threshold_table(results.get("calibration") or [])


@pytest.mark.slow
def test_results(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path)
    refused, count = check(folder / "results.json", lambda: tables(folder))
    assert refused > count / 3


@pytest.mark.slow
def test_values_of_queries(tmp_path: Path) -> None:
    file = write_evaluation(tmp_path, queries=2) / "per_query" / "letters.json"
    refused, count = check(file, lambda: choose_queries(read_per_query(file)))
    assert refused > count / 2


@pytest.mark.slow
def test_the_metrics_of_a_finished_run(tmp_path: Path) -> None:
    folder = copy("finished", tmp_path)
    refused, count = check(folder / "metrics.json", RunDirectory(folder, "finished").metrics)
    assert refused > count / 2
    shutil.rmtree(folder / "per_query")
    refused, count = check(folder / "metrics.json", lambda: read_directory(folder, "run"))
    assert refused > count / 2


def test_an_identity(tmp_path: Path) -> None:
    folder = copy("finished", tmp_path)
    file = folder / "run.json"
    content = json.loads(file.read_bytes())
    dataset = {"name": "a", "source": "b", "digest": "c", "counts": {"d": 1}}
    content |= {"descriptions": [{"params": {"a": "b"}, "dataset": dataset, "tags": {}}]}
    content |= {"files": [[str(folder / "config.yaml"), ""]], "children": ["trials/000"]}
    file.write_text(json.dumps(content))
    refused, count = check(file, lambda: has_unsent_data(folder, "mlflow"))
    assert refused > count / 2
    for child in ("/etc", "../other"):
        file.write_text(json.dumps(content | {"children": [child]}))
        with pytest.raises(UserError, match="is not in this one"):
            has_unsent_data(folder, "mlflow")


def test_a_line_of_steps(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    line = {"step": 2, "milliseconds": 5, "measured": {"loss": 0.5, "dev_loss": float("nan")}}
    good = json.dumps(line | {"step": 1}) + "\n"
    refusals: list[str] = []
    for text in map(text_of, edits(line)):
        file.write_text(good + text + "\n" + json.dumps(line | {"step": 3}) + "\n")
        for read in (lambda: StepLog(tmp_path).read_from(0, 99), lambda: read_curves(tmp_path, ["loss"])):
            try:
                read()
            except UserError as error:
                refusals.append(str(error))
    assert {line.partition(": is damaged or changed: ")[0] for line in refusals} == {f"{file} at byte {len(good)}"}
    assert len(refusals) > 50


def test_trials(tmp_path: Path) -> None:
    folder = copy("sweep", tmp_path)

    def read() -> None:
        trials = read_trials(folder)
        find_best(trials, "ndcg_at_10")
        if trials:
            sweep_rows(trials, "ndcg_at_10")

    refused, count = check(folder / "trials.json", read)
    assert refused > count / 2


def test_the_state_and_the_manifest_of_a_checkpoint(tmp_path: Path) -> None:
    folder = copy("finished/checkpoints/step-5", tmp_path)
    refused, count = check(folder / "state.json", lambda: read_state(folder))
    assert refused > count / 4
    refused, count = check(folder / "manifest.json", lambda: read_manifest(folder))
    assert refused > count / 2


def test_records_of_validation_and_refreshes(tmp_path: Path) -> None:
    write_record(tmp_path, Record(4, 0.5, {"auc": 0.5}))
    refused, count = check(tmp_path / "step-4.json", lambda: read_records(tmp_path))
    assert refused > count / 2
    write_stop(tmp_path, Stop(4, 6))
    refused, count = check(tmp_path / "stop.json", lambda: read_stop(tmp_path))
    assert refused > count / 2
    Ledger((Round(1, 5, 5, 7, 8, "d", "", {"seconds": 1.0}), Round(2, 10, 10))).write(tmp_path)

    def read() -> None:
        ledger = read_ledger(tmp_path)
        asdict(ledger)
        ledger.version(9)
        ledger.is_due(10, 5)

    refused, count = check(tmp_path / "rounds.json", read)
    assert refused > count / 2


@pytest.mark.slow
def test_manifests_of_stores_indexes_and_prepared_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    passages, prepared, index = copy("passages", tmp_path), copy("prepared", tmp_path), tmp_path / "index"
    rows = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    write_index(index, build_index(DocumentVectors.of(rows), IndexConfig(index="flat"), None, 0, 1), "flat", {})
    check(passages / "manifest.json", lambda: EmbeddingStore.open(passages).array())
    check(index / "manifest.json", lambda: read_meta(index))
    check(prepared / "manifest.json", lambda: open_dataset(prepared, ["train"]))


def test_a_comparison_of_an_edited_evaluation_is_a_page_or_one_line(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path)
    content = json.loads((folder / "results.json").read_bytes())
    for name in ("about", "models"):
        (folder / "results.json").write_text(json.dumps(content | {name: {}}))
        with suppress(UserError):
            compared(folder, tmp_path)
