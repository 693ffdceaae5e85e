"""GPUs that Ray processes see and reserve, in a session that declares two."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from gpu_witness import MEETING
from safetensors.torch import load_file

from raytriever.cluster.encoding import ActorPool, choose_actor_pool, run_in_actors
from raytriever.cluster.evaluation import evaluate_model, search_in_actors
from raytriever.cluster.placement import count_gpus, spare_gpus
from raytriever.cluster.train import refresh
from raytriever.cluster.train.dev_sets import open_dev_sets
from raytriever.cluster.train.mining_round import SnapshotLoader
from raytriever.cluster.train.refresh import EncoderPool, PoolCorpus
from raytriever.cluster.train.trainer import train_on_cluster
from raytriever.config import Config
from raytriever.data.config import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_this_process
from raytriever.encoding.config import EncodeConfig
from raytriever.encoding.corpus import embed_corpus, plan_embeddings
from raytriever.encoding.encode import encode_queries
from raytriever.encoding.shards import tokenisation_of
from raytriever.encoding.writer import StoreWriter
from raytriever.errors import ConfigError, UserError
from raytriever.evaluation.systems import evaluate_retriever
from raytriever.index.exact import Corpus, tie_order
from raytriever.index.ranking import TieOrder
from raytriever.losses.distributed import ALONE
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.finders import ArrayEmbeddings, open_here
from raytriever.mining.miner import build_negatives_table
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.studies.arm import ArmRunner, arm_folder
from raytriever.studies.definition import Arm, MeasuredDataset, Study
from raytriever.studies.run import run_study
from raytriever.tracking.tracker import Backlog, DatasetRecord, Tracker
from raytriever.training.config import RefreshConfig, TrainingConfig
from raytriever.training.parallel.model_state import take_snapshot
from raytriever.training.refresh import read_ledger

SUPPORT = Path(__file__).parents[1] / "support"
GPUS = 2
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A session of one node with two declared GPUs, and the folder of the records of its processes."""
    folder = tmp_path_factory.mktemp("witness")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)  # for Ray's workers, which inherit it
        patch.setenv("GPU_WITNESS", str(folder))
        patch.setenv("RAYTRIEVER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sys, "path", [str(SUPPORT), *sys.path])
        environment = {"worker_process_setup_hook": "gpu_witness.install"}
        resources = {"num_cpus": 8, "num_gpus": GPUS, "include_dashboard": False}
        ray.init("local", runtime_env=environment, log_to_driver=False, **resources)
        yield folder
        ray.shutdown()


@pytest.fixture
def seen(records: Path) -> Callable[[str], set[str]]:
    """Return the GPUs that the processes of a title saw at each question for CUDA during this test."""
    for record in records.iterdir():
        record.unlink()

    def read(title: str) -> set[str]:
        lines = [line.split("\t") for record in records.iterdir() for line in record.read_text().splitlines()]
        return {gpus for name, gpus in lines if title in name}

    return read


@dataclass(frozen=True)
class Case:
    model: ModelConfig
    retriever: Retriever
    dataset: RetrievalDataset


@pytest.fixture
def case(tiny_encoder: Path, tiny_dataset: Path) -> Case:
    model = ModelConfig(str(tiny_encoder))
    retriever = load_retriever(model)
    splits = ["train", "dev", "test"]
    return Case(model, retriever, open_dataset(tiny_dataset, splits, tokenisation=tokenisation_of(retriever)))


Seen = Callable[[str], set[str]]


def test_a_refresh_reserves_spare_gpus_and_hides_the_others(
    seen: Seen, case: Case, tiny_dataset: Path, tmp_path: Path
) -> None:
    """One worker trains, so one of two GPUs is spare: it belongs to the only encoder of a pool of up to three."""
    config = Config(
        data=DataConfig(dataset=str(tiny_dataset), negatives_per_query=1),
        model=case.model,
        training=TrainingConfig(batch_size=16, precision="fp32", max_steps=4, eval_steps=2, best_metric="ndcg_at_5"),
        refresh=RefreshConfig(refresh_every=2, refresh_mode="sync", refresh_pool="1:3", refresh_negatives=3),
    )
    table: NegativesTable = build_negatives_table(
        case.dataset, config.data, "", lambda: Bm25Index(case.dataset.passages())
    )
    dev_sets = open_dev_sets(config, case.dataset, in_this_process, print)
    events: list[Any] = []
    location = str(case.dataset.location)
    train_on_cluster(config, [location], table, 4, tmp_path, events.append, dev_sets=dev_sets, in_process=True)

    assert read_ledger(tmp_path / "negatives").adopted_rounds
    assert len(list((tmp_path / "evaluations").glob("*.json"))) == 2
    [encoder] = seen("ray::Encoder")
    assert encoder in {"0", "1"}
    assert seen("ray::Miner") == {""}
    assert not seen("ray::CheckpointEvaluator")
    texts = [event.text for event in events if hasattr(event, "text")]
    assert "Refreshes encode on 1 GPU, because 1 of 2 GPUs train: --refresh-pool is 3." in texts
    assert "Checkpoints are evaluated on the GPU of the first worker, while training waits." in texts


def test_a_refresh_uses_the_gpu_of_training_where_no_other_is_left(
    seen: Seen, case: Case, tiny_dataset: Path, tmp_path: Path
) -> None:
    config = Config(
        data=DataConfig(dataset=str(tiny_dataset), negatives_per_query=1),
        model=case.model,
        training=TrainingConfig(batch_size=16, precision="fp32", max_steps=4, eval_steps=4, num_workers=2),
        refresh=RefreshConfig(refresh_every=2, refresh_mode="sync", refresh_negatives=3),
    )
    table = build_negatives_table(case.dataset, config.data, "", lambda: Bm25Index(case.dataset.passages()))
    events: list[Any] = []
    train_on_cluster(config, [str(case.dataset.location)], table, 4, tmp_path, events.append, in_process=True)
    [adopted] = read_ledger(tmp_path / "negatives").adopted_rounds
    assert (adopted.snapshot, adopted.used_from) == (2, 2)
    assert not seen("ray::Miner")
    assert not seen("ray::Encoder")
    texts = [event.text for event in events if hasattr(event, "text")]
    assert "Refreshes use the GPU of the first worker, while training waits for them." in texts


@pytest.mark.parametrize("gpus", [0.0, 0.5])
def test_actors_that_encode_and_search_see_what_they_reserved(
    seen: Seen, case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: float
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    run = run_in_actors(ActorPool(2, 2, gpus=gpus))
    store = embed_corpus(case.model, case.retriever, case.dataset, run)
    queries = encode_queries(case.retriever, case.dataset, case.dataset.relevant_queries("test"))
    search_in_actors(store, queries, 5, tie_order(case.dataset.documents.ids), pool=ActorPool(2, 2, gpus=gpus))
    for title in ("_Actor", "_Searcher"):
        assert seen(title), title
        assert seen(title) <= ({"0", "1"} if gpus else {""})


def test_a_model_is_evaluated_by_a_process_with_a_gpu(seen: Seen, case: Case) -> None:
    here = evaluate_retriever(case.dataset, "test", case.model, case.retriever)
    there = evaluate_model(case.dataset, "test", case.model, "fp32")
    assert seen("ray::_run_in_task") <= {"0", "1"}
    assert seen("ray::_run_in_task")
    assert there.metrics == pytest.approx(here.metrics)
    assert np.array_equal(there.queries, here.queries)


def test_an_error_of_the_process_with_a_gpu_is_one_of_the_user(records: Path, case: Case, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        evaluate_model(case.dataset, "test", replace(case.model, model=str(tmp_path / "nowhere")), "fp32")


class Round:
    """Documents of a data set in shards of 16, encoded by a pool that believes in a number of spare GPUs."""

    def __init__(self, case: Case, folder: Path, spare: int, most: int = 4) -> None:
        plan = plan_embeddings(case.model, case.retriever, case.dataset, "passage", "fp32")
        self.writer = StoreWriter(folder / "store", replace(plan, shard_rows=16))
        self.writer.begin()
        self.pool = EncoderPool(0, most, lambda held: max(0, spare - held))
        load = SnapshotLoader(case.model, 0, "fp32")
        snapshot = ray.put(dict(take_snapshot(case.retriever, ALONE)))
        self.encode = partial(self.pool.encode, snapshot, self.writer, load, str(case.dataset.location))

    def run(self) -> None:
        try:
            self.encode(self.writer.missing())
        finally:
            self.pool.shrink()
        assert not self.writer.missing()


def gpus_are_free() -> bool:
    return ray.available_resources().get("GPU", 0) == GPUS


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_encoders_that_wait_for_a_gpu_hold_no_shard(seen: Seen, case: Case, tmp_path: Path) -> None:
    """As where another job takes GPUs between the count and the start: four encoders for two GPUs."""
    wait_until(gpus_are_free)
    Round(case, tmp_path, spare=4).run()
    assert seen("ray::Encoder") <= {"0", "1"}


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_a_round_searches_on_the_gpus_that_encoded(seen: Seen, case: Case, tmp_path: Path, gpus: int) -> None:
    wait_until(gpus_are_free)
    one = Round(case, tmp_path, spare=gpus)
    try:
        one.encode(one.writer.missing())
        store = one.writer.finish("letters", case.dataset.passages())
        order = TieOrder.of(tie_order(case.dataset.documents.ids))
        queries = store.read(np.arange(0, len(store), 3))
        array = ArrayEmbeddings(queries)
        of_queries = TieOrder.of(np.arange(len(queries)))
        for documents, ties in ((store, order), (array, of_queries)):
            corpus = one.pool.open_corpus(documents, ties)
            assert isinstance(corpus, PoolCorpus if gpus else Corpus)
            assert len(getattr(corpus, "searches", ())) == gpus
            for k in (1, 20, 1_000):
                assert np.array_equal(corpus.keys(queries, k), open_here(documents, ties).keys(queries, k))
    finally:
        one.pool.shrink()
    visible = seen("ray::Encoder")
    assert visible <= {"0", "1"} and len(visible) == gpus if gpus else visible == {""}


def test_encoders_use_cpus_where_no_gpu_is_spare(seen: Seen, case: Case, tmp_path: Path) -> None:
    Round(case, tmp_path, spare=0).run()
    assert seen("ray::Encoder") == {""}


def test_a_round_without_any_encoder_fails_in_one_line(
    records: Path, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "START_SECONDS", 3.0)
    wait_until(gpus_are_free)
    other = ray.remote(num_gpus=GPUS)(threading.Event).remote()
    wait_until(lambda: ray.available_resources().get("GPU", 0) == 0)
    one = Round(case, tmp_path, spare=2)
    with pytest.raises(UserError, match="no encoder started within 3 s"):
        one.encode(one.writer.missing())
    ray.kill(other)


def test_gpus_of_training_are_never_spare(records: Path) -> None:
    wait_until(gpus_are_free)
    assert count_gpus() == GPUS
    assert [spare_gpus(needed) for needed in range(4)] == [2, 1, 0, 0]
    assert spare_gpus(1, held=1) == 0


def test_more_gpus_than_the_cluster_has_are_one_line_before_anything_starts(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EncodeConfig(actors="3", actor_gpus=1.0)
    with pytest.raises(ConfigError, match="3 actors with 1 GPUs each do not fit"):
        choose_actor_pool(config)
    monkeypatch.setenv("RAY_ADDRESS", "a cluster that may grow, but not to a GPU")
    monkeypatch.setattr("raytriever.cluster.encoding.count_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="the cluster has no GPU"):
        choose_actor_pool(config)


class Children(Tracker):
    """Tracker of a study whose runs keep nothing."""

    run_id = None

    def child(self, run_name: str, folder: Path) -> Children:
        return self

    def backlog(self) -> Backlog:
        return Backlog()


def runner(folder: Path) -> ArmRunner:
    record = DatasetRecord("letters", "letters", "", {})
    return ArmRunner(
        output=folder, run_name="study", tracker=Children(), record=record, log=lambda line: None, gpus=1.0
    )


def trained_arm(name: str, case: Case, dataset: Path) -> Arm:
    config = Config(
        data=DataConfig(dataset=str(dataset), negatives_per_query=1),
        model=case.model,
        training=TrainingConfig(batch_size=16, precision="fp32", max_steps=2, seed=len(name)),
    )
    return Arm(name, name, (MeasuredDataset("letters", str(dataset), "test", ("ndcg_at_10",)),), config)


def test_an_arm_of_a_study_trains_in_a_process_with_a_gpu(
    seen: Seen, case: Case, tiny_dataset: Path, tmp_path: Path
) -> None:
    """The process is real and trains; only its GPU and NCCL, which it gets from Ray, are replaced (`gpu_witness`)."""
    wait_until(gpus_are_free)
    arm = trained_arm("trained", case, tiny_dataset)
    runner(tmp_path).run(arm, 0)
    assert seen("device of ray::") == {"cuda:0"}
    assert seen("backend of ray::") == {"nccl"}
    assert seen("ray::RayTrainWorker") <= {"0", "1", "cuda:0", "nccl"}
    folder = arm_folder(tmp_path, arm, 0)
    weights = [load_file(path / "model.safetensors") for path in (Path(case.model.model), folder / "model")]
    assert any(not torch.equal(values, weights[1][name]) for name, values in weights[0].items())
    assert json.loads((folder / "metrics.json").read_text())["measured"]["letters"]


def test_arms_of_a_study_share_a_gpu_at_the_same_time(
    records: Path, seen: Seen, case: Case, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two arms wait for each other before they train; the other GPU belongs to another job."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    wait_until(gpus_are_free)
    other = ray.remote(num_gpus=1)(threading.Event).remote()
    wait_until(lambda: ray.available_resources().get("GPU", 0) == 1)
    (records / MEETING).write_text("2")
    arms = (trained_arm("one", case, tiny_dataset), trained_arm("other", case, tiny_dataset))
    study = Study("mw-in-domain", "Title", "Table 1", arms, 1, ())
    assert run_study(study, tmp_path / "study", 1, "study", [].append, trial_gpus=0.5)
    (records / MEETING).unlink()
    ray.kill(other)
    assert seen("meeting of ray::") == {"2"}
    assert len({visible for visible in seen("ray::RayTrainWorker") if visible in {"0", "1"}}) == 1
    rows = json.loads((tmp_path / "study" / "results.json").read_text())["rows"]
    assert {(row, name) for row, sets in rows.items() for name in sets} == {("one", "letters"), ("other", "letters")}
