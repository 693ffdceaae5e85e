"""Names: metrics as users write them, models, data sets, files; and the suite, whatever of it is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from beir import write_beir

from raytriever.core.errors import ConfigError, DataError
from raytriever.evaluation.evaluated_datasets import (
    BEIR,
    EvaluationDataset,
    describe_datasets,
    distinct_names,
    find_beir,
    rename_duplicates,
    unique_names,
)
from raytriever.evaluation.protocol import metric_title, parse_targets, read_best_metric, read_metrics, removed_fraction
from raytriever.evaluation.report_document import document, format_results
from raytriever.evaluation.requested_models import EvaluationJob, choose_baselines, read_models
from raytriever.evaluation.result_tables import MetricTables, printed, split_text
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.models.model_settings import ModelConfig
from raytriever.tracking.tracker import Tracker


def test_metrics_in_the_words_users_know() -> None:
    words = (
        "nDCG@10, R@1000,recall_at_20,P@5,MAP,map_cut_1000,rr@10,success@5,R-prec,judged@10,acc@20,AUC,query-auc,auc"
    )
    names = read_metrics(words)
    assert " ".join(names) == (
        "ndcg_at_10 recall_at_1000 recall_at_20 precision_at_5 map_at_100 map_at_1000 mrr_at_10 success_at_5 "
        "r_precision judged_at_10 accuracy_at_20 auc query_auc"
    )
    assert [metric_title(name) for name in names[-4:]] == ["Judged@10", "Acc@20", "AUC", "AUC per query"]
    assert metric_title(names[4]) == "MAP@100"
    # A metric without a cutoff has that of the run files.
    assert read_metrics("map,mrr,ndcg,recall,map@100") == ("map_at_100", "mrr_at_100", "ndcg_at_100", "recall_at_100")
    assert read_best_metric("map") == "map_at_100"


def test_data_sets_and_models_of_one_name_have_names_of_their_own(tmp_path: Path) -> None:
    for name in ("a/letters", "b/letters", "forums/one", "forums/t wo", "forums/t_wo"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "corpus.jsonl").touch()
    given = ["a/letters", "b/letters", "forums", "hf://x/forums-one", "c d", "c_d"]
    sets = rename_duplicates(
        describe_datasets([str(tmp_path / item) if "://" not in item else item for item in given], "test")
    )
    names = [item.name for item in sets]
    assert names == ["a_letters", "b_letters", "forums", "forums-one", "c_d", "c_d-2"]
    assert [item.is_divided for item in sets] == [False, False, True, False, False, False]
    assert list(sets[2].parts) == ["one", "t_wo", "t_wo-2"]
    with pytest.raises(ConfigError, match="two data sets are called 'letters'; give each data set once"):
        rename_duplicates(
            describe_datasets([str(tmp_path / "a" / "letters"), str(tmp_path / "b" / ".." / "a" / "letters")], "test")
        )
    models = read_models(["org/a b", "org/a_b", "runs/one/model"], ModelConfig())
    assert len({model.name for model in models}) == 3
    with pytest.raises(ConfigError, match="two models are called 'x'"):
        read_models(["x=org/a", "org/x"], ModelConfig())
    assert unique_names(["a", "a", "a-2", "a"]) == ["a", "a-3", "a-2", "a-4"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ncdg@10", "unknown metric 'ncdg@10'; did you mean 'ndcg'?"),
        ("p", "'p' does not have a valid cutoff; write p@10"),
        ("ndcg@0", "'ndcg@0' does not have a valid cutoff; write ndcg@10"),
        ("auc@10", "'auc@10' does not have a valid cutoff; write auc without a cutoff"),
        ("rprec@5", "'rprec@5' does not have a valid cutoff; write rprec without a cutoff"),
        ("acc@x", "'acc@x' does not have a valid cutoff; write acc@10"),
        (" , ", "names no metric; give one or more"),
    ],
)
def test_a_mistake_in_a_metric(words: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_metrics(words)
    assert str(error.value).startswith(f"metrics: {message}")


def test_models_and_their_names() -> None:
    given = ["bm25", "runs/one/model", "runs/two/model", "org/e5-base", "CL=runs/one", "other/e5-base"]
    models = read_models(given, ModelConfig(query_prompt="query: "))
    assert [model.name for model in models] == ["bm25", "one", "two", "org_e5-base", "CL", "other_e5-base"]
    assert models[0].config is None
    assert models[4].config == ModelConfig("runs/one", query_prompt="query: ")
    assert choose_baselines([], models) == ["bm25"]
    assert choose_baselines(["CL", "runs/two/model"], models) == ["CL", "two"]
    for wrong, message in ((["Cl"], "did you mean 'CL'"), (["CL", "CL"], "give one model, or two different models")):
        with pytest.raises(ConfigError, match=message):
            choose_baselines(wrong, models)
    with pytest.raises(ConfigError, match="two models are called 'minilm'; give one of them a new name: NAME="):
        read_models(["minilm", "minilm"], ModelConfig())


def test_short_names_tell_apart() -> None:
    assert distinct_names(["/a/x", "/b/x", "/b/y"]) == ["a_x", "b_x", "y"]
    assert distinct_names(["x", "b/x"]) == ["x", "b_x"]
    assert distinct_names(["a b:c", "../runs/model"]) == ["a_b_c", "runs"]


def test_targets() -> None:
    assert parse_targets(["precision=0.9", "Recall=1"]) == [("precision", 0.9), ("recall", 1.0)]
    assert parse_targets(["wrong-answers=0.05", "f1"]) == [("wrong_answers", 0.05), ("f1", None)]
    for all_of_them in ("wrong-answers=1", "missed=1.0"):
        with pytest.raises(ConfigError, match="allows any result; give a fraction below 1"):
            parse_targets([all_of_them])
    for wrong in ("precision", "precision=0", "recall=1.1", "f1=0.5", "recall=nan", "recall=x"):
        with pytest.raises(ConfigError, match=r"write top-precision=0\.9, wrong-answers=0\.05, missed=0\.1, ans"):
            parse_targets([wrong])


def test_the_share_of_questions_that_lose_their_answers() -> None:
    fractions = [removed_fraction(words) for words in ([], ["more", "other"], ["removed"], ["more", "removed=0.2"])]
    assert fractions == [0, 0, 0.5, 0.2]
    for wrong in ("removed=0", "removed=1", "removed=", "removed=x", "removed=nan"):
        with pytest.raises(
            ConfigError, match=r"is not a fraction of the questions; give one fraction above 0 and below 1"
        ):
            removed_fraction([wrong])
    with pytest.raises(ConfigError, match="is given twice"):
        removed_fraction(["removed", "removed=0.2"])


def test_a_folder_of_data_sets_is_one_of_several_parts(tmp_path: Path) -> None:
    for name in ("tex", "android", "notes"):
        (tmp_path / "cqadupstack" / name).mkdir(parents=True)
    for name, file in (("tex", "corpus.jsonl.gz"), ("android", "corpus.jsonl")):
        (tmp_path / "cqadupstack" / name / file).touch()
    (tmp_path / "cqadupstack" / "README.md").touch()
    [one] = describe_datasets([f"{tmp_path}/cqadupstack/tex/.."], "test")
    assert (one.name, list(one.parts), one.is_divided) == ("cqadupstack", ["android", "tex"], True)
    [whole] = describe_datasets([str(tmp_path / "cqadupstack" / "tex")], "test")
    assert (whole.name, whole.is_divided) == ("tex", False)
    assert describe_datasets(["hf://datasets/org/my (1)@main"], "test")[0].name == "my__1_"
    pytest.importorskip("ir_datasets")
    [forums] = describe_datasets(["ir_datasets:beir/cqadupstack"], "test")
    assert (forums.name, len(forums.parts)) == ("cqadupstack", 12)
    assert forums.parts["tex"] == "ir_datasets:beir/cqadupstack/tex"


def test_missing_data_sets_of_the_suite_are_reported(tmp_path: Path) -> None:
    for name in ("scifact", "msmarco", "nq"):
        (tmp_path / name).mkdir()
    tried = []

    def opens(one: EvaluationDataset) -> None:
        tried.extend(one.parts.values())
        if one.name not in ("scifact", "msmarco", "webis-touche2020"):
            raise DataError("not there", one.name)

    result, missing = find_beir(tmp_path, describe_datasets, opens)
    assert [(item.name, item.split, item.task) for item in result] == [
        ("msmarco", "dev", "MSMARCO"),
        ("webis-touche2020", "test", "Touche2020"),
        ("scifact", "test", "SciFact"),
    ]
    assert result[1].parts == {"webis-touche2020": "ir_datasets:beir/webis-touche2020/v2"}
    assert len(missing) == len(BEIR) - 3
    assert "nq (nq: not there)" in missing
    assert f"fiqa (no folder {tmp_path}/fiqa; fiqa: not there)" in missing
    # What a local folder holds is not looked for elsewhere; what it does not hold is.
    assert f"{tmp_path}/nq" in tried
    assert "ir_datasets:beir/nq" not in tried
    assert {"ir_datasets:beir/dbpedia-entity", "hf://datasets/mteb/dbpedia"} <= set(tried)


def test_a_caption_names_the_split_of_each_data_set() -> None:
    models = {name: {item: {"ndcg_at_10": 0.5} for item in BEIR} for name in ("a", "b")}
    splits = {item: "dev" if item == "msmarco" else "test" for item in BEIR}
    assert splits["msmarco"] == BEIR["msmarco"].split
    text = printed(MetricTables(models, [], ["a"]).in_print(splits))
    assert "Split test (msmarco: dev), x 100." in text
    assert split_text({"one": "test", "two": "test"}) == "test"


def test_bm25s_figures_on_chinese_read_as_english_come_with_a_warning(tmp_path: Path, own_cache: Path) -> None:
    texts = [f"今天天气很好，我们去第{'一二三四五六七八九'[i]}公园散步吧。" for i in range(9)]
    folder = write_beir(tmp_path / "中文", texts, [text[8:14] for text in texts], test=[(i, i) for i in range(9)])
    job = EvaluationJob(
        models=read_models(["bm25"], ModelConfig()),
        datasets=describe_datasets([str(folder)], "test", bm25_language="en"),
        baselines=["bm25"],
    )
    said: list[str] = []
    results = run_evaluation(job, tmp_path / "out", False, Tracker, said.append)
    [analysis] = results.about["中文"].bm25.values()
    assert analysis["stemmer"] == "Snowball, English"
    assert analysis["warning"].startswith(f"BM25 finds {analysis['tokens_per_document']:.1f} tokens per document of 1")
    files = [(tmp_path / "out" / name).read_text() for name in ("results.json", "table.md")]
    text, page = format_results(results), "\n".join(line for section in document(results) for line in section.about)
    for shown in (text, page, "\n".join(said), *files):
        assert analysis["warning"] in shown
    assert "stop words: English; stemmer: Snowball, English" in text
    assert "stemmer: Snowball, English." in page
