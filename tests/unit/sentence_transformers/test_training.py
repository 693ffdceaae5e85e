"""The script of the how-to page trains and writes a card; the evaluator has the figures of `raytriever evaluate`."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from library_losses import equal, write_model
from processes import run_python
from sentence_transformers import SentenceTransformer
from tiny_models import text_of

import raytriever as rt
from raytriever.sentence_transformers import PooledAUCEvaluator

SUPPORT = Path(__file__).parents[2] / "support"
OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "train-with-sentence-transformers.md"


@pytest.mark.slow
def test_the_script_of_the_page_trains(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    script = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    assert script.count("\n") <= 25
    # A model with random weights needs more than a trained one.
    more = {"1e-4": "3e-3", '"num_train_epochs": 3': '"num_train_epochs": 6'}
    for written, used in {"sentence-transformers/all-MiniLM-L6-v2": str(tmp_path / "tiny"), **more}.items():
        assert written in script
        script = script.replace(written, used)
    script = script.replace("trainer.train()", 'before = evaluator(model)["dev_auc"]\ntrainer.train()')
    program = script + (
        "\nimport json\nlogs = [each['eval_dev_auc'] for each in trainer.state.log_history if 'eval_dev_auc' in each]"
        "\nprint(json.dumps([before, *logs]))\n"
    )
    done = run_python("-c", program, cwd=tmp_path, variables=OFFLINE)
    before, *logs = json.loads(done.stdout.splitlines()[-1])
    assert len(logs) >= 2
    assert logs[-1] > before  # two trainings differ in their last bits, and so does the order of the epochs
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "raytriever.sentence_transformers.losses.MannWhitneyLoss" in card
    assert "loss:MannWhitneyLoss" in card
    assert '"temperature": 0.01' in card
    assert "Optimizing What Matters" in card
    assert "Pooled AUC" in card


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "cached"])
def test_two_processes_of_torchrun_step_as_one(kind: str, tmp_path: Path) -> None:
    """Half of the rows in each process give the weights of one process with all rows."""
    write_model(tmp_path / "tiny")
    before = dict(SentenceTransformer(str(tmp_path / "tiny"), device="cpu", local_files_only=True).named_parameters())
    steps = []
    for launcher in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]):
        output = tmp_path / f"step-{len(steps)}.pt"
        words = [*launcher, SUPPORT / "trainer_step.py", tmp_path / "tiny", output, kind]
        run_python(*words, variables=OFFLINE | {"OMP_NUM_THREADS": "1"})
        after = torch.load(output, weights_only=True)
        steps.append([after[name] - value.detach() for name, value in before.items() if "pooler" not in name])
    assert equal(steps[1], steps[0], 3e-6)


CORPUS = {f"d{number}": text_of(6 + number % 9, number) for number in range(60)}
QUERIES = {f"q{number}": text_of(4 + number % 5, 200 + number) for number in range(20)}
RELEVANT = {f"q{number}": {f"d{number}", f"d{3 * number}"} for number in range(18)} | {"q18": set()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "model"
    write_model(path)
    return path


@pytest.fixture
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.mark.slow
def test_the_figures_are_those_of_raytriever(
    folder: Path, model: SentenceTransformer, tmp_path: Path, own_cache: Path
) -> None:
    grades = {"test": {query: dict.fromkeys(documents, 1) for query, documents in RELEVANT.items() if documents}}
    data = rt.Dataset.from_dict(CORPUS, QUERIES, grades)
    expected = rt.evaluate([str(folder)], data, metrics="ndcg@10,auc", precision="fp32").to_pandas().iloc[0]
    evaluator = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, "tiny")
    metrics = evaluator(model, str(tmp_path), epoch=1, steps=7)
    assert evaluator.primary_metric == "tiny_auc"
    assert metrics["tiny_auc"] == pytest.approx(expected["auc"], abs=1e-4)  # equal scores may swap by rounding
    assert metrics["tiny_ndcg@10"] == pytest.approx(expected["ndcg_at_10"], rel=1e-6)
    assert 0.4 < metrics["tiny_auc"] < 1
    rows = list(csv.DictReader((tmp_path / evaluator.csv_file).read_text().splitlines()))
    assert [float(row["auc"]) for row in rows] == [metrics["tiny_auc"]]
    assert (rows[0]["epoch"], rows[0]["steps"]) == ("1", "7")
    assert set(metrics) == {f"tiny_{name}" for name in ("auc", "ndcg@10", "threshold", "precision", "recall", "f1")}


def test_a_threshold_has_the_wanted_precision_or_the_best_f1(model: SentenceTransformer) -> None:
    best = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, write_csv=False)(model)
    chosen = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, precision=0.03, write_csv=False)(model)
    assert chosen["precision"] >= 0.03
    assert best["f1"] >= chosen["f1"]
    assert best["threshold"] != chosen["threshold"]
    unreached = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, precision=1.0, write_csv=False)(model)
    assert unreached["threshold"] == np.inf or unreached["precision"] == 1.0
    assert best["f1"] == pytest.approx(2 * best["precision"] * best["recall"] / (best["precision"] + best["recall"]))


def test_half_of_a_surrogate_pair_is_read(model: SentenceTransformer) -> None:
    corpus, queries = {**CORPUS, "d0": CORPUS["d0"] + "\ud83d"}, {**QUERIES, "q1": QUERIES["q1"] + "\ud83d"}
    assert PooledAUCEvaluator(queries, corpus, RELEVANT, write_csv=False)(model)["ndcg@10"] > 0


def test_documents_outside_the_corpus_count_as_not_found(model: SentenceTransformer) -> None:
    whole = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT)(model)
    more = {query: documents | {"lost"} for query, documents in RELEVANT.items() if documents}
    assert PooledAUCEvaluator(QUERIES, CORPUS, more)(model)["ndcg@10"] < whole["ndcg@10"]


def test_wrong_input_is_one_line(model: SentenceTransformer) -> None:
    with pytest.raises(rt.DataError, match=r"PooledAUCEvaluator\(relevant_docs\): no query has a relevant document"):
        PooledAUCEvaluator(QUERIES, CORPUS, {"other": {"d1"}})
    with pytest.raises(rt.ConfigError, match=r"PooledAUCEvaluator\(precision\): 90 is out of range"):
        PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, precision=90)
    model.similarity_fn_name = "manhattan"
    with pytest.raises(rt.ConfigError, match="the model's similarity is manhattan; use cosine or dot"):
        PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT)(model)
