"""A calibrated model from its evaluation to search and export, and what makes its calibration stale."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import raytriever as rt
from raytriever.cli.main import run
from raytriever.core.errors import ConfigError, DataError
from raytriever.core.terminal import warn
from raytriever.data.dataset import Documents
from raytriever.evaluation.evaluation_settings import CONFIDENCES, EvaluationConfig
from raytriever.evaluation.requested_models import build_evaluation_job, read_models
from raytriever.evaluation.results import Results
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.metrics.answer_confidence import Confidence
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.search.calibration_file import FILE, Calibration, Decider, read_calibration
from raytriever.tracking.tracker import Tracker

QRELS = {"train": range(40), "dev": range(40, 100), "test": range(100, 160)}


def evaluate(
    models: Sequence[object],
    datasets: Sequence[object],
    targets: Sequence[str],
    output: Path,
    precision: str = "fp32",
    confidence: str = "score",
    unanswerable: Sequence[str] = (),
) -> Results:
    """Evaluate with thresholds, without figures."""
    job = build_evaluation_job(
        read_models(list(map(str, models)), ModelConfig()),
        list(map(str, datasets)),
        EvaluationConfig(confidence=confidence),
        [],
        targets,
        unanswerable,
        precision,
        0.01,
        warn,
    )
    return run_evaluation(job, output, False, Tracker, warn)


class Calibrated(NamedTuple):
    """A data set, a model that was calibrated for it, its calibration, and the results."""

    letters: Path
    model: Path
    calibration: Calibration
    results: Results
    output: Path


@pytest.fixture(scope="module")
def calibrated(
    tiny_dataset: Path, tiny_encoder: Path, api_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Calibrated:
    folder = tmp_path_factory.mktemp("calibrated")
    letters = Path(shutil.copytree(tiny_dataset, folder / "letters"))
    for split, members in QRELS.items():
        lines = [f"q{i}\td{i}\t1\n" for i in members]
        (letters / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    model = Path(shutil.copytree(tiny_encoder, folder / "tuned"))
    targets = ["answered=0.5", "top-precision=0.999", "f1", "kept=0.9"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYTRIEVER_CACHE", str(api_cache))
        results = evaluate(["bm25", model], [letters], targets, folder / "results")
    calibration = read_calibration(model / FILE)
    assert calibration is not None
    return Calibrated(letters, model, calibration, results, folder / "results")


def texts_of(letters: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (letters / "queries.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_an_evaluation_writes_what_it_evaluated(calibrated: Calibrated) -> None:
    made, rows = calibrated.calibration, calibrated.results.thresholds
    assert read_calibration(calibrated.output / "calibration" / "tuned" / "letters.json") == made
    # A system without a directory of its own has one too, and its own digest.
    of_bm25 = read_calibration(calibrated.output / "calibration" / "bm25" / "letters.json")
    assert of_bm25 is not None
    assert (made.system, of_bm25.system, of_bm25.digest != made.digest) == ("tuned", "bm25", True)
    own = {row.target: row for row in rows if row.model == "tuned"}
    kept = own.pop("kept")
    assert made.kept is not None
    assert kept.kept is not None
    assert (made.kept.score, made.kept.fraction, made.kept.depth) == (kept.threshold, kept.kept.fraction, 100)
    assert (kept.kept.questions, kept.fractions, kept.confidence) == (60, {}, "score")
    assert [threshold.target for threshold in made.thresholds] == [
        target for target, row in own.items() if row.threshold is not None
    ]
    first, row = made.thresholds[0], own["answered"]
    assert (first.score, first.answered.total) == (row.threshold, 60)
    assert row.fractions == {"coverage": first.answered, "top_precision": first.top_precision, "wrong": first.wrong}
    # The same queries without their answers are evaluated at every threshold.
    assert row.unanswerable["removed"].total == 60
    assert (made.chosen_on, made.chosen_queries, made.checked_on, made.checked_queries) == ("dev", 60, "test", 60)


def test_search_says_how_probable_a_hit_is_and_which_query_has_no_answer(
    calibrated: Calibrated, capsys: pytest.CaptureFixture[str]
) -> None:
    letters, model = str(calibrated.letters), str(calibrated.model)
    index, texts = rt.build_index(rt.load_model(model, precision="fp32"), letters), texts_of(calibrated.letters)[40:100]
    hits = index.search(texts, top_k=2)
    threshold = calibrated.calibration.thresholds[0].score
    # Half of the dev queries, on which the threshold was chosen; a last bit may move one.
    assert 29 <= sum(hit.answerable is True for hit in hits) <= 31
    assert all(hit.answerable is (hit[0].score >= threshold) for hit in hits)
    assert all(hit.probability is not None and 0 <= hit.probability <= 1 for item in hits for hit in item)
    assert "calibration" not in capsys.readouterr().err
    worst = min(range(60), key=lambda row: hits[row][0].score)
    assert run("search", [texts[worst], "--dataset", letters, "--model", model]) == 0
    assert capsys.readouterr().out.startswith("no answer: the best score ")
    index_words = ["--dataset", letters, "--model", model, "--index", "flat", "--output", "index"]
    assert run("index", [*index_words, "--query", texts[worst]]) == 0
    assert "\nno answer: the best score " in capsys.readouterr().out


def test_the_passages_to_keep_are_found_and_a_file_of_another_system_is_refused(
    calibrated: Calibrated, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters, model, texts = str(calibrated.letters), str(calibrated.model), texts_of(calibrated.letters)[40:100]
    kept = calibrated.calibration.kept
    assert kept is not None
    hits = rt.build_index(rt.load_model(model, precision="fp32"), letters).search(texts, top_k=100, threshold="kept")
    assert all(hit.score >= kept.score for item in hits for hit in item)
    # Each of these queries has one relevant passage, d40 to d99.
    found = [f"d{at}" in {hit.document_id for hit in item} for at, item in enumerate(hits, 40)]
    assert np.mean(found) == pytest.approx(1 - np.floor(0.1 * 61 - 1) / 60, abs=1 / 60)
    with pytest.raises(ConfigError, match="unknown threshold 'keep'; give a score, or 'kept'"):
        rt.build_index(model, letters).search(texts[:1], threshold="keep")  # type: ignore[arg-type]
    # A model without a calibration of its own, as the published one: the file that the evaluation wrote.
    file = calibrated.output / "calibration" / "tuned" / "letters.json"
    words = [texts[0], "--dataset", letters, "--model", str(tiny_encoder), "--calibration"]
    assert run("search", [*words, str(file), "--threshold", "kept"]) == 0
    assert " the threshold " in capsys.readouterr().out
    assert run("search", [*words, str(file.parent.parent / "bm25" / "letters.json")]) == 2
    assert "letters.json: belongs to another system, bm25, or to this one with other" in capsys.readouterr().err
    assert run("search", [*words, "none.json"]) == 2
    assert "error: calibration none.json: does not exist; run `raytriever evaluate" in capsys.readouterr().err
    assert run("search", [*words[:-1], "--threshold", "kept"]) == 2
    assert "error: threshold kept: no calibration of this system" in capsys.readouterr().err


def test_an_export_keeps_the_calibration_only_of_the_same_model(
    calibrated: Calibrated, capsys: pytest.CaptureFixture[str]
) -> None:
    model, letters, texts = str(calibrated.model), str(calibrated.letters), texts_of(calibrated.letters)[:3]
    assert run("export", ["--model", model, "--output", "exported"]) == 0
    before = rt.build_index(model, letters).search(texts, top_k=2)
    after = rt.build_index("exported", letters).search(texts, top_k=2)
    assert [item.answerable for item in after] == [item.answerable for item in before]
    assert [item[1].probability for item in after] == pytest.approx([item[1].probability for item in before])
    first = calibrated.calibration.thresholds[0]
    card = Path("exported/README.md").read_text()
    assert "## Answers" in card
    assert f"| answered 0.5 | {first.score:.4f} | {first.answered.count} of 60 = " in card
    assert run("export", ["--model", model, "--output", "changed", "--query-prompt", "q: "]) == 0
    assert (
        "belongs to other weights, prompts or lengths than those of this model; it is not exported"
        in capsys.readouterr().err
    )
    assert not Path("changed", FILE).exists()
    assert "## Answers" not in Path("changed/README.md").read_text()
    # Without a file of its own the model gets that of the evaluation.
    own = shutil.move(calibrated.model / FILE, "own.json")
    words = ["--model", model, "--output", "evaluated", "--evaluation", str(calibrated.output)]
    assert run("export", words) == 0
    shutil.move(own, calibrated.model / FILE)
    assert Path("evaluated", FILE).read_bytes() == Path("exported", FILE).read_bytes()


@pytest.mark.slow
def test_other_prompts_passages_or_contents_make_it_stale(
    calibrated: Calibrated, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(calibrated.model, "tuned"))
    letters = Path(shutil.copytree(calibrated.letters, "letters"))
    [hits] = rt.build_index(rt.load_model(str(model), query_prompt="q: "), str(letters)).search(["what is abc"])
    assert (hits.answerable, hits[0].probability) == (None, None)
    other = "belongs to another system, tuned, or to this one with other weights, prompts, lengths or precision"
    assert other in capsys.readouterr().err
    # A few passages more are the same corpus; with more than a tenth the decision stays, and is marked.
    for count, stale in ((10, False), (40, True)):
        with (letters / "corpus.jsonl").open("a") as stream:
            for number in range(count):
                stream.write(json.dumps({"_id": f"new{count}-{number}", "text": f"passage {count} {number}"}) + "\n")
        [hits] = rt.build_index(str(model), str(letters)).search(["what is abc"])
        assert hits.answerable is not None
        assert (hits[0].probability is None, bool(hits.stale)) == (stale, stale)
        if not stale:  # under another name it is the same corpus
            [renamed] = rt.build_index(str(model), shutil.copytree(letters, "production")).search(["what is abc"])
            assert (renamed.answerable, renamed[0].probability) == (hits.answerable, hits[0].probability)
        line = (
            f"{FILE}, made {calibrated.calibration.date}: about 24% of the passages were added or removed since, more"
        )
        assert (line in capsys.readouterr().err) == stale
    [hits] = rt.build_index(str(model), shutil.copytree(letters, "others")).search(["what is abc"])
    assert (hits.answerable, hits[0].probability) == (None, None)
    made = f"{FILE}, made {calibrated.calibration.date} for letters"
    assert f"{made}: belongs to another corpus than others, so hits have no" in capsys.readouterr().err
    (model / FILE).write_text("{}")
    assert rt.build_index(str(model), str(letters)).search(["what is abc"])[0].answerable is None
    assert "calibration.json: has no format number; this version reads format 5" in capsys.readouterr().err


@pytest.mark.slow
def test_int8_and_other_arithmetic_have_calibrations_of_their_own(
    calibrated: Calibrated, capsys: pytest.CaptureFixture[str]
) -> None:
    model, letters = shutil.copytree(calibrated.model, "tuned"), str(calibrated.letters)

    def search(precision: str) -> rt.Hits:
        return rt.build_index(rt.load_model(str(model), precision=precision), letters).search(["what is abc"])[0]

    assert (search("int8").answerable, search("int8")[0].probability) == (None, None)
    assert "for letters: belongs to another system, tuned, or to this one" in capsys.readouterr().err
    evaluate([model], [letters], ["f1"], Path("results"), precision="int8")
    assert search("int8")[0].probability is not None
    assert search("bf16").answerable is None
    assert "for letters: belongs to another system, tuned, or to this one" in capsys.readouterr().err


def test_few_queries_choose_and_are_counted_and_too_few_are_refused(
    tiny_dataset: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(tiny_encoder, "tuned"))
    evaluate([model], [tiny_dataset], ["f1"], Path("results"))
    made = read_calibration(model / FILE)
    assert made is not None
    assert (made.checked_on, made.chosen_queries, made.checked_queries) == ("dev and test", 64, 64)
    line = capsys.readouterr().err
    assert "; on the same questions of dev and test " in line
    assert "replaces" not in line
    evaluate([model], [tiny_dataset], ["answered=0.5"], Path("other"))
    assert made.threshold is not None
    assert f"; replaces {made.threshold.score:.4f}, chosen for f1\n" in capsys.readouterr().err
    letters = Path(shutil.copytree(tiny_dataset, "letters"))
    for split in ("dev", "test"):
        lines = (letters / "qrels" / f"{split}.tsv").read_text().splitlines(keepends=True)
        (letters / "qrels" / f"{split}.tsv").write_text("".join(lines[:10]))
    with pytest.raises(DataError, match="letters: 18 questions are too few; give at least 20 for a threshold of score"):
        evaluate([model], [letters], ["f1"], Path("few"))
    assert not Path("few.unfinished").exists()  # nothing was encoded


def test_thresholds_of_pairs_alone_or_of_two_data_sets_write_no_file_and_a_line_says_why(
    calibrated: Calibrated, capsys: pytest.CaptureFixture[str]
) -> None:
    others = shutil.copytree(calibrated.letters, "others")
    model = Path(shutil.copytree(calibrated.model, "tuned"))
    (model / FILE).unlink()
    evaluate([model], [calibrated.letters], ["recall=0.5"], Path("results"))
    line = "tuned gets no calibration.json: all targets are about pairs; add a target about answers, such as f1"
    assert line in capsys.readouterr().err
    evaluate([model], [calibrated.letters, others], ["f1"], Path("both"))
    assert {file.name for file in Path("both/calibration/tuned").iterdir()} == {"letters.json", "others.json"}
    assert "a model has only one calibration.json, so those of 2 data sets are in" in capsys.readouterr().err
    assert not (model / FILE).exists()


@pytest.mark.slow
def test_one_split_chooses_and_is_counted(calibrated: Calibrated) -> None:
    model = Path(shutil.copytree(calibrated.model, "tuned"))
    rt.evaluate([str(model)], str(calibrated.letters), calibrate=["f1"], calibration_split="test")
    made = read_calibration(model / FILE)
    assert made is not None
    assert (made.is_checked_apart, made.chosen_on, made.confidence.name) == (False, "test", "entropy")
    with pytest.raises(ConfigError, match="choose thresholds of pairs on another"):
        rt.evaluate([str(model)], str(calibrated.letters), calibrate=["recall=0.5"], calibration_split="test")


@pytest.mark.slow
def test_queries_without_an_answer_take_part(calibrated: Calibrated, capsys: pytest.CaptureFixture[str]) -> None:
    letters = Path(shutil.copytree(calibrated.letters, "letters"))
    model = Path(shutil.copytree(calibrated.model, "tuned"))
    with (letters / "queries.jsonl").open("a") as stream:
        for number in range(40):
            stream.write(json.dumps({"_id": f"none{number}", "text": f"nothing {number} zzz"}) + "\n")
    (letters / "unanswerable").mkdir()
    for split, members in (("dev", range(20)), ("test", range(20, 40))):
        text = "query-id\n" + "".join(f"none{number}\n" for number in members)
        (letters / "unanswerable" / f"{split}.tsv").write_text(text)
    other = Path(shutil.copytree(letters, "other"))  # 60 questions with an answer, 20 without, and one of `letters`
    file = other / "corpus.jsonl"
    file.write_text(file.read_text().replace('"text": "', '"text": "elsewhere '))
    rows = [json.loads(line) for line in (other / "queries.jsonl").read_text().splitlines()]
    texts = [{**row, "text": row["text"] + " elsewhere" * (row["_id"] != "q100")} for row in rows]
    (other / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    results = evaluate(
        [model, "bm25"], [letters], ["wrong-answers=0.2", "f1"], Path("results"), confidence="combined",
        unanswerable=["removed", str(other)],
    )  # fmt: skip
    assert {row.confidence for row in results.confidences} == set(CONFIDENCES)
    own = [row for row in results.thresholds if row.model == "tuned"]
    for row in own:
        kinds = row.unanswerable
        assert set(kinds) == {"given", "removed", "foreign"}
        assert (kinds["given"].total, kinds["foreign"].total) == (20, 79)
        assert (kinds["removed"].total, row.fractions["coverage"].total) == (30, 30)
        assert row.fractions["wrong"].total == 60 + 20 + 79
    line = "other: 1 of 80 questions are left out: letters has the question, or a passage relevant to it"
    assert line in capsys.readouterr().err
    lost = {}
    for fraction in ("removed=0.5", "removed=0.2"):
        once = evaluate(["bm25"], [letters], ["f1"], Path(fraction), confidence="score", unanswerable=[fraction])
        lost[fraction] = once.thresholds[0].unanswerable["removed"].total
    assert lost == {"removed=0.5": 30, "removed=0.2": 12}
    # The metrics of rankings are those of the queries with an answer.
    assert results.models["tuned"]["letters"] == calibrated.results.models["tuned"]["letters"]
    made = read_calibration(model / FILE)
    assert made is not None
    [hits] = rt.build_index(rt.load_model(str(model), precision="fp32"), str(letters)).search(["nothing 21 zzz"])
    assert hits.confidence_name == made.confidence.name
    assert hits.answerable is False


def test_a_threshold_is_not_checked_on_the_queries_on_which_it_was_chosen(calibrated: Calibrated) -> None:
    letters = Path(shutil.copytree(calibrated.letters, "letters"))
    (letters / "qrels" / "dev.tsv").write_text((letters / "qrels" / "test.tsv").read_text())
    with pytest.raises(DataError, match="60 of 60 queries of split 'test' are queries of 'dev' too, more than 5%"):
        evaluate([calibrated.model], [letters], ["f1"], Path("results"))


def test_other_data_sets_without_the_split_or_with_the_same_questions_are_refused(calibrated: Calibrated) -> None:
    with pytest.raises(DataError, match="split 'test': has only questions that letters has or answers too; leave"):
        evaluate([calibrated.model], [calibrated.letters], ["f1"], Path("same"), unanswerable=[str(calibrated.letters)])
    other = Path(shutil.copytree(calibrated.letters, "other"))
    (other / "qrels" / "test.tsv").unlink()
    with pytest.raises(DataError, match="no split 'test'"):
        evaluate([calibrated.model], [calibrated.letters], ["f1"], Path("foreign"), unanswerable=[str(other)])


def test_an_index_that_finds_too_few_passages_has_no_confidence(calibrated: Calibrated) -> None:
    calibration = replace(calibrated.calibration, confidence=Confidence("entropy", 20, 0.1))
    documents = Documents([str(at) for at in range(30)], [""] * 30, ["text"] * 30)
    scores, ranking = np.ones((1, 20), np.float32), np.arange(20)[None].copy()
    assert Decider(calibration, documents).confidence(["a"], scores, ranking) is not None
    ranking[0, 17:] = -1
    with pytest.raises(ConfigError, match="the index finds only 17 of the 20 passages that confidence 'entropy' "):
        Decider(calibration, documents).confidence(["a"], scores, ranking)
    assert Decider(None, documents).confidence(["a"], scores, ranking) is None


def test_the_calibration_of_a_prepared_data_set_is_named_by_its_file(
    calibrated: Calibrated, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The prepared data set remembers the name `letters`, and the evaluation calls it by its folder.
    data = ["--dataset", str(calibrated.letters)]
    assert run("prepare", [*data, "--model", str(tiny_encoder), "--output", "prepared"]) == 0
    evaluate(["bm25"], ["prepared"], ["f1"], Path("results"))
    assert "results/calibration/bm25/prepared.json: threshold" in capsys.readouterr().err
    evaluate(["bm25"], ["prepared", calibrated.letters], ["f1"], Path("both"))
    assert "so those of 2 data sets are in both/calibration" in capsys.readouterr().err
