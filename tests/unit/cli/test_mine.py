"""`mine` and `score` from the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import write_cross_encoder

from raytriever.cli.main import run
from raytriever.core.errors import ModelError
from raytriever.core.store.cache import cache_folder
from raytriever.data.data_settings import DataConfig
from raytriever.data.hard_negatives import read_negatives
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.sampling.teacher_scores import read_scores
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.retrieval.mining.mining_settings import ScoreConfig
from raytriever.retrieval.mining.teacher_scoring import run_scoring


def cells(out: str) -> dict[str, list[int]]:
    """Return the numbers of the printed table by row."""
    results = {}
    for line in out.split("\n\n")[0].splitlines()[1:]:
        words = line.split()
        numbers = [int(word.replace(",", "")) for word in words if word.replace(",", "").isdigit()]
        results[" ".join(words[: -len(numbers)])] = numbers
    return results


def test_a_table_that_training_reads(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(letters), "--method", "dense,random", "--model", str(tiny_encoder), "--output", "table"]
    words += ["--range-min", "2", "--range-max", "40", "--num-negatives", "4"]
    words += ["--max-score", "0.99", "--round", "3", "--seed", "5"]
    assert run("mine", words) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["dense", "random"]
    expected = cells(out)
    for method in (0, 1):
        removed = [numbers[method] for name, numbers in expected.items() if name != "candidates"]
        assert expected["candidates"][method] == sum(removed)
    assert expected["before the range"] == [96 * 2, 0]
    assert "96 queries; " in out
    assert f"raytriever train --dataset {letters} --negatives-table table" in out
    dataset = open_dataset(letters, ["train", "dev", "test"])
    table = read_negatives("table", dataset)
    assert [table.counts()[name] for name in ("dense", "random")] == expected["kept"]
    assert set(table.rounds.tolist()) == {3}
    assert (table.scores <= 0.99).all()
    meta = json.loads(Path("table/manifest.json").read_text())["meta"]
    assert meta["counts"]["dense"]["candidates"] == expected["candidates"][0]
    assert meta["settings"]["range_max"] == 40
    assert meta["dataset"] == dataset.digest
    assert (meta["scores"], meta["seed"], meta["split"]) == ("encoder", 5, "train")


@pytest.mark.slow
def test_matching_embeddings_are_used_and_others_refused(
    error_line: Callable[..., str], letters: Path, tiny_encoder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ["--dataset", str(letters), "--model", str(tiny_encoder), "--precision", "fp32"]
    for name, more in {"passages": [], "queries": ["--side", "query"], "short": ["--passage-length", "9"]}.items():
        assert run("encode", [*model, *more, "--output", name]) == 0
    words = ["--method", "dense", "--num-negatives", "4"]
    assert run("mine", [*model, *words, "--output", "own"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(
            "raytriever.retrieval.mining.mining_job.embed_corpus", None
        )  # so that no passage could be encoded
        assert run("mine", [*model, *words, "--output", "given", "--embeddings", "passages"]) == 0
    dataset = open_dataset(letters, ["train", "dev", "test"])
    own, given = (read_negatives(name, dataset) for name in ("own", "given"))
    assert own.documents.tolist() == given.documents.tolist()
    for name, expected in {
        "queries": "queries: holds embeddings of queries ('query', here 'passage'); give a directory that `raytr",
        "short": "short: holds embeddings of texts cut at another length (9, here 64); give a directory",
        "none": "embeddings none: no such embeddings; ",
    }.items():
        assert expected in error_line("mine", *model, *words, "--output", "other", "--embeddings", name)
    expected = error_line("mine", *model, "--output", "other", "--embeddings", "passages")
    assert "embeddings: has no effect with method bm25; leave it out, or give method dense or cross-query" in expected
    assert not (work / "other").exists()


def test_an_existing_table_is_kept(error_line: Callable[..., str], letters: Path, work: Path) -> None:
    (work / "table").mkdir()
    assert "table: already exists; give another output" in error_line("mine", "--output", "table")


def test_the_language_of_bm25_is_named_in_a_line(letters: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset", str(letters), "--method", "bm25,random", "--num-negatives", "2", "--output"]
    assert run("mine", [*words, "recognized"]) == 0
    assert "Analyzer of BM25" not in capsys.readouterr().err  # English is the rule
    assert run("mine", [*words, "named", "--bm25-language", "ko"]) == 0
    assert "Analyzer of BM25 for Korean, --bm25-language ko: terms of 2 adjacent" in capsys.readouterr().err


@pytest.fixture(scope="module")
def teacher(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tiny_encoder, tmp_path_factory.mktemp("teacher") / "cross", spread=300)


@pytest.fixture
def negatives(letters: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Four random negatives for each of the 96 training queries."""
    words = ["--method", "random", "--num-negatives", "4", "--output", "negatives"]
    assert run("mine", ["--dataset", str(letters), *words]) == 0
    capsys.readouterr()
    return Path("negatives")


def test_scores_of_every_positive_and_negative(
    letters: Path, teacher: Path, negatives: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(letters), "--model", str(teacher), "--negatives", str(negatives), "--output", "scores"]
    assert run("score", [*words, "--precision", "fp32"]) == 0
    out = capsys.readouterr().out
    assert "96 queries; " in out
    assert "480 pairs scored in" in out
    assert "--negatives-table negatives --negatives-per-query 7 --loss kl --teacher scores" in out
    dataset = open_dataset(letters, ["train", "dev", "test"])
    table, result = read_negatives(negatives, dataset), read_scores("scores", dataset)
    positives = dataset.positives("train")
    queries = np.concatenate([positives.queries, table.queries])
    documents = np.concatenate([positives.documents, table.documents])
    assert len(result) == len(queries) == 480
    texts = [dataset.queries.texts[q] for q in queries], [dataset.passage_text(d) for d in documents]
    model = CrossEncoder(teacher, torch.device("cpu"), "fp32")
    wanted = model.logits(*texts)
    # A float32 product adds its terms in another order in a batch of another size. The classifier reads a tanh, so its
    # partial sums reach the sum of the absolute weights at most: the two orders differ by a rounding of that.
    tolerance = float(model._model.classifier.weight.detach().abs().sum()) * np.finfo(np.float32).eps
    assert np.ptp(wanted) > 100 * tolerance
    np.testing.assert_allclose(result.of_pairs(queries, documents), wanted, rtol=0, atol=tolerance)
    meta = json.loads(Path("scores/manifest.json").read_text())["meta"]
    assert (meta["kind"], meta["pairs"], meta["activation"]) == ("teacher scores", 480, "Sigmoid")
    assert meta["model_digest"] == CrossEncoder(teacher, torch.device("cpu"), "fp32").digest()
    assert not list(Path().glob(".*"))
    before = Path("scores/part-00000.parquet").stat().st_mtime_ns
    assert run("score", [*words, "--precision", "fp32"]) == 0  # again: nothing is scored
    assert Path("scores/part-00000.parquet").stat().st_mtime_ns == before
    assert "pairs scored in" not in capsys.readouterr().out


def test_a_run_names_candidates(letters: Path, teacher: Path, work: Path) -> None:
    lines = [
        f"q{query} Q0 d{(query + rank) % 160} {rank} {9 - rank} other\n" for query in range(96) for rank in range(5)
    ]
    Path("other.trec").write_text("".join(lines))
    words = ["--dataset", str(letters), "--model", str(teacher), "--run", "other.trec", "--depth", "3"]
    assert run("score", [*words, "--output", "scores"]) == 0
    rows = pq.read_table("scores/part-00000.parquet").to_pydict()
    pairs = {(query, document) for query, document in zip(rows["query"], rows["document"], strict=True)}
    assert pairs == {(f"q{query}", f"d{(query + rank) % 160}") for query in range(96) for rank in range(3)}


class Interrupted(BaseException):
    """Stand-in for a kill: no cleanup may run."""


@pytest.mark.slow
def test_an_interrupted_call_resumes_to_the_same_bytes(
    letters: Path, teacher: Path, negatives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ScoreConfig(model=str(teacher), negatives=str(negatives))
    score = partial(run_scoring, config, DataConfig(str(letters)), precision="fp32", part=100)
    whole = score(Path("whole"), lambda line: None)
    assert (whole.scored, len(whole.positives), len(whole.candidates)) == (480, 96, 384)
    logits, calls = CrossEncoder.logits, []

    def stopping(self: CrossEncoder, queries: list[str], passages: list[str]) -> np.ndarray:
        calls.append(len(queries))
        if len(calls) == 3:
            raise Interrupted
        return logits(self, queries, passages)

    monkeypatch.setattr(CrossEncoder, "logits", stopping)
    with pytest.raises(Interrupted):
        score(Path("parts"), lambda line: None)
    assert not Path("parts").exists()
    [damaged] = cache_folder().glob("negatives/*-blocks/part-000001/scores.npy")
    written = damaged.read_bytes()
    damaged.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))  # as no disk should: that part is scored again
    done = score(Path("parts"), lambda line: None)
    assert calls == [100, 100, 100, 100, 100, 100, 80]
    assert done.scored == 380
    names = sorted(path.name for path in Path("parts").iterdir())
    assert names == ["manifest.json", "part-00000.parquet"]
    for name in names:
        assert Path("parts", name).read_bytes() == Path("whole", name).read_bytes()


@pytest.mark.slow
def test_existing_scores_are_not_mixed_with_others(
    error_line: Callable[..., str], letters: Path, teacher: Path, negatives: Path
) -> None:
    words = ["--dataset", letters, "--model", teacher, "--negatives", negatives, "--precision", "fp32", "--output", "s"]
    assert run("score", [str(word) for word in words]) == 0
    assert error_line("score", *words, "--max-length", 32) == (
        "s: holds scores of pairs cut at another length; give another output, or remove this one"
    )
    assert "s: holds scores of other pairs" in error_line("score", *words, "--split", "train", "--run", _run(3))
    assert "negatives: does not hold the scores of this command" in error_line("score", *words[:-1], negatives)


def _run(depth: int) -> Path:
    file = Path("some.trec")
    file.write_text(
        "".join(f"q{query} Q0 d{100 + rank} {rank} {rank} x\n" for query in range(4) for rank in range(depth))
    )
    return file


def test_scores_that_are_not_finite_are_an_error(letters: Path, teacher: Path, negatives: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = Path(shutil.copytree(teacher, tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    weights["classifier.bias"][0] = torch.nan
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    config = ScoreConfig(model=str(broken), negatives=str(negatives))
    with pytest.raises(ModelError, match="broken: 480 of 480 scores are not finite, the first is of query 'q0'"):
        run_scoring(config, DataConfig(str(letters)), Path("scores"), lambda line: None, precision="fp32")
    assert not Path("scores/manifest.json").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "negatives: letters has no hard negatives; give a table that"),
        ("--max-length 65", "cannot read pairs of 65 tokens; give a length from 8 to 64"),
        ("--split valid", "no split 'valid'; there are: dev, test, train"),
    ],
)
def test_user_errors(error_line: Callable[..., str], letters: Path, teacher: Path, flags: str, expected: str) -> None:
    assert expected in error_line("score", "--dataset", letters, "--model", teacher, "--output", "s", *flags.split())
