"""Studies from a file: what becomes of it, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from raytriever.cli.main import run
from raytriever.core.errors import UserError
from raytriever.evaluation.differences.differences_by_seed import SeededResults, SeedMetrics
from raytriever.evaluation.results import Results
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.experiments.study.claims import HELD
from raytriever.experiments.study.run_study import SETTINGS, settings_of
from raytriever.experiments.study.study_file import Variant, load_study
from raytriever.experiments.study.train_variant import evaluation_of, open_variant
from raytriever.tracking.tracker import Tracker
from raytriever.training.run_config import dump_config

FILE = """
seeds: 2
metrics: ndcg@10,auc
data_sets:
  Letters: letters
  Half: {dataset: letters, test_split: dev, dev_split: test}
settings:
  model: {model: minilm, query_length: 16, passage_length: 32}
  training: {batch_size: 16, max_steps: 4}
variants:
  untrained: minilm
  BM25: bm25
  InfoNCE: {loss: {loss: infonce}}
  MW 2: {loss: {loss: mw, temperature: 0.02}, training: {learning_rate: 1e-4}}
claims:
- {above: [MW 2, InfoNCE], metrics: auc}
- {alike: [MW 2, InfoNCE], metrics: ndcg@10, within: 0.02, data_sets: Half}
- {best: MW 2}
"""


@pytest.fixture
def file(tmp_path: Path, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").symlink_to(tiny_dataset)
    (tmp_path / "mine.yaml").write_text(FILE)
    return tmp_path / "mine.yaml"


def test_every_variant_trains_on_every_data_set(file: Path) -> None:
    study = load_study(file)
    assert (study.name, study.seeds, study.baselines, study.source) == ("mine", 2, ("InfoNCE",), "mine.yaml")
    names = ["untrained", "BM25", "InfoNCE-Letters", "InfoNCE-Half", "MW-2-Letters", "MW-2-Half"]
    assert [variant.name for variant in study.variants] == names
    untrained, bm25, _, _, letters, half = study.variants
    assert list(untrained.datasets) == ["Letters", "Half"]
    assert (untrained.lengths, bm25.model, bm25.lengths) == ((16, 32), "bm25", None)
    assert [dataset.split for variant in (letters, half) for dataset in variant.datasets.values()] == ["test", "dev"]
    assert letters.datasets["Letters"].protocol.metrics == ("ndcg_at_10", "auc")
    assert letters.curriculum is not None
    config = letters.curriculum
    assert (config.loss.loss, config.loss.temperature, config.training.learning_rate) == ("mw", 0.02, 1e-4)
    assert (config.training.batch_size, config.model.passage_length) == (16, 32)
    assert half.curriculum is not None
    assert half.curriculum.data.test_split == "dev"


def evaluated(variant: Variant, output: Path) -> Results:
    return run_evaluation(
        evaluation_of(variant, "bm25", None), output, fresh=True, tracker=Tracker, log=lambda line: None
    )


def test_bm25_is_evaluated_in_the_language_of_the_settings(file: Path) -> None:
    plain = load_study(file).variants[1]
    trained, _ = open_variant(Path("out"), plain, 0)
    trained.begin("model: {model: bm25}")
    evaluated(plain, trained.path / "evaluation")
    file.write_text(FILE.replace("settings:", "settings:\n  data: {bm25_language: it}"))
    study = load_study(file)
    [variant] = [variant for variant in study.variants if variant.model == "bm25"]
    evaluated(variant, Path("italian"))
    assert "Snowball, Italian" in (Path("italian") / "results.json").read_text()
    with pytest.raises(UserError, match=r"variant BM25/as-it-is: holds another evaluation \(data sets: "):
        open_variant(Path("out"), variant, 0)


def test_one_split_is_evaluated_by_two_rules(file: Path) -> None:
    sets = "evaluated: {a b: letters, a_b: {dataset: letters, drop_own: false}}"
    file.write_text(f"metrics: auc\n{sets}\nsettings: {{data: {{dataset: letters}}}}\nvariants: {{BM25: bm25}}\n")
    [variant] = load_study(file).variants
    assert list(evaluated(variant, Path("out")).models["after"]) == ["a_b", "a_b-2"]


def test_claims_are_judged(file: Path) -> None:
    study = load_study(file)
    texts = [claim.text for claim in study.claims]
    assert texts[0] == "MW 2 is above InfoNCE in AUC"
    assert texts[1] == "MW 2 is alike InfoNCE in nDCG@10 on Half"
    queries = np.linspace(0, 0.5, 40)

    def metrics(level: float) -> list[SeedMetrics]:
        per_query = {name: queries + level + 0.01 * np.cos(np.arange(40)) * level for name in ("ndcg_at_10", "auc")}
        return [SeedMetrics(seed, dict.fromkeys(per_query, 0.25 + level), per_query) for seed in (0, 1)]

    levels = {"untrained": 0.0, "BM25": 0.1, "InfoNCE": 0.39, "MW 2": 0.4}
    cells = {(row, dataset): metrics(level) for row, level in levels.items() for dataset in ("Letters", "Half")}
    assert [claim.verdict(SeededResults(cells)).word for claim in study.claims] == [HELD, HELD, HELD]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("seeds: 2", "seds: 2", "mine.yaml: unknown name 'seds'; did you mean 'seeds'?"),
        ("seeds: 2", "seeds: 0", "mine.yaml: seeds: 0 is invalid; give a whole number from 1 to 100"),
        ("loss: mw,", "loss: mv,", "mine.yaml: variant 'MW 2': loss: unknown value 'mv'; did you mean 'mw'?"),
        (
            "{learning_rate:",
            "{learning_rat:",
            "variant 'MW 2': unknown setting 'learning_rat'; did you mean 'learning_",
        ),
        ("InfoNCE: {loss:", "InfoNCE: {los:", "variant 'InfoNCE': unknown section 'los'; did you mean 'loss'?"),
        ("Letters: letters", "Letters: leters", "data set 'Letters': dataset leters: no data set of this name"),
        ("dataset: letters,", "datset: letters,", "mine.yaml: data set 'Half': has no path; give the path alone"),
        ("ndcg@10,auc", "ndgc@10", "mine.yaml: metrics: unknown metric 'ndgc@10'; did you mean 'ndcg'?"),
        ("above: [MW 2, InfoNCE]", "above: [MW, InfoNCE]", "claim 1: unknown name 'MW'; did you mean"),
        ("above: [MW 2, InfoNCE]", "above: MW 2", "claim 1: above names 1 variants; give two variants"),
        ("best: MW 2", "worst: MW 2", "claim 3: holds {'worst': 'MW 2'}; give one of above, alike, above_on_average"),
        ("batch_size: 16", "batch_size: -1", "variant 'InfoNCE': batch_size: -1 is out of range"),
        (
            "{loss: {loss: infonce}}",
            "{data: {dataset: x}}",
            "variant 'InfoNCE': data.dataset is set; remove it, and name",
        ),
        ("InfoNCE: {", "MW_2: &x {", "unknown name 'InfoNCE'"),
        ("BM25: bm25", "BM25: 5", "mine.yaml: variant 'BM25': holds 5; give `NAME: value` lines"),
        ("best: MW 2", "best: [MW 2, InfoNCE]", "claim 3: best names 2 variants; give one variant"),
        ("best: MW 2", "steadier: [[MW 2], []]", "claim 3: steadier names 1 variants; give two lists of variants"),
        ("best: MW 2", "best: MW 2, among: [MW]", "claim 3: unknown name 'MW'; did you mean"),
        ("best: MW 2", "best: MW 2, within: 1", "claim 3: unknown name 'within'; choose from"),
        ("within: 0.02", "within: -1", "claim 2: within: -1 is invalid; give a number such as 0.01"),
        ("seeds: 2", "evaluated: {Letters: letters}", "mine.yaml: needs either data_sets or evaluated; give the data"),
        ("Letters: letters", "Letters: {dataset: letters, level: 0}", "level: 0 or drop_own: True is invalid; give"),
        ("seeds: 2", "title: [a]", "mine.yaml: title: ['a'] is not a text; give a text"),
        ("seeds: 2", "paper: none.csv", "none.csv: no such file or folder; give a path that exists"),
        ("seeds: 2", "paper: mine.yaml", "mine.yaml: line 1 holds []; give the columns row, data_set, metric, value"),
        ("InfoNCE: {", "InfoNCE: {stages: [{name: 1}], ", "variant 'InfoNCE': stage 1 has the invalid name 1; give"),
        ("seeds: 2", "baseline: [BM25, MW 2, InfoNCE]", "mine.yaml: baseline names 3 variants; give one or two"),
        ("seeds: 2", "baseline: CL", "mine.yaml: baseline: unknown name 'CL'; choose from BM25"),
    ],
)
def test_user_errors(file: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, expected: str) -> None:
    assert before in FILE
    file.write_text(FILE.replace(before, after))
    assert run("study", [str(file), "--output", "out"]) == 2
    line = capsys.readouterr().err
    assert expected in line
    assert line.count("\n") == 1
    assert not Path("out").exists()


def test_variants_are_evaluated_on_data_sets_that_they_are_not_trained_on(file: Path) -> None:
    text = FILE.replace("data_sets:\n", "evaluated:\n").replace(
        "letters, test_split: dev", "letters, level: 2, test_split: dev"
    )
    text = text.replace("settings:\n", "settings:\n  data: {dataset: letters, negatives_per_query: 2}\n")
    stages = "InfoNCE: {stages: [{name: one}, {name: two, loss: {temperature: 0.5}}], "
    file.write_text(text.replace("InfoNCE: {", stages).replace("ndcg@10,auc", "[steps_to_best, auc, ndcg@10]"))
    study = load_study(file)
    assert [variant.name for variant in study.variants] == ["untrained", "BM25", "InfoNCE", "MW-2"]
    for variant in study.variants:
        assert [(dataset.name, dataset.split, dataset.protocol.level) for dataset in variant.datasets.values()] == [
            ("Letters", "test", 1),
            ("Half", "dev", 2),
        ]
        assert variant.datasets["Letters"].protocol.metrics == ("auc", "ndcg_at_10")
    assert study.steps_to_best
    curriculum = study.variants[2].curriculum
    assert curriculum is not None
    assert curriculum.data.dataset == "letters"
    assert [stage.loss.temperature for stage in curriculum.stages] == [curriculum.loss.temperature, 0.5]


def test_published_figures_are_read(file: Path) -> None:
    (file.parent / "printed.csv").write_text("row,data_set,metric,value\nMW 2,Letters,auc,0.5\n")
    file.write_text(FILE + "paper: printed.csv\n")
    assert load_study(file).paper == {("MW 2", "Letters", "auc"): 0.5}
    (file.parent / "printed.csv").write_text("row,data_set,metric,value\nMW 2,Letters,auc,nan\n")
    with pytest.raises(UserError, match=r"printed.csv: line 2 holds \['MW 2', 'Letters', 'auc', 'nan'\]; give the col"):
        load_study(file)


def test_a_changed_file_does_not_continue_the_study(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, variant = Path("out"), load_study(file).variants[2]
    trained, config = open_variant(output, variant, 0)
    assert config is not None
    trained.begin(dump_config(config))
    (output / SETTINGS).write_text(json.dumps(settings_of(load_study(file))))
    file.write_text(FILE.replace("max_steps: 4", "max_steps: 5"))
    assert run("study", [str(file), "--output", "out"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(
        "error: variant InfoNCE-Letters/seed-0: holds a run with other settings (training.max_steps is 4 there and 5 "
        "here)"
    )
    with pytest.raises(UserError, match=r"gone.yaml: cannot be read"):
        load_study(Path("gone.yaml"))


def test_the_file_of_the_how_to_page_is_read(file: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "run-a-study.md").read_text(encoding="utf-8")
    text = page.split("```yaml\n")[1].split("```")[0]
    assert text.count("\n") <= 15
    file.write_text(text.replace("data/scifact", "letters").replace("data/nfcorpus", "letters"))
    study = load_study(file)
    assert [len(variant.datasets) for variant in study.variants] == [2, 2, 1, 1, 1, 1]
    assert (study.seeds, study.baselines, len(study.claims)) == (3, ("InfoNCE",), 2)
