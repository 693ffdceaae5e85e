"""Formulas of a plan: against bytes that are written, against each other, and against the limits of a node."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raytriever.data.prepare.pipeline import Request, prepare
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.encoding.store import KEYS, write_embeddings
from raytriever.models.tokenisation import content_tokenizer_json, load_tokenizer
from raytriever.planning.config import PlanConfig
from raytriever.planning.report import ALL, DISK, DRIVER, TIME, excesses, first_excess
from raytriever.planning.stages import StageNeeds, stages
from raytriever.planning.workload import ModelSize, Workload, measurements, rates

MODEL = ModelSize(
    weights=22_700_000, width=384, per_token=21e6, per_pair=9216.0, longest=256, token_bytes=2, training_bytes=1e9
)
CLUSTER = PlanConfig(documents=10**8, queries=10**6, gpus=64)


def workload(model: ModelSize = MODEL, **settings: object) -> Workload:
    return Workload(replace(CLUSTER, **settings), model, rates())


def by_name(work: Workload) -> dict[str, StageNeeds]:
    return {stage.name: stage for stage in stages(work)}


def test_every_coefficient_is_used_and_positive() -> None:
    class Recorded(dict[str, float]):
        used: set[str]

        def __getitem__(self, name: str) -> float:
            self.used.add(name)
            return super().__getitem__(name)

    recorded = Recorded(rates())
    recorded.used = set()
    for gpus in (0, 64):
        for width in (384, 1024):
            stages(Workload(replace(CLUSTER, gpus=gpus), replace(MODEL, width=width), recorded))
    assert recorded.used == set(recorded)
    assert min(recorded.values()) > 0


def test_every_coefficient_names_its_machine_day_and_command() -> None:
    kinds = {group.command: group.kind for group in measurements()}
    assert kinds == {
        "python benchmarks/coefficients.py": "measured",
        "python benchmarks/scale_simulation.py": "measured",
        "python benchmarks/size.py": "measured",
        "python benchmarks/gpu_estimate.py": "computed",
    }
    for group in measurements():
        assert group.machine
        assert len(group.date) == 10
    assert "AVX" in measurements()[0].machine


def test_coefficients_of_other_benchmarks_are_their_newest_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    monkeypatch.delitem(sys.modules, "coefficients", raising=False)
    import coefficients

    assert list(measurements()[1:]) == coefficients.of_results(measurements()[0].values)


def test_ten_times_the_documents_take_ten_times_as_much() -> None:
    small, large = by_name(workload()), by_name(workload(documents=10**9))
    for name in ("prepare", "encode", "exact search"):
        assert large[name].disk == pytest.approx(10 * small[name].disk, rel=0.01) or name == "exact search"
        assert 9.5 < large[name].hours / small[name].hours < 13  # sorts grow faster
    assert large["index hnsw"].driver == pytest.approx(10 * small["index hnsw"].driver, rel=0.01)
    assert large["train"] == small["train"]
    assert large["index ivfpq"].parts["building"] > 15 * small["index ivfpq"].parts["building"]


def test_twice_the_gpus_halve_the_arithmetic() -> None:
    large = replace(MODEL, width=1024, per_token=6e8)
    one, two = by_name(workload(large)), by_name(workload(large, gpus=128))
    for name in ("encode", "train"):
        assert one[name].parts["arithmetic"] == pytest.approx(2 * two[name].parts["arithmetic"])
    assert (one["encode"].nodes, two["encode"].nodes) == (8, 16)
    assert one["mining"].gpus == two["mining"].gpus == 1
    assert by_name(workload(gpus=0))["encode"].gpus == 0


def test_embeddings_have_the_planned_bytes(tmp_path: Path) -> None:
    write_embeddings(tmp_path, np.zeros((1_000, MODEL.width), np.float32), "int8")
    np.save(tmp_path / KEYS, np.zeros((1_000, 2), np.uint64))
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    planned = by_name(workload(documents=1_000, dtype="int8"))["encode"].disk
    assert written < planned < 1.01 * written + 1_024


def test_a_prepared_corpus_has_the_planned_bytes(tmp_path: Path, tiny_encoder: Path) -> None:
    documents, words = 4_000, [*"abcdefghijklmnopqrstuvwxyz"]
    source = tmp_path / "source"
    (source / "qrels").mkdir(parents=True)
    rows = [
        {"_id": f"document{number}", "title": "", "text": f"{number} {' '.join(words)}"} for number in range(documents)
    ]
    (source / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (source / "queries.jsonl").write_text('{"_id": "q", "text": "a"}\n')
    (source / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\tdocument1\t1\n")
    tokenisation = Tokenisation(content_tokenizer_json(load_tokenizer(tiny_encoder)))
    side = prepare(Request(str(source), tokenisation), output=tmp_path / "prepared") / "documents"
    written = sum(file.stat().st_size for file in side.iterdir())
    [tokens] = side.glob("*.tokens.npy")
    count = len(np.load(tokens))
    config = replace(
        CLUSTER,
        documents=documents,
        words_per_document=len(words) + 1,
        tokens_per_word=count / (documents * (len(words) + 1)),
    )
    letters = sum(len(str(row["text"])) for row in rows)
    of_text = rates() | {"text.bytes_per_word": letters / (documents * (len(words) + 1))}
    planned = by_name(Workload(config, MODEL, of_text))["prepare"].disk
    keys = 40 * documents  # which are removed at the end
    assert written == pytest.approx(planned - keys, rel=0.05)


def test_the_first_limit_and_its_size() -> None:
    assert excesses(workload(documents=10**6)) == []
    documents, excess = first_excess(workload()) or pytest.fail("no limit")
    assert (excess.stage, excess.resource) == ("index hnsw", DRIVER)
    assert excesses(workload(documents=documents - 1)) == []
    assert excess in excesses(workload(documents=documents))
    assert "one index for each of several parts" in excess.remedy
    # Another limit comes first where it is tight.
    _, excess = first_excess(workload(max_hours=0.001)) or pytest.fail("no limit")
    assert excess.resource == TIME
    _, excess = first_excess(workload(disk_per_node=0.001)) or pytest.fail("no limit")
    assert (excess.stage, excess.resource) == (ALL, DISK)
    assert "larger disks" in excess.remedy
