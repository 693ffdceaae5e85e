"""One evaluation of two models and its files; quantized and truncated embeddings from one encoding."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beir import write_beir

from raytriever.core.errors import ConfigError, DataError, StorageError
from raytriever.core.store.commit import read_manifest
from raytriever.evaluation.differences.system_significance import pairs_with
from raytriever.evaluation.evaluated_datasets import describe_datasets
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.report_document import format_results, thresholds_markdown
from raytriever.evaluation.requested_models import EvaluatedModel, EvaluationJob, add_variants, read_models
from raytriever.evaluation.results import Results, check_output
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.evaluation.system_names import Bm25
from raytriever.evaluation.systems import Encoders, RetrievalBackend
from raytriever.metrics.auc import pooled_auc
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.shard_encoder import encode_in_process
from raytriever.tracking.tracker import DatasetRecord, Point, Tracker

METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_5", "map_at_100", "auc", "query_auc")


@dataclass
class Kept(Tracker):
    """Tracker that stores its points."""

    points: dict[str, float] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    status: str = ""

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        assert dataset.counts["test_queries"]
        self.settings, self.tags = dict(config), dict(tags)

    def log(self, points: Sequence[Point]) -> None:
        self.points |= {point.name: point.value for point in points}

    def log_file(self, path: Path, folder: str = "") -> None:
        self.files.append(path.name)

    def finish(self, status: str) -> None:
        self.status = status


@dataclass(frozen=True)
class Done:
    """The evaluation, and what it was asked."""

    output: Path
    results: Results
    job: EvaluationJob
    tracker: Kept
    again: Callable[..., Any]


@pytest.fixture(scope="module")
def done(tiny_encoder: Path, tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("evaluation")
    own = shutil.copytree(tiny_encoder, folder / "tiny")  # it gets a calibration.json
    forums = folder / "forums"
    for name in ("one", "two"):
        shutil.copytree(tiny_dataset, forums / name)
    few = forums / "two" / "qrels" / "test.tsv"
    graded = ["q128\td128\t2", "q128\td3\t1", "q128\td4\t0", *few.read_text().split("\n")[2:9]]
    few.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{row}\n" for row in graded))
    job = EvaluationJob(
        models=read_models(["bm25", f"tiny={own}"], ModelConfig()),
        datasets=describe_datasets([str(tiny_dataset), str(forums)], "test", Protocol(METRICS)),
        baselines=["bm25"],
        targets=[("recall", 0.8), ("answered", 0.6)],
        confidence="score",
        precision="fp32",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYTRIEVER_CACHE", str(folder / "cache"))

        def again(tracker: Kept, fresh: bool = False, changed: EvaluationJob = job, report: Any = None) -> Any:
            return run_evaluation(changed, folder / "out", fresh, lambda: tracker, lambda _: None, write_page=report)

        tracker = Kept()
        results = again(tracker)
        yield Done(folder / "out", results, job, tracker, again)


def test_a_divided_data_set_is_the_mean_of_its_parts_whatever_their_sizes(done: Done) -> None:
    results = done.results
    about = results.about["forums"]
    assert (about.queries, about.documents, about.parts) == (40, 320, ["forums/one", "forums/two"])
    for model in ("bm25", "tiny"):
        for metric in METRICS:
            parts = [results.parts[model][name][metric] for name in about.parts]
            assert results.models[model]["forums"][metric] == pytest.approx(np.mean(parts), abs=1e-12)
    against = pairs_with(results.pairs, "bm25")
    [row] = [item for item in against if (item.dataset, item.metric) == ("forums", "map_at_100")]
    apart = results.models["tiny"]["forums"]["map_at_100"] - results.models["bm25"]["forums"]["map_at_100"]
    assert row.difference == pytest.approx(apart, abs=1e-9)


def test_the_directory_is_what_was_agreed(done: Done) -> None:
    results = done.results
    assert Results.read(done.output) == results
    assert read_manifest(done.output)["meta"] == {"kind": "evaluation"}
    # Two data sets and their mean; the pooled AUC is tested by pseudo-values.
    assert len(results.pairs) == 3 * len(METRICS)
    for model in ("bm25", "tiny"):
        with np.load(done.output / "scores" / model / "forums.npz", allow_pickle=False) as pools:
            assert len(pools["positives"]) == 41
            assert pools["negative_queries"].max() == 39
        with np.load(done.output / "scores" / model / "letters.npz", allow_pickle=False) as pools:
            result = pooled_auc(pools["positives"], pools["negatives"])
        assert result == pytest.approx(results.models[model]["letters"]["auc"], abs=1e-12)
    content = json.loads((done.output / "per_query" / "forums.json").read_bytes())
    position = content["queries"].index("two/q128")
    assert [row[0] for row in content["relevant"][position]] == ["d128", "d3"]
    assert content["relevant"][position][0][3] == 2
    top = content["models"]["bm25"]["top"][position]
    assert (len(top), top[0][0], top[0][4]) == (5, "d128", 2)
    assert done.tracker.status == "FINISHED"
    assert done.tracker.points["tiny/forums/map_at_100"] == results.models["tiny"]["forums"]["map_at_100"]
    against = pairs_with(results.pairs, "bm25")
    [row] = [item for item in against if (item.dataset, item.metric) == ("forums", "auc")]
    assert done.tracker.points["significance/tiny-bm25/forums/auc_p"] == row.p_holm
    assert done.tracker.points["absent_relevant/letters"] == 0
    # `compare` reads names of three parts as MODEL/DATASET/METRIC.
    models = {name.split("/")[0] for name in done.tracker.points if name.count("/") == 2}
    assert models == {"bm25", "tiny"}
    assert {"results.json", "table.md", "table.tex", "runs", "per_query"} <= set(done.tracker.files)
    assert done.tracker.tags == {"raytriever.command": "evaluate"}
    used = done.tracker.settings["models"]["tiny"]
    assert (used["pooling"], used["passage_length"], used["precision"]) == ("mean", 64, "fp32")
    assert done.tracker.settings["device"] in ("cpu", "cuda")
    assert "tiny: dimension 32" in format_results(results)
    assert None not in used.values()


def test_thresholds_are_chosen_on_one_split_and_checked_on_the_other(done: Done) -> None:
    rows = done.results.thresholds
    assert len(rows) == 2 * 2 * 2
    [row] = [row for row in rows if (row.dataset, row.model, row.target) == ("letters", "tiny", "recall")]
    assert row.threshold is not None
    with np.load(done.output / "scores" / "tiny" / "letters.npz", allow_pickle=False) as pools:
        above = float((pools["positives"] >= row.threshold).mean())
    assert (row.chosen_on, row.checked_on) == ("dev", "test")
    assert row.chosen is not None
    assert row.chosen >= 0.8
    assert row.checked == row.fractions["pair_recall"]
    assert row.checked.value == pytest.approx(above)
    assert row.checked.low <= above <= row.checked.high
    [row] = [row for row in rows if (row.dataset, row.model, row.target) == ("letters", "tiny", "answered")]
    assert (row.checked_on, row.confidence) == ("dev and test", "score")  # 64 queries of two small splits
    points, name = done.tracker.points, "calibration/tiny/letters/answered-0.6"
    assert (points[f"{name}/threshold"], points[f"{name}/chosen"]) == (row.threshold, row.chosen)
    for figure in ("coverage", "top_precision", "wrong"):
        fraction = row.fractions[figure]
        assert points[f"{name}/{figure}"] == fraction.value == fraction.count / fraction.total
        assert points[f"{name}/{figure}_low"] == fraction.low
    assert not any(name.endswith("/wanted") for name in points)
    [own] = [
        item for item in done.results.auc if item.model == "tiny"
    ]  # of two parts there is a mean without an interval
    assert own.low is not None
    assert own.low < own.auc == done.results.models["tiny"]["letters"]["auc"]
    assert points["auc/tiny/letters/low"] == own.low
    text = (done.output / "table.md").read_text()
    assert thresholds_markdown(rows) in text
    assert "nan" not in text


def test_results_are_replaced_by_the_same_command_alone(done: Done, tmp_path: Path) -> None:
    asked = done.results.request
    check_output(done.output, asked, fresh=False)
    check_output(tmp_path / "none", asked, fresh=False)
    with pytest.raises(ConfigError, match=r"holds another evaluation \(metrics: .* there and .* here\)"):
        check_output(done.output, {**asked, "metrics": ["map"]}, fresh=False)
    check_output(done.output, {**asked, "metrics": ["map"]}, fresh=True)
    # The same files by another path are the same evaluation, other files are not.
    [name, *_] = asked["data sets"]
    about = asked["data sets"][name]
    for same in (True, False):
        parts = {
            part: f"{path}/../{Path(path).name}" if same else f"{path}/qrels" for part, path in about["parts"].items()
        }
        other = {**asked, "data sets": {**asked["data sets"], name: {**about, "parts": parts}}}
        with nullcontext() if same else pytest.raises(ConfigError, match="holds another evaluation"):
            check_output(done.output, other, fresh=False)
    older = tmp_path / "older"
    older.mkdir()
    (older / "results.json").write_text('{"split": "test", "models": {}}')
    with pytest.raises(StorageError, match="has no format number; this version reads format 3; evaluate again"):
        check_output(older, asked, fresh=False)
    (older / "results.json").unlink()
    (older / "cat.jpg").touch()
    for fresh in (False, True):
        with pytest.raises(ConfigError, match="is not empty and holds no evaluation; give another directory"):
            check_output(older, asked, fresh)


@pytest.mark.slow
def test_what_fails_leaves_the_results_that_were_there(done: Done) -> None:
    before = (done.output / "results.json").read_bytes()
    tracker = Kept()

    def damaged(folder: Path) -> None:
        assert (folder / "table.md").is_file()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        done.again(tracker, write_page=damaged)
    assert tracker.status == "FAILED"
    assert (done.output / "results.json").read_bytes() == before
    assert not list(done.output.parent.glob(".out.aside*"))


def test_no_more_encoders_are_kept_than_memory_should_hold(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    a, b = ModelConfig(str(tiny_encoder)), ModelConfig(str(tiny_encoder), query_length=9)
    models = [EvaluatedModel("bm25", Bm25()), EvaluatedModel("a", a), EvaluatedModel("b", b)]
    cpu = torch.device("cpu")
    both, one = (Encoders(models, "fp32", cpu, print) for _ in range(2))
    kept = both[a], both[b]
    assert both[a] is kept[0]
    monkeypatch.setattr("raytriever.evaluation.systems.KEPT_BYTES", 1)
    first = one[a]
    assert one[a] is first
    assert one[b] is not kept[1]
    assert one[a] is not first  # it had to give way, and was loaded again
    assert list(one.systems) == ["bm25", "a", "b"]
    assert one.systems["b"]["dim"] == 32


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
    with pytest.raises(DataError, match="small: has fewer than two documents, which int8 needs for its ranges; leave"):
        run_evaluation(changed, tmp_path / "out", False, Tracker, lambda _: None)
    assert not (tmp_path / "out").exists()
