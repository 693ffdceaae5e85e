"""An interrupted evaluation keeps each model's results on each data set, and the same command goes on after them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from timeless import without_seconds

from raytriever.evaluation.dataset_evaluation import EvaluationStore
from raytriever.evaluation.evaluate_split import Evaluation
from raytriever.evaluation.evaluated_datasets import describe_datasets
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.requested_models import EvaluationJob, read_models
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.evaluation.systems import RetrievalBackend
from raytriever.models.model_settings import ModelConfig
from raytriever.tracking.tracker import Tracker


def evaluate(encoder: Path, dataset: Path, output: Path, encode: Callable[..., None] | None = None) -> list[str]:
    """Measure BM25 and an encoder, with thresholds; returns the lines that were said."""
    protocol = Protocol(("ndcg_at_10", "map_at_100", "auc", "query_auc"))
    job = EvaluationJob(
        models=read_models(["bm25", f"tiny={encoder}"], ModelConfig()),
        datasets=describe_datasets([str(dataset)], "test", protocol),
        baselines=["bm25"],
        targets=[("recall", 0.8)],
        precision="fp32",
    )
    lines: list[str] = []
    workers = RetrievalBackend(encode) if encode else None
    run_evaluation(job, output, False, Tracker, lines.append, workers)
    return [line for line in lines if "evaluated before" in line]


def content(output: Path) -> dict[str, bytes]:
    """The files of an evaluation but for its manifest, without the seconds of search."""
    files = (file for file in sorted(output.rglob("*")) if file.is_file() and file.name != "manifest.json")
    return {str(file.relative_to(output)): without_seconds(file) for file in files}


@pytest.fixture(scope="module")
def undisturbed(tiny_encoder: Path, tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an evaluation that nothing interrupted."""
    output = tmp_path_factory.mktemp("undisturbed") / "whole"
    assert evaluate(tiny_encoder, tiny_dataset, output) == []
    assert not output.with_name("whole.unfinished").exists()
    return output


def fail(*_: object) -> None:
    raise InterruptedError("the encoder is gone")


@pytest.mark.slow
def test_what_was_evaluated_before_an_interruption_is_used(
    undisturbed: Path, tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "other"))
    output = tmp_path / "out"
    with pytest.raises(InterruptedError):
        evaluate(tiny_encoder, tiny_dataset, output, encode=fail)
    unfinished = tmp_path / "out.unfinished"
    assert {path.name for path in unfinished.iterdir()} == {"bm25.letters.test", "bm25.letters.dev"}
    assert not output.exists()
    lines = evaluate(tiny_encoder, tiny_dataset, output)
    assert lines == [
        f"letters, {split}: bm25 was evaluated before, see {unfinished / f'bm25.letters.{split}'}"
        for split in ("test", "dev")
    ]
    assert content(output) == content(undisturbed)
    assert not unfinished.exists()


def test_only_the_same_measurement_is_used_and_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    one, scores = np.zeros(1, np.int64), np.ones(1, np.float32)
    table = one.reshape(1, 1), scores.reshape(1, 1)
    values, means = {"query_auc": np.array([np.nan])}, {"auc": 0.1 + 0.2, "query_auc": np.nan}
    evaluation = Evaluation(one, *table, scores, scores, one, one, values, means)
    lines: list[str] = []
    store, asked = EvaluationStore(tmp_path / "out.unfinished", lines.append), []

    def evaluate() -> Evaluation:
        asked.append(1)
        return evaluation

    store.get("a", "set", "test", {"weights": 1}, evaluate)
    result = store.get("a", "set", "test", {"weights": 1}, evaluate)
    assert (len(asked), len(lines)) == (1, 1)
    assert result.metrics["auc"] == 0.1 + 0.2
    assert np.isnan(result.metrics["query_auc"])
    assert np.isnan(result.per_query["query_auc"]).all()
    assert {name: value.dtype for name, value in vars(result).items() if isinstance(value, np.ndarray)} == {
        name: value.dtype for name, value in vars(evaluation).items() if isinstance(value, np.ndarray)
    }
    store.get("a", "set", "test", {"weights": 2}, evaluate)
    assert len(asked) == 2
    file = tmp_path / "out.unfinished" / "a.set.test" / "evaluation.npz"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    store.get("a", "set", "test", {"weights": 2}, evaluate)
    assert (len(asked), len(lines)) == (3, 1)
