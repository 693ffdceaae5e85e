"""Run files, vectors, fusions and rerankings: their definitions, their names, and how they are measured."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raytriever.core.errors import ConfigError, DataError, UserError
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.composed.fusion_and_reranking import FusedSystem, RerankedSystem, RunSystem
from raytriever.evaluation.composed.open_systems import search_system
from raytriever.evaluation.composed.system_of_vectors import VectorSystem
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.evaluation_files import write_run
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.report_document import format_results
from raytriever.evaluation.requested_models import build_evaluation_job, read_models
from raytriever.evaluation.results import Results
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.evaluation.system_names import (
    SYSTEM,
    Bm25,
    Fusion,
    Reranking,
    RunFile,
    VectorFolder,
    parse_system,
    split_label,
    system_text,
)
from raytriever.evaluation.systems import Bm25System, EmbeddedSystem
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.vectors_of_others import PASSAGES, QUERIES, open_vectors
from raytriever.retrieval.endpoints.endpoint_settings import EncoderConfig
from raytriever.tracking.tracker import Tracker

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dataset(tiny_dataset: Path) -> RetrievalDataset:
    return open_dataset(tiny_dataset, ["dev", "test"])


@pytest.fixture(scope="module")
def vectors(dataset: RetrievalDataset) -> dict[str, np.ndarray]:
    """Vectors in which a query is near its passage, of unit length."""
    rng = np.random.default_rng(5)
    passages = rng.normal(size=(len(dataset.documents), 8))
    queries = passages + rng.normal(size=passages.shape)  # query i is answered by passage i
    unit = {PASSAGES: passages, QUERIES: queries}
    return {side: (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float32) for side, v in unit.items()}


@pytest.fixture(scope="module")
def cross_encoder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("judge") / "judge"
    shutil.copytree(tiny_encoder, folder)
    (folder / "model.safetensors").unlink()
    torch.manual_seed(1)
    config = BertConfig.from_pretrained(tiny_encoder)
    config.num_labels = 1
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def embedded(dataset: RetrievalDataset, vectors: dict[str, np.ndarray]) -> EmbeddedSystem:
    return EmbeddedSystem(dataset, np.arange(len(dataset.queries)), vectors[QUERIES], vectors[PASSAGES])


class Prepared(EmbeddedSystem):
    """Embeddings as a part of other systems."""

    def prepare(self) -> None: ...


def write(folder: Path, vectors: dict[str, np.ndarray], dataset: RetrievalDataset, form: str, kind: Any) -> Path:
    """Write vectors as another program would: in another order, with more passages than the data set has."""
    folder.mkdir()
    for side, ids in ((PASSAGES, dataset.documents.ids), (QUERIES, dataset.queries.ids)):
        names, rows = [*list(ids)[::-1], "of another data set"], [*vectors[side][::-1], vectors[side][0]]
        values = np.array(rows, kind)
        if form == "npy":
            half = len(names) // 2
            for number, part in enumerate((slice(half), slice(half, None))):
                np.save(folder / f"{side}-{number}.npy", values[part])
                (folder / f"{side}-{number}.ids.txt").write_text("".join(f"{name}\n" for name in names[part]))
        elif form == "parquet":
            lists = pa.array(list(values), pa.list_(pa.from_numpy_dtype(kind)))
            pq.write_table(pa.table({"id": names, "embedding": lists}), folder / f"{side}.parquet")
        else:
            lines = ({"id": name, "embedding": row.tolist()} for name, row in zip(names, values, strict=True))
            (folder / f"{side}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def literal_fusion(dataset: RetrievalDataset, parts: list[Any], query: int, weight: float | None) -> dict[int, float]:
    """The definition, for one query, in float64."""
    fused: dict[int, float] = {}
    for part, share in zip(parts, [1.0] * 9 if weight is None else [weight, 1 - weight], strict=False):
        scores, documents = (row[0] for row in part.search(np.array([query]), 1000))
        found = {int(d): float(s) for d, s in zip(documents, scores, strict=True) if d >= 0}
        if isinstance(part, Bm25System):
            found = {d: s for d, s in found.items() if s > 0}
        low, high = min(found.values()), max(found.values())
        for rank, (document, score) in enumerate(found.items(), 1):
            value = 1 / (60 + rank) if weight is None else share * (score - low) / max(high - low, 1e-9)
            fused[document] = fused.get(document, 0.0) + value
    return fused


@pytest.mark.parametrize("weight", [None, 0.3])
def test_a_fusion_is_its_definition(
    dataset: RetrievalDataset, vectors: dict[str, np.ndarray], weight: float | None
) -> None:
    parts = [Bm25System(dataset), Prepared(**vars(embedded(dataset, vectors)))]
    system, queries = FusedSystem(dataset, parts, weight), np.array([130, 5, 130, 31])
    scores, documents = system.search(queries, 200)
    for row, query in enumerate(queries.tolist()):
        wanted = literal_fusion(dataset, parts, query, weight)
        found = dict(zip(documents[row].tolist(), scores[row].tolist(), strict=True))
        assert found.pop(-1) == -np.inf  # the corpus has fewer documents than 200
        assert found.keys() == wanted.keys()
        assert [found[d] for d in wanted] == pytest.approx(list(wanted.values()), abs=1e-7)
        rounded = {d: np.float32(value) for d, value in wanted.items()}
        order = sorted(wanted, key=lambda d: (rounded[d], dataset.documents.ids[d]), reverse=True)
        assert documents[row, : len(order)].tolist() == order
    np.testing.assert_array_equal(system.score(queries, documents[:, 3]), scores[:, 3])


def test_a_weight_has_the_highest_ndcg_on_dev(dataset: RetrievalDataset, vectors: dict[str, np.ndarray]) -> None:
    parts = [Prepared(**vars(embedded(dataset, vectors))), Bm25System(dataset)]
    noise = Prepared(
        dataset, np.arange(len(dataset.queries)), *(np.roll(vectors[s], 9, 0) for s in (QUERIES, PASSAGES))
    )
    judged, protocol = select_judged_queries(dataset, "dev", Protocol()), Protocol(("ndcg_at_10",))
    chosen = FusedSystem(dataset, [noise, parts[0]], 0.5)
    weight = chosen.choose_weight("dev", Protocol(), judged)
    values = {
        one / 10: evaluate(dataset, "dev", FusedSystem(dataset, [noise, parts[0]], one / 10), protocol).metrics
        for one in range(11)
    }
    assert values[weight]["ndcg_at_10"] == max(value["ndcg_at_10"] for value in values.values())
    assert f"the weight of the first system is {weight:g}" in chosen.notes()[0]
    # BM25 alone is right for every query, and so are many weights: the one nearest to a half is taken.
    assert FusedSystem(dataset, parts, 0.0).choose_weight("dev", Protocol(), judged) <= 0.5


def test_reranking_orders_the_best_by_the_cross_encoder_alone(dataset: RetrievalDataset, cross_encoder: Path) -> None:
    judge, first = CrossEncoder(cross_encoder, CPU, "fp32"), Bm25System(dataset)
    system, queries = RerankedSystem(dataset, first, judge, 7), np.array([140, 3])
    scores, documents = system.search(queries, 10)
    candidates = first.search(queries, 7)[1]
    for row, query in enumerate(queries.tolist()):
        texts = [dataset.passage_text(document) for document in candidates[row].tolist()]
        wanted = dict(zip(candidates[row].tolist(), judge([dataset.queries.texts[query]] * 7, texts), strict=True))
        order = sorted(wanted, key=lambda d: (wanted[d], dataset.documents.ids[d]), reverse=True)
        assert documents[row].tolist() == [*order, -1, -1, -1]
        assert scores[row, :7] == pytest.approx([wanted[d] for d in order], abs=1e-6)
    outside = np.setdiff1d(np.arange(160), candidates[0])[:1]
    assert np.isnan(system.score(queries[:1], outside)).all()
    assert system.score(queries[:1], documents[0, :1]) == scores[0, 0]


@pytest.mark.parametrize("form", ["npy", "parquet", "jsonl"])
def test_vectors_of_any_form_rank_as_the_array(
    form: str,
    dataset: RetrievalDataset,
    vectors: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    folder = write(tmp_path / "vectors", vectors, dataset, form, np.float32)
    system, whole = VectorSystem(dataset, str(folder)), embedded(dataset, vectors)
    queries = np.array([150, 2, 2])
    for ours, wanted in zip(system.search(queries, 30), whole.search(queries, 30), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    pairs = np.array([9, 130]), np.array([4, 99])
    np.testing.assert_array_equal(system.score(*pairs), whole.score(*pairs))
    assert "have unit length and are compared by cosine" in system.notes()[0]
    assert system.notes()[1:] == ["1 vectors are of passages that the data set does not have: 'of another data set'"]
    again = VectorSystem(dataset, str(folder))  # from the cache
    np.testing.assert_array_equal(again.search(queries, 5)[0], system.search(queries, 5)[0])


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_vectors_of_other_lengths_are_compared_as_asked(
    kind: Any, dataset: RetrievalDataset, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    lengths = np.random.default_rng(1).uniform(0.5, 2, (160, 1)).astype(np.float32)
    longer = {side: values * lengths for side, values in vectors.items()}
    folder = str(write(tmp_path / "vectors", longer, dataset, "npy", kind))
    stored = {side: values.astype(kind).astype(np.float32) for side, values in longer.items()}
    queries = np.arange(20)
    dot = VectorSystem(dataset, folder)
    np.testing.assert_array_equal(dot.search(queries, 9)[1], embedded(dataset, stored).search(queries, 9)[1])
    assert "have different lengths and are compared by dot; --similarity cosine" in dot.notes()[0]
    cosine = VectorSystem(dataset, folder, "cosine").search(queries, 9)
    np.testing.assert_allclose(cosine[0], embedded(dataset, vectors).search(queries, 9)[0], atol=2e-3)


def test_missing_vectors_are_counted_and_rank_nothing(
    dataset: RetrievalDataset, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    folder = write(tmp_path / "vectors", vectors, dataset, "npy", np.float32)
    for side, left_out in ((PASSAGES, ["d130", "d131"]), (QUERIES, ["q140"])):
        file = folder / f"{side}-0.ids.txt"
        names = file.read_text().split("\n")
        file.write_text("\n".join(f"elsewhere {name}" if name in left_out else name for name in names))
    system = VectorSystem(dataset, str(folder))
    evaluation = evaluate(dataset, "test", system)
    assert (evaluation.ranking[12] == -1).all()  # of q140
    assert not np.isin(evaluation.ranking, [130, 131]).any()
    assert evaluation.positive_scores[[2, 3, 12]].max() < evaluation.negative_scores.min()
    assert "3 of 32 relevant passages have no score; in the AUC they are below all others" in evaluation.notes
    assert "2 passages have no vector: 'd130', 'd131'" in system.notes()
    assert "1 queries have no vector: 'q140'" in system.notes()


def broken(folder: Path, **arrays: Any) -> Path:
    folder.mkdir()
    for side in (PASSAGES, QUERIES):
        np.save(folder / f"{side}.npy", arrays.get(side, np.eye(3, dtype=np.float32)))
        prefix = "d" if side == PASSAGES else "q"
        ids = arrays.get(f"{side}_ids", [f"{prefix}{n}" for n in range(3)])
        (folder / f"{side}.ids.txt").write_text("".join(f"{name}\n" for name in ids))
    return folder


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({PASSAGES: np.full((3, 3), np.nan, np.float32)}, "embedding of 'd0' has a component that is not finite"),
        ({QUERIES: np.diag([1, np.inf, 1]).astype(np.float32)}, "embedding of 'q1' has a component that is not finite"),
        ({QUERIES: np.ones((3, 4), np.float32)}, "has passages of width 3 and queries of width 4"),
        ({PASSAGES: np.ones((4, 3), np.float32)}, "has 4 rows, passages.ids.txt has 3 ids"),
        ({PASSAGES: np.ones((3, 3), np.int32)}, "holds values of type '<i4', expected float16 or float32 or float64"),
        ({"passages_ids": ["d0", "d1", "d0"]}, "has the id 'd0' twice"),
        ({"queries_ids": ["x", "y", "z"]}, "has no id of the queries of letters, such as 'q0', but 'x'"),
    ],
)
def test_broken_vectors_are_one_line(
    arrays: dict[str, Any], line: str, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        VectorSystem(dataset, str(broken(tmp_path / "vectors", **arrays)))
    assert line in str(caught.value)


def test_a_folder_without_queries_and_rows_of_other_widths_are_one_line(tmp_path: Path) -> None:
    folder = broken(tmp_path / "vectors")
    (folder / "queries.npy").unlink()
    with pytest.raises(DataError, match=r"has no queries.parquet, queries.npy or queries.jsonl; give a folder"):
        open_vectors(str(folder), QUERIES)
    rows = ({"id": "q0", "embedding": [1.0, 0.0]}, {"id": "q1", "embedding": [1.0]})
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="the embedding of 'q1' has 1 components, others have 2"):
        open_vectors(str(folder), QUERIES)
    (folder / "queries.jsonl").write_text('{"id": "q0", "embedding": [1, "x"]}\n')
    with pytest.raises(DataError, match=r"queries.jsonl:1: is no row"):
        open_vectors(str(folder), QUERIES)


def test_a_run_file_has_the_metrics_of_the_system_that_wrote_it(
    dataset: RetrievalDataset, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    protocol = Protocol(("ndcg_at_10", "recall_at_100", "auc"), depth=160)
    system = embedded(dataset, vectors)
    wanted = evaluate(dataset, "test", system, protocol)
    write_run(tmp_path / "whole.trec", wanted, dataset, "tag")
    found = evaluate(dataset, "test", RunSystem(dataset, str(tmp_path / "whole.trec")), protocol)
    assert found.metrics == pytest.approx(wanted.metrics, abs=1e-9)
    np.testing.assert_array_equal(found.ranking, wanted.ranking)
    lines = (tmp_path / "whole.trec").read_text().splitlines(keepends=True)
    few = "".join(line for line in lines if int(line.split()[3]) <= 3 and "q150 " not in line)
    (tmp_path / "few.trec").write_text(few)
    short = RunSystem(dataset, str(tmp_path / "few.trec"))
    cut = evaluate(dataset, "test", short, protocol)
    assert (
        cut.metrics["recall_at_100"]
        == evaluate(dataset, "test", system, Protocol(("recall_at_3",))).metrics["recall_at_3"]
        - (150 - 128 in np.flatnonzero((wanted.ranking[:, :3] == wanted.queries[:, None]).any(1))) / 32
    )
    assert short.notes() == [
        "the file ranks up to 3 documents of a query, and later ranks count as not found",
        "1 queries are not in the file: 'q150'",
    ]
    lost = 32 - round(32 * cut.metrics["recall_at_100"])
    assert cut.notes == [f"{lost} of 32 relevant passages have no score; in the AUC they are below all others"]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("q128 Q0 nobody 1 0.5 tag\n", "few.trec:1: unknown document id 'nobody'; is it a run over letters?"),
        ("who Q0 d1 1 0.5 tag\n", "ranks none of the 160 queries; is it a run over letters?"),
        ("q128 Q0 d1 1 tag\n", "few.trec:1: is no line of a run; a line is `query Q0 document rank score tag`"),
        ("q128 Q0 d1 1 0 tag\nq128 Q0 d2 2 0 tag\n", "has one score for all documents of a query, so it ranks nothing"),
    ],
)
def test_a_broken_run_is_one_line(lines: str, line: str, dataset: RetrievalDataset, tmp_path: Path) -> None:
    (tmp_path / "few.trec").write_text(lines)
    with pytest.raises(DataError) as caught:
        RunSystem(dataset, str(tmp_path / "few.trec"))
    assert line in str(caught.value)


def test_a_name_is_a_tree_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = ModelConfig("minilm", similarity="dot")
    wanted = {
        "bm25": Bm25(),
        "minilm": encoder,
        "vectors:a/b": VectorFolder("a/b", "dot"),
        "run:a.trec": RunFile("a.trec"),
        "bm25+minilm": Fusion((Bm25(), encoder)),
        "bm25+minilm+run:x": Fusion((Bm25(), encoder, RunFile("x"))),
        "vectors:a+run:x:weighted": Fusion((VectorFolder("a", "dot"), RunFile("x")), True),
        "minilm>org/judge": Reranking(encoder, "org/judge", 100),
        "bm25+minilm>org/judge@20>other": Reranking(
            Reranking(Fusion((Bm25(), encoder)), "org/judge", 20), "other", 100
        ),
    }
    for name, tree in wanted.items():
        assert parse_system(name, ModelConfig(similarity="dot")) == tree
        assert system_text(tree) == name
    assert split_label("mine=bm25+minilm") == ("mine", "bm25+minilm")
    (tmp_path / "a+b>c").mkdir()
    assert parse_system("a+b>c") == EncoderConfig(model="a+b>c")
    assert SYSTEM("mine=~/a+run:~/b") == f"mine={Path('~/a').expanduser()}+run:{Path('~/b').expanduser()}"
    names = ["bm25+runs/a/model:weighted", "bm25+runs/b/model:weighted", "minilm>org/judge@9", "run:x/a.trec", "y=bm25"]
    assert [model.name for model in read_models(names, ModelConfig())] == [
        "bm25_a_weighted",
        "bm25_b_weighted",
        "minilm_judge_9",
        "a.trec",
        "y",
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("bm25+bm25", "model bm25+bm25: fuses bm25 with itself; give two different systems"),
        ("bm25+", "model bm25+: fuses no two systems; write A+B, such as bm25+minilm"),
        ("bm25:weighted", "fuses no two systems"),
        ("a+b+c:weighted", "weighs 3 systems; write A+B:weighted"),
        ("minilm>", "has nothing after '>'; write SYSTEM>CROSS-ENCODER@100"),
        (">org/judge", "has nothing before '>'"),
        ("minilm>org/judge@0", "reranks no document"),
        ("run:", "names no path; write run:PATH"),
        (
            "minilm>./nothing",
            "model ./nothing: no such directory; give the directory of a cross-encoder, or a hub name",
        ),
        ("bm25+./nothing", "model ./nothing: no such directory"),
        ("vectors:nothing", "model nothing: no such folder"),
        ("run:nothing.trec", "model nothing.trec: no such file; give the path of a TREC run"),
    ],
)
def test_a_wrong_name_is_one_line(name: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        SYSTEM.check(SYSTEM(name), "model")
    assert line in str(caught.value)


Evaluated = Callable[..., Results]


@pytest.fixture
def measure(tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))

    def run(
        *models: str, aims: list[str] | None = None, unanswerable: list[str] | None = None, confidence: str = "score"
    ) -> Results:
        job = build_evaluation_job(
            read_models(models, ModelConfig()),
            [str(tiny_dataset)],
            EvaluationConfig(metrics="ndcg@10,recall@100,auc", confidence=confidence),
            [],
            aims or [],
            unanswerable or [],
            "fp32",
            0.01,
            print,
        )
        return run_evaluation(job, tmp_path / "out", True, Tracker, lambda _: None)

    return run


def test_all_systems_are_measured_side_by_side(
    measure: Evaluated,
    dataset: RetrievalDataset,
    vectors: dict[str, np.ndarray],
    tiny_encoder: Path,
    cross_encoder: Path,
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "vectors", vectors, dataset, "npy", np.float32)
    both = [evaluate(dataset, split, embedded(dataset, vectors), Protocol(depth=160)) for split in ("dev", "test")]
    for one in both:
        write_run(tmp_path / f"{one.queries[0]}.trec", one, dataset, "tag")
    (tmp_path / "mine.trec").write_text("".join((tmp_path / f"{n}.trec").read_text() for n in (96, 128)))
    fusion, judged = f"tiny=bm25+{tiny_encoder}:weighted", f"judged=bm25+vectors:{folder}>{cross_encoder}@10"
    names = ["bm25", f"vectors:{folder}", f"run:{tmp_path / 'mine.trec'}", fusion, judged]
    results = measure(*names, aims=["f1", "recall=0.8"])
    assert list(results.models) == ["bm25", "vectors", "mine.trec", "tiny", "judged"]
    figures = {model: row["letters"] for model, row in results.models.items()}
    assert figures["mine.trec"] == pytest.approx(figures["vectors"], abs=1e-9)
    assert figures["vectors"] == pytest.approx({name: both[1].metrics[name] for name in figures["vectors"]})
    assert all(0 < value <= 1 for row in figures.values() for value in row.values() if value is not None)
    assert {(row.model, row.aim) for row in results.thresholds} == {(m, a) for m in figures for a in ("f1", "recall")}
    chosen = {row.model: row for row in results.thresholds if row.aim == "f1"}
    assert chosen["mine.trec"].threshold == pytest.approx(chosen["vectors"].threshold, abs=1e-6)
    costs = {row.model: (row.texts, row.pairs) for row in results.costs}
    assert costs == {"bm25": (0, 0), "vectors": (0, 0), "mine.trec": (0, 0), "tiny": (192, 0), "judged": (0, 320)}
    text = format_results(results)
    assert "tiny: the weight of the first system is " in text
    assert "judged: the cross-encoder orders the best 10 of a query, and later ranks count as not found." in text
    assert re.search(r"letters +judged +0 +320 +\d+\.\d\d", text)
    assert {row.model for row in results.pairs} | {row.against for row in results.pairs} == set(figures)


def test_systems_of_files_refuse_questions_of_others_and_weights_their_own_split(
    measure: Evaluated, tiny_dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.trec").write_text("q128 Q0 d1 1 0.5 tag\n")
    with pytest.raises(ConfigError, match=r"a.trec has no results for the questions of .*letters; leave them out"):
        measure(f"run:{tmp_path / 'a.trec'}", aims=["f1"], unanswerable=[str(tiny_dataset)])
    job = build_evaluation_job(
        read_models(["bm25+minilm:weighted"], ModelConfig()),
        [str(tiny_dataset)],
        replace(EvaluationConfig(), calibration_split="test"),
        [],
        [],
        [],
        None,
        0.01,
        print,
    )
    with pytest.raises(ConfigError, match="is already evaluated on 'test'; choose weights of a fusion on another"):
        job.splits(job.datasets[0])


def test_a_new_question_is_ranked_by_bm25_a_fusion_and_a_reranking(
    tiny_dataset: Path, tiny_encoder: Path, cross_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    word = open_dataset(tiny_dataset, []).documents.texts[7].split()[0]
    for name in ("bm25", f"bm25+{tiny_encoder}", f"bm25+{tiny_encoder}:weighted", f"bm25>{cross_encoder}@3"):
        hits = search_system(parse_system(name), str(tiny_dataset), f"what is {word}", 3)
        assert len(hits) == 3
        assert "d7" in [hit.document_id for hit in hits]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    with pytest.raises(ConfigError, match="run:x has results for the queries of its file alone"):
        search_system(RunFile("x"), str(tiny_dataset), "anything", 3)


def test_a_fusion_and_a_reranking_decide_by_their_own_calibration(
    measure: Evaluated, tiny_dataset: Path, tiny_encoder: Path, cross_encoder: Path, tmp_path: Path
) -> None:
    names = ["bm25", f"bm25+{tiny_encoder}", f"bm25+{tiny_encoder}:weighted", f"bm25>{cross_encoder}@9"]
    results = measure(*names, aims=["f1", "kept=0.5"])
    files = [tmp_path / "out" / "calibration" / model / "letters.json" for model in results.models]
    dataset = open_dataset(tiny_dataset, [])
    texts = [str(text) for text in dataset.queries.texts[128:134]]
    thresholds = {(row.model, row.aim): row.threshold for row in results.thresholds}
    for name, model, file in zip(names, results.models, files, strict=True):
        found = [search_system(parse_system(name), str(tiny_dataset), text, 2, None, "fp32", file) for text in texts]
        assert all(one.threshold == pytest.approx(thresholds[model, "f1"]) for one in found)
        assert all(one.answerable is (one[0].score >= one.threshold) for one in found if one.threshold is not None)
        assert all(hit.probability is not None for one in found for hit in one)
        if (lowest := thresholds[model, "kept"]) is not None:
            kept = search_system(parse_system(name), str(tiny_dataset), texts[0], 100, "kept", "fp32", file)
            assert kept.lowest_score == pytest.approx(lowest)
            assert all(hit.score >= lowest for hit in kept)
        other = files[files.index(file) - 1]
        with pytest.raises(ConfigError, match=r"calibration .*letters.json: belongs to another system, "):
            search_system(parse_system(name), str(tiny_dataset), texts[0], 2, None, "fp32", other)
    notes = results.about["letters"].notes
    [weighted] = [model for model in results.models if model.endswith("weighted")]
    said = "thresholds are chosen on the queries that chose the weight, so a promised share is not exact"
    assert [said in lines for lines in notes.values()] == [model == weighted for model in notes]
    assert said in format_results(results)
    assert said not in format_results(measure(f"bm25+{tiny_encoder}:weighted"))
    # A confidence that reads 20 passages, of a system that lists 9.
    [row] = measure(names[-1], aims=["f1"], confidence="entropy").thresholds
    hits = search_system(parse_system(names[-1]), str(tiny_dataset), texts[0], 2, None, "fp32", files[-1])
    assert (hits.confidence_name, hits.threshold) == ("entropy", pytest.approx(row.threshold))
