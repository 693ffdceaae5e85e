"""Comparison of finished runs: reading of directories, names of rows, and contents of the page."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from evaluations import about_of, write_evaluated, write_evaluation

from raytriever.core.errors import UserError
from raytriever.core.store.commit import FORMAT
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.differences.system_significance import pair_rows
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.results import Results
from raytriever.evaluation.systems import Bm25System
from raytriever.experiments.report import comparison_page
from raytriever.experiments.report.comparison_page import dataset_labels, row_names, seed_tables, write_comparison
from raytriever.experiments.report.finished_runs import FinishedRun, read_directory


def training_run(folder: Path, loss: str, after: float, split: str = "test") -> Path:
    """Write the files of a finished run that a comparison reads."""
    folder.mkdir()
    metrics = {"bm25": {"ndcg_at_10": 0.4}, "before": {"ndcg_at_10": 0.3}, "after": {"ndcg_at_10": after}}
    (folder / "metrics.json").write_text(json.dumps({"format": FORMAT}))
    (folder / "evaluation").mkdir()
    models = {name: {"letters": values} for name, values in metrics.items()}
    Results(models=models, about={"letters": about_of(40, split=split)}).write(folder / "evaluation")
    (folder / "config.yaml").write_text(yaml.safe_dump({"hash": loss, "loss": {"loss": loss}, "training": {"seed": 0}}))
    lines = [{"step": step, "milliseconds": step, "metrics": {"loss": 1 / step}} for step in (1, 2, 3)]
    lines += [{"step": 2, "milliseconds": 2, "metrics": {"dev_loss": 0.5}}]
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "meas')
    return folder


def test_a_run_has_figures_splits_settings_and_curves(tmp_path: Path) -> None:
    run = read_directory(training_run(tmp_path / "mw", "mw", 0.5), "mw")
    assert run.metrics["after"] == {"letters": {"ndcg_at_10": 0.5}}
    assert run.splits == {"letters": "test"}
    assert run.settings == {"loss.loss": "mw", "training.seed": "0"}
    assert run.curves == {"loss": [(1, 1.0), (2, 0.5), (3, 1 / 3)], "dev_loss": [(2, 0.5)]}


def test_curves_of_stages_are_joined(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", "mw", 0.5)
    for stage in ("2-b", "10-c", "1-a"):
        (folder / "stages" / stage).mkdir(parents=True)
        (folder / "stages" / stage / "steps.jsonl").write_bytes((folder / "steps.jsonl").read_bytes())
    (folder / "steps.jsonl").unlink()
    curve = read_directory(folder, "run").curves["dev_loss"]
    assert [step for step, _ in curve] == [2, 5, 8]


def run_of(name: str, trained: bool = True, **figures: float) -> FinishedRun:
    rows: Any = {model: {"letters": {"ndcg_at_10": value}} for model, value in figures.items()}
    return FinishedRun(name, rows, {"letters": "test"}, {}, trained=trained)


def test_runs_share_rows_with_equal_values() -> None:
    same = [run_of("mw", bm25=0.4, before=0.3, after=0.5), run_of("cl", bm25=0.4, before=0.3, after=0.4)]
    assert set(row_names(same).values()) == {"bm25", "before", "mw", "cl"}
    other = [same[0], run_of("cl", bm25=0.4, before=0.2, after=0.4)]
    assert set(row_names(other).values()) == {"bm25", "before", "cl: before", "mw", "cl"}
    evaluated = [run_of("one", trained=False, bm25=0.4, a=0.5), run_of("two", trained=False, bm25=0.3, b=0.5)]
    assert list(row_names(evaluated).values()) == ["one: bm25", "a", "two: bm25", "b"]
    clash = [run_of("one", trained=False, mw=0.4), run_of("mw", before=0.3, after=0.5)]
    assert list(row_names(clash).values()) == ["one: mw", "mw", "before"]


def seeded(loss: str, seed: int, level: float, **settings: str) -> FinishedRun:
    values = level + np.random.default_rng(0).normal(0, 0.1, 40) + np.random.default_rng([seed, 1]).normal(0, 0.01, 40)
    rows = {"before": {"letters": {"ndcg_at_10": 0.3}}, "after": {"letters": {"ndcg_at_10": float(values.mean())}}}
    models = {
        name: {"metrics": {"ndcg_at_10": item.tolist()}, "top": [[]] * 40}
        for name, item in (("before", np.full(40, 0.3)), ("after", values))
    }
    queries = {"letters": {"queries": [str(n) for n in range(40)], "models": models}}
    config = {"loss.loss": loss, "training.seed": str(seed), "training.num_workers": str(1 + seed), **settings}
    return FinishedRun(f"{loss}-{seed}", rows, {"letters": "test"}, config, queries=queries, trained=True)


def test_runs_that_differ_in_the_seed_alone_are_one_setting() -> None:
    runs = [seeded("mw", seed, 0.5) for seed in range(3)] + [seeded("infonce", seed, 0.4) for seed in range(3)]
    runs += [runs[0], seeded("joint", 0, 0.5)]  # one run twice, and a setting with one seed
    names = row_names([replace(run, name=f"{run.name} {number}") for number, run in enumerate(runs)])
    merged = {name: runs[index].queries["letters"]["models"][model] for (index, model), name in names.items()}
    [table] = seed_tables(runs, names, {"letters": {"models": merged}})
    shown = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    assert [row[2:5] for row in shown] == [
        ["loss.loss mw (3 seeds)", "loss.loss infonce (3 seeds)", "yes, p <0.001"],
        ["loss.loss mw (3 seeds)", "before", "yes, p <0.001"],
        ["loss.loss infonce (3 seeds)", "before", "yes, p <0.001"],
    ]
    assert seed_tables(runs[:1] + runs[3:4], names, {"letters": {"models": merged}}) == []


def with_auc(run: FinishedRun, shift: float) -> FinishedRun:
    """Return a run with the AUC and its pseudo-values."""
    whole = run.queries["letters"]
    auc = shift + np.random.default_rng(1).normal(0, 0.05, 40)
    models = {
        name: {**value, "auc": (auc if name == "after" else auc - 0.3).tolist()}
        for name, value in whole["models"].items()
    }
    figures: Any = {name: {"letters": {**sets["letters"], "auc": 0.5}} for name, sets in run.metrics.items()}
    return replace(
        run,
        figures=figures,
        queries={"letters": {**whole, "texts": [""] * 40, "relevant": [[]] * 40, "models": models}},
    )


@pytest.mark.slow
def test_the_auc_of_runs_is_tested(tmp_path: Path) -> None:
    runs = [with_auc(seeded("mw", 0, 0.5), 0.9), with_auc(seeded("infonce", 0, 0.5), 0.6)]
    write_comparison(tmp_path / "page.html", runs)
    text = (tmp_path / "page.html").read_text()
    table = text[text.index("Significance, letters") :]
    assert re.search(r"AUC.*mw-0.*infonce-0.*yes, p &lt;0.001", table, re.DOTALL)
    assert "is not tested" not in text
    write_comparison(tmp_path / "page.html", [runs[0], replace(runs[1], queries={})])
    assert "infonce-0: no difference is tested, because there are no" in (tmp_path / "page.html").read_text()


def test_runs_on_a_folder_with_a_space_are_tested(tiny_dataset: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(shutil.copytree(tiny_dataset, tmp_path / "my data")), ["test"])
    found = evaluate(dataset, "test", Bm25System(dataset))
    runs = []
    for number, name in enumerate(("mw", "cl")):
        run = training_run(tmp_path / name, name, 0.5)
        per_query = {"ndcg_at_10": np.linspace(0, 1, len(found.queries)) ** (1 + number)}
        metrics = {"ndcg_at_10": float(per_query["ndcg_at_10"].mean())}
        systems = {name: replace(found, per_query=per_query, metrics=metrics) for name in ("before", "after")}
        written = write_evaluated(run / "evaluation", dataset, systems, "before")
        assert Results.read(run / "evaluation") == written
        runs.append(read_directory(run, name))
    names, (labels, _) = row_names(runs), dataset_labels(runs)
    values = comparison_page._values({"mw": {}, "cl": {}}, comparison_page._queries(runs, names, labels, "mw"))
    [row] = [row for row in pair_rows(values) if {row.model, row.against} == {"mw", "cl"}]
    assert (row.dataset, row.metric) == ("my_data", "ndcg_at_10")
    assert runs[0].metrics["after"].keys() == {"my_data"}


def test_a_variant_of_a_study_has_the_queries_of_its_evaluations(tmp_path: Path) -> None:
    variant = training_run(tmp_path / "seed-0", "mw", 0.5)
    write_evaluation(variant / "evaluation", ["after"], ["letters", "numbers"])
    run = read_directory(variant, "seed-0")
    assert run.splits == {"letters": "test", "numbers": "test"}
    assert run.metrics == Results.read(variant / "evaluation").models
    assert [list(query["models"]) for query in run.queries.values()] == [["after"], ["after"]]
    study = tmp_path / "study" / "variants" / "MW"
    study.mkdir(parents=True)
    (study / "seed-0").symlink_to(variant)
    with pytest.raises(
        UserError, match=r"holds a study; give directories of its variants, such as .*variants/MW/seed-0"
    ):
        read_directory(tmp_path / "study", "study")


@pytest.mark.slow
def test_a_page_compares_runs_of_both_kinds(tmp_path: Path) -> None:
    folders = [training_run(tmp_path / "mw", "mw", 0.5), training_run(tmp_path / "cl", "infonce", 0.4, split="dev")]
    first = write_evaluation(tmp_path / "first", ["bm25", "mini"], ["letters"])
    second = write_evaluation(tmp_path / "second", ["tuned"], ["letters"], queries=40)
    runs = [read_directory(folder, folder.name) for folder in (*folders, first, second)]
    write_comparison(tmp_path / "page.html", runs)
    text = (tmp_path / "page.html").read_text()
    for shown in (
        "letters (dev)",
        "letters (test)",
        ">mw<",
        ">cl<",
        ">mini<",
        ">tuned<",
        ">infonce<",
        "Settings of training that differ",
    ):
        assert shown in text
    assert "training.seed" not in text  # the same in both
    assert text.count("<figure>") == 1 + 2  # gains over mw in its one metric; two curves
    few = write_evaluation(tmp_path / "few", ["other"], ["letters"], queries=7)
    write_comparison(tmp_path / "page.html", [*runs[2:], read_directory(few, "few")])
    text = (tmp_path / "page.html").read_text()
    assert "few was evaluated on other queries of letters. They are called letters-2 here and have no" in text
    assert dataset_labels([*runs[2:], read_directory(few, "few")])[0] == {
        (0, "letters"): "letters",
        (1, "letters"): "letters",
        (2, "letters"): "letters-2",
    }
    assert dataset_labels(runs)[0][1, "letters"] == "letters (dev)"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (None, "", "holds no run; give a directory"),
        ("config.yaml", "loss: {}", "holds a run that is not finished"),
        ("trials.json", "{}", "holds a sweep; give .*/best, the best trial, when the sweep ends"),
        ("metrics.json", '{"format": 1}', "evaluation: holds no results.json"),
        ("results.json", '{"models": {}}', "has no format number; this version reads format 3; evaluate again"),
    ],
)
def test_a_directory_without_a_run_gives_one_line(tmp_path: Path, file: str | None, content: str, message: str) -> None:
    if file:
        (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        read_directory(tmp_path, "run")
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
