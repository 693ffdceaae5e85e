"""Every JSON file of a run, edited at every place: it is still read, or refused in one line; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoding_case import Case
from evaluations import write_evaluation
from prepared import prepare

from indexes import write_index
from raytriever.core.errors import UserError
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import Request
from raytriever.evaluation.evaluation_files import read_per_query
from raytriever.evaluation.report_document import document
from raytriever.evaluation.results import Results
from raytriever.experiments.report.comparison_page import write_comparison
from raytriever.experiments.report.finished_runs import read_directory
from raytriever.experiments.report.html_page import choose_queries
from raytriever.experiments.tuning.trial_log import FINISHED, Trial, find_best, read_trials, sweep_rows, write_trials
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.index.approximate.build_index import build_index
from raytriever.retrieval.index.approximate.index_settings import IndexConfig
from raytriever.retrieval.index.approximate.stored_index import read_meta
from raytriever.tracking.run_state import RunState, has_unsent_data
from raytriever.tracking.step_log import StepLog, read_curves
from raytriever.training.checkpoint import State, read_state, write_state
from raytriever.training.dev_validation import Record, read_records, write_record
from raytriever.training.early_stopping import TrainerState
from raytriever.training.negative_refresh import Ledger, Round, read_ledger

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
            yield {name: item for name, item in value.items() if name != key}
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


def compared(folder: Path, to: Path) -> None:
    write_comparison(to / "page.html", [read_directory(folder, "run")])


def tables(folder: Path) -> None:
    document(Results.read(folder))


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


def test_an_identity(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    content = asdict(RunState("f80361af", "2146d41d", "letters-mw-seed0"))
    dataset = {"name": "a", "source": "b", "digest": "c", "counts": {"d": 1}}
    content |= {"descriptions": [{"params": {"a": "b"}, "dataset": dataset, "tags": {}}]}
    content |= {"files": [[str(tmp_path / "config.yaml"), ""]], "children": ["trials/000"]}
    file.write_text(json.dumps(content))
    refused, count = check(file, lambda: has_unsent_data(tmp_path, "mlflow"))
    assert refused > count / 2
    for child in ("/etc", "../other"):
        file.write_text(json.dumps(content | {"children": [child]}))
        with pytest.raises(UserError, match="is outside the run"):
            has_unsent_data(tmp_path, "mlflow")


def test_a_line_of_steps(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    line = {"step": 2, "milliseconds": 5, "metrics": {"loss": 0.5, "dev_loss": float("nan")}}
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
    rows = [(0, 0.4), (1, 0.5)]
    metrics = [{"ndcg_at_10": value, "mrr_at_10": value, "recall_at_100": 1.0, "auc": 0.9} for _, value in rows]
    trials = [Trial(n, {"loss.temperature": t}, FINISHED, metrics[n], 4, 28.9) for n, t in rows]
    write_trials(tmp_path, trials, "ndcg_at_10", planned=2)

    def read() -> None:
        trials = read_trials(tmp_path)
        find_best(trials, "ndcg_at_10")
        if trials:
            sweep_rows(trials, "ndcg_at_10")

    refused, count = check(tmp_path / "trials.json", read)
    assert refused > count / 2


def test_the_state_and_the_manifest_of_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "step-5"
    with committed_directory(folder) as aside:
        write_state(
            State(TrainerState(5, 5, 0.35), {"data": "39df", "loss.temperature": 0.05, "total_steps": 10}), aside
        )
    refused, count = check(folder / "state.json", lambda: read_state(folder))
    assert refused > count / 4
    refused, count = check(folder / "manifest.json", lambda: read_manifest(folder))
    assert refused > count / 2


def test_records_of_validation_and_refreshes(tmp_path: Path) -> None:
    write_record(tmp_path, Record(4, 0.5, {"auc": 0.5}))
    refused, count = check(tmp_path / "step-4.json", lambda: read_records(tmp_path))
    assert refused > count / 2
    Ledger((Round(1, 5, 7, 8, "d", "", {"seconds": 1.0}), Round(2, 10, 12))).write(tmp_path)

    def read() -> None:
        ledger = read_ledger(tmp_path)
        asdict(ledger)
        ledger.version(9)
        ledger.is_due(10, 5)

    refused, count = check(tmp_path / "rounds.json", read)
    assert refused > count / 2


@pytest.mark.slow
def test_manifests_of_stores_indexes_and_prepared_data(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, own_cache: Path
) -> None:
    prepared, index = prepare(Request(str(tiny_dataset)), output=tmp_path / "prepared"), tmp_path / "index"
    config = ModelConfig(model=str(tiny_encoder))
    passages = Case(config, load_retriever(config), open_dataset(tiny_dataset, []), tmp_path).encode("passages").path
    rows = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    write_index(index, build_index(rows, IndexConfig(index="flat"), None, 0, 1), "flat", {})
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
