"""Quantized and truncated embeddings: from one encoding, equal to models of that dimension, and to their own table."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beir import write_beir

from raytriever.core.errors import DataError
from raytriever.evaluation.differences.system_significance import pairs_with
from raytriever.evaluation.evaluated_datasets import describe_datasets
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.report_document import format_results
from raytriever.evaluation.requested_models import EvaluationJob, add_variants, read_models
from raytriever.evaluation.results import Results
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.evaluation.systems import RetrievalBackend
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.shard_encoder import encode_in_process
from raytriever.tracking.tracker import Tracker


@pytest.fixture
def job(tiny_encoder: Path, tiny_dataset: Path, own_cache: Path) -> EvaluationJob:
    """An evaluation of BM25 and of an encoder in all types, whole and of 12 components."""
    models = read_models(["bm25", f"tiny={tiny_encoder}"], ModelConfig())
    return EvaluationJob(
        models=add_variants(models, EvaluationConfig(dtype="fp32,int8,binary,ubinary", truncate_dim="12,32")),
        datasets=describe_datasets([str(tiny_dataset)], "test", Protocol(("ndcg_at_10", "auc"))),
        baselines=["tiny"],
        targets=[("recall", 0.2)],
        precision="fp32",
    )


@pytest.mark.slow
def test_quantized_variants_are_evaluated_from_one_encoding(
    job: EvaluationJob, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = []

    def encode(*arguments: Any) -> None:
        encoded.append(1)
        encode_in_process(*arguments)

    output = tmp_path / "out"
    results = run_evaluation(job, output, False, Tracker, lambda _: None, RetrievalBackend(encode))
    assert len(encoded) == 1
    names = [f"tiny-{dim}-{dtype}" for dim in (12, 32) for dtype in ("fp32", "int8", "binary", "ubinary")]
    assert list(results.models) == ["bm25", "tiny", *names]
    rows = {row.system: row for row in Results.read(output).variants}
    assert list(rows) == ["tiny", *names]
    assert [row.bytes for row in rows.values()] == [128, 48, 12, 2, 2, 128, 32, 4, 4]
    assert {row.model for row in pairs_with(results.pairs, "tiny")} == {"bm25", *names}
    # All components in fp32 are the model itself; the two binary types differ in the stored type alone.
    metrics = {name: results.models[name]["letters"] for name in results.models}
    assert metrics["tiny-32-fp32"] == metrics["tiny"]
    assert metrics["tiny-12-binary"] == metrics["tiny-12-ubinary"] != metrics["tiny-12-fp32"]
    assert rows["tiny"].changed == rows["tiny-32-fp32"].changed == 0
    assert rows["tiny-32-int8"].recall > 0
    with np.load(output / "scores" / "tiny-12-int8" / "letters.npz", allow_pickle=False) as pools:
        accepted = pools["positives"] >= rows["tiny"].threshold
    assert rows["tiny-12-int8"].recall == pytest.approx(accepted.mean())
    assert rows["tiny-12-int8"].metrics == metrics["tiny-12-int8"]
    # The threshold is the calibrated one of the model itself, not those of the forms.
    [own] = [row for row in results.thresholds if row.model == "tiny"]
    assert {row.threshold for row in rows.values()} == {own.threshold}
    assert (rows["tiny"].recall, rows["tiny"].chosen) == (own.checked.value, "recall 0.2 on dev")
    content = json.loads((output / "per_query" / "letters.json").read_bytes())["models"]
    answered = {name: [top[0][3] >= own.threshold for top in content[name]["top"]] for name in rows}
    for name, row in rows.items():
        assert row.changed == np.not_equal(answered[name], answered["tiny"]).mean()
    assert rows["tiny-32-binary"].changed > 0  # sums of components are no cosines
    text = (output / "table.md").read_text()
    assert f"| letters | tiny | 12 | int8 | 12 | {metrics['tiny-12-int8']['ndcg_at_10']:.4f} |" in text
    assert re.search("^letters +tiny +12 +int8 +12 ", format_results(results), re.MULTILINE)
    # The same dimension from the model itself, encoded again.
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "other"))
    narrow = read_models([f"narrow={tiny_encoder}"], ModelConfig(truncate_dim=12))
    alone = replace(job, models=narrow, baselines=["narrow"], targets=())
    same = run_evaluation(alone, tmp_path / "narrow", False, Tracker, lambda _: None)
    assert same.models["narrow"]["letters"] == pytest.approx(metrics["tiny-12-fp32"], abs=1e-6)


def test_a_corpus_without_a_sample_is_one_line(job: EvaluationJob, tiny_dataset: Path, tmp_path: Path) -> None:
    small = write_beir(tmp_path / "small", ["one"], ["what is one"], test=[(0, 0)])
    changed = replace(job, datasets=describe_datasets([str(small)], "test"), targets=())
    with pytest.raises(DataError, match="small: has no calibration sample for int8, which needs two documents; leave"):
        run_evaluation(changed, tmp_path / "out", False, Tracker, lambda _: None)
    assert not (tmp_path / "out").exists()
