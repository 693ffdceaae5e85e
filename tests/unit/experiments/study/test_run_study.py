"""Settings that decide the results of a study, and calls that continue an earlier one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluations import about_of

from raytriever.core.errors import ConfigError, StorageError
from raytriever.core.interruption import check_interrupted, interruptible
from raytriever.evaluation.evaluated_datasets import EvaluationDataset
from raytriever.evaluation.protocol import Protocol
from raytriever.evaluation.results import Results, as_read
from raytriever.experiments.study.claims import Claim, above
from raytriever.experiments.study.outcome import read_variant, seeds_of, write_study
from raytriever.experiments.study.run_study import SETTINGS, check_directory, run_variants, settings_of
from raytriever.experiments.study.study_file import Study, Variant
from raytriever.experiments.study.train_variant import evaluation_of, open_variant, variant_folder
from raytriever.metrics.auc import auc_pseudo_values, pooled_auc
from raytriever.training.run_config import Config, dump_config, override


def study(data: Path, temperature: float = 0.01) -> Study:
    """Return a study of MW, CL and the untrained encoder on a data set in its folder."""
    config = override(Config(), {"data": {"dataset": str(data)}, "loss": {"temperature": temperature}})
    evaluated = {"letters": EvaluationDataset("letters", {"letters": str(data)}, "test", protocol=Protocol(("auc",)))}
    variants = (
        Variant("before", "before", evaluated, None, model="minilm", lengths=(16, 32)),
        Variant("cl", "CL", evaluated, config),
        Variant("mw", "MW", evaluated, config),
    )
    return Study("mw-in-domain", "Title", "Table 1", variants, 3, ("CL",))


def start_study(folder: Path) -> Study:
    """Write the directory of a study that has started: a variant that was evaluated as it is and one that trains."""
    (folder / "data" / "letters").mkdir(parents=True)
    started = study(folder / "data" / "letters")
    (folder / SETTINGS).write_text(json.dumps(settings_of(started)))
    before, cl, _ = started.variants
    run, _ = open_variant(folder, before, 0)
    run.begin("model: {model: minilm}")
    (run.path / "evaluation").mkdir()
    request = as_read(evaluation_of(before, "minilm", "fp32").content())
    Results(request=request).write(run.path / "evaluation")
    run, config = open_variant(folder, cl, 1)
    assert config is not None
    run.begin(dump_config(config))
    return started


def test_a_study_continues_after_its_directory_was_moved(tmp_path: Path) -> None:
    start_study(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    check_directory(tmp_path / "there", "mw-in-domain")
    before, cl, _ = study(tmp_path / "there" / "data" / "letters").variants
    assert open_variant(tmp_path / "there", before, 0)[0].state == "interrupted"
    assert open_variant(tmp_path / "there", cl, 1)[0].state == "interrupted"
    assert open_variant(tmp_path / "there", cl, 2)[0].state == "new"


def test_variants_of_other_settings_are_refused(tmp_path: Path) -> None:
    started = start_study(tmp_path)
    other = study(tmp_path / "data" / "letters", temperature=0.05).variants[1]
    line = r"variant cl/seed-1: holds a run with other settings \(loss.temperature is 0.01 there and 0.05 here\)"
    with pytest.raises(ConfigError, match=line):
        open_variant(tmp_path, other, 1)
    deeper = {"letters": replace(started.variants[0].datasets["letters"], protocol=Protocol(("ndcg_at_10",)))}
    with pytest.raises(ConfigError, match=r"variant before/as-it-is: holds another evaluation \(data sets: "):
        open_variant(tmp_path, replace(started.variants[0], datasets=deeper), 0)


def test_a_setting_is_overridden_in_every_stage() -> None:
    base = override(Config(), {"training": {"seed": 5}})
    config = override(replace(base, stages=(base, base)), {"training": {"seed": 2}})
    assert [training.training.seed for training in (config, *config.stages)] == [2, 2, 2]


def test_an_untrained_encoder_has_one_seed(tmp_path: Path) -> None:
    before, _, mw = study(tmp_path).variants
    assert list(seeds_of(before, 3)) == [0]
    assert list(seeds_of(mw, 3)) == [0, 1, 2]
    assert variant_folder(tmp_path, before, 0) == tmp_path / "variants" / "before" / "as-it-is"
    assert variant_folder(tmp_path, mw, 2) == tmp_path / "variants" / "mw" / "seed-2"


class VariantFolders:
    """Directories of finished variants with chosen metrics, as `study.train_variant` writes them."""

    def __init__(self, output: Path, plan: Study) -> None:
        self.output, self.study = output, plan

    def write(self, name: str, seed: int, mean: float) -> None:
        """Write a finished variant."""
        variant = next(variant for variant in self.study.variants if variant.name == name)
        folder = variant_folder(self.output, variant, seed)
        path = folder / "evaluation"
        for subfolder in ("per_query", "scores/after"):
            (path / subfolder).mkdir(parents=True)
        rng = np.random.default_rng([seed, len(name)])
        pools = {
            "positives": mean + rng.normal(0, 0.3, 20),
            "negatives": rng.normal(0, 0.3, 100),
            "positive_queries": np.arange(20),
            "negative_queries": np.repeat(np.arange(20), 5),
        }
        np.savez_compressed(path / "scores" / "after" / "letters.npz", **pools)
        metrics = {"auc": pooled_auc(pools["positives"], pools["negatives"])}
        Results(models={"after": {"letters": metrics}}, about={"letters": about_of(20, 60)}).write(path)
        queries = [str(query) for query in range(20)]
        auc = auc_pseudo_values(*(pools[key] for key in pools), 20).tolist()
        models = {"after": {"metrics": {"ndcg_at_10": [0.5, None] * 10}, "auc": auc, "top": [[]] * 20}}
        values = {"dataset": "letters", "queries": queries, "texts": queries, "models": models, "relevant": [[]] * 20}
        (path / "per_query" / "letters.json").write_text(json.dumps(values))
        (folder / "metrics.json").write_text(json.dumps({"steps": 4, "best": None} if variant.curriculum else {}))
        (folder / "steps.jsonl").write_text('{"step": 1, "milliseconds": 0, "metrics": {"step_seconds": 1.5}}\n')


def finish_study(output: Path) -> Study:
    """Write a study whose variants are all finished, with two seeds each."""
    finished = study(output / "data" / "letters")
    variants = VariantFolders(output, finished)
    variants.write("before", 0, 0.0)
    for seed in (0, 1):
        variants.write("cl", seed, 0.1)
        variants.write("mw", seed, 1.0)
    return replace(
        finished,
        claims=(Claim("MW is higher", "section 5", above("MW", "CL", ("auc",))),),
        paper={("MW", "letters", "auc"): 0.81},
    )


def test_dev_losses_of_all_seeds_are_results(tmp_path: Path) -> None:
    finished = finish_study(tmp_path)
    for (variant, seed), values in {
        ("cl", 0): [0.5, 0.6],
        ("cl", 1): [0.7],
        ("mw", 0): [0.8],
        ("mw", 1): [0.9],
    }.items():
        lines = [
            {"step": 25 * number, "milliseconds": number, "metrics": {"loss": 1.0, "dev_loss": value}}
            for number, value in enumerate(values, 1)
        ]
        folder = tmp_path / "variants" / variant / f"seed-{seed}"
        (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_study(finished, tmp_path, 2)
    curves = json.loads((tmp_path / "results.json").read_text())["dev_loss"]
    assert curves["cl"] == [[[25, 0.5], [50, 0.6]], [[25, 0.7]]]
    assert curves["mw"][1] == [[25, 0.9]]
    assert (tmp_path / "figures" / "dev-loss.png").exists()


def test_the_steps_of_mined_tables_are_results(tmp_path: Path) -> None:
    finished = finish_study(tmp_path)
    refresh = {"refresh": {"refresh_every": 5}}
    variants = tuple(
        replace(variant, curriculum=override(variant.curriculum, refresh)) if variant.name == "mw" else variant
        for variant in finished.variants
        if variant.curriculum
    )
    lines = [{"step": step, "milliseconds": step, "metrics": {"loss": 1.0}} for step in range(1, 10)]
    lines[7]["metrics"]["refresh_staleness_steps"] = 2.0
    folder = tmp_path / "variants" / "mw" / "seed-1"
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_study(replace(finished, variants=variants), tmp_path, 2)
    results = json.loads((tmp_path / "results.json").read_text())
    assert [result.get("tables") for result in results["trainings"]] == [None, None, [], [[8, 2.0]]]
    lines = (tmp_path / "study.md").read_text().splitlines()
    ends = {
        line.split("|")[1].strip() + line.split("|")[2].strip(): line.split("|")[-2].strip()
        for line in lines
        if "| " in line
    }
    assert (ends["cl0"], ends["mw0"], ends["mw1"]) == ("-", "none", "8 (5)")


@pytest.mark.slow
def test_the_outcome_is_written_from_the_directories_of_the_variants_alone(tmp_path: Path) -> None:
    finished = finish_study(tmp_path)
    write_study(finished, tmp_path, 2)
    results = json.loads((tmp_path / "results.json").read_text())
    mw = results["rows"]["MW"]["letters"]["auc"]
    assert len(mw["values"]) == 2
    assert mw["mean"] == pytest.approx(sum(mw["values"]) / 2)
    tests = [row for row in results["pairs"] if row["metric"] == "auc" and row["dataset"] == "letters"]
    [against_cl] = [row for row in tests if {row["model"], row["against"]} == {"MW", "CL"}]
    assert (mw["mark"] == "+") == (against_cl["model"] == "MW" and against_cl["p_holm"] < 0.05), tests
    assert len(results["rows"]["before"]["letters"]["auc"]["values"]) == 1
    assert results["rows"]["before"]["letters"]["auc"]["deviation"] is None
    assert [(result["variant"], result["seed"]) for result in results["trainings"]] == [
        ("cl", 0),
        ("cl", 1),
        ("mw", 0),
        ("mw", 1),
    ]
    assert results["claims"][0]["verdict"] == "held"
    page = (tmp_path / "study.md").read_text()
    assert "Table 1; 2 seeds" in page
    assert "[81]" in page
    assert "## The paper's values" in page
    assert "**held**" in page
    assert {path.name for path in (tmp_path / "figures").glob("*.png")} == {"roc.png", "scores.png"}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write_study(finished, tmp_path, 2)
    assert before == {path: path.read_bytes() for path in before}
    write_study(finished, tmp_path, 1)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert len(rows["MW"]["letters"]["auc"]["values"]) == 1


def test_the_metrics_of_a_variant_are_read_with_pseudo_values_of_its_auc(tmp_path: Path) -> None:
    variant, folder = finish_study(tmp_path).variants[2], tmp_path / "variants" / "mw" / "seed-1"
    one = read_variant(variant, folder, 1)["letters"]
    assert one.seed == 1
    assert one.metrics == Results.read(folder / "evaluation").models["after"]["letters"]
    assert one.per_query["auc"].mean() == pytest.approx(one.metrics["auc"])
    assert np.isnan(one.per_query["ndcg_at_10"][1])
    (folder / "evaluation" / "per_query" / "letters.json").write_bytes(b"damaged")
    with pytest.raises(StorageError, match=r"letters\.json: is damaged or changed"):
        read_variant(variant, folder, 1)


def test_a_full_disk_is_reported_in_one_line(full_disk: Path) -> None:
    with pytest.raises(StorageError, match="no space left on the disk"):
        check_directory(full_disk / "study", "mw-in-domain")


def pairs_of(folder: Path, seeds: int) -> list[tuple[Variant, int]]:
    return [(study(folder).variants[2], seed) for seed in range(seeds)]


def test_after_an_error_the_variants_that_run_are_finished_and_no_other_starts(tmp_path: Path) -> None:
    both, started, finished = threading.Barrier(2, timeout=2), [], []

    def run(number: int, variant: Variant, seed: int) -> None:
        started.append(number)
        both.wait()
        if number == 1:
            raise ConfigError("has failed", "variant one")
        time.sleep(0.05)
        finished.append(number)

    with pytest.raises(ConfigError, match="variant one: has failed"):
        run_variants(run, pairs_of(tmp_path, 6), 2)
    assert (sorted(started), finished) == ([1, 2], [2])


def test_an_interruption_while_a_thread_starts_ends_its_variant_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        os.kill(os.getpid(), signal.SIGTERM)

    def run(number: int, variant: Variant, seed: int) -> None:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            check_interrupted()
            time.sleep(0.1)

    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        run_variants(run, pairs_of(tmp_path, 4), 2)
    assert not threads_of_variants()


def threads_of_variants() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("raytriever-variant")]
