"""GPUs that Ray processes see and reserve, in a session that declares two, and trials that share one."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from processes import wait_for
from ray import tune

from raytriever.cluster import actor_pool
from raytriever.cluster.actor_pool import ActorPool, PooledCorpus
from raytriever.cluster.encode_on_cluster import choose_actor_pool
from raytriever.cluster.evaluate_on_cluster import evaluate_once
from raytriever.cluster.gpus_and_placement import count_gpus, count_slots, gpus_each, resources_of_trial, spare_gpus
from raytriever.cluster.train.job_actors import choose_pool
from raytriever.cluster.train.train_worker import TrainingJob
from raytriever.cluster.train.trainer import ClusterError, train_on_cluster
from raytriever.cluster.train.validate_checkpoint import open_dev_sets
from raytriever.core.errors import ConfigError, UserError
from raytriever.core.setting_declarations import check_options
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import in_this_process
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.evaluated_datasets import EvaluationDataset
from raytriever.evaluation.requested_models import EvaluatedModel, EvaluationJob
from raytriever.evaluation.systems import DenseSystem
from raytriever.experiments.tuning.ray.sweep import plan_sweep
from raytriever.experiments.tuning.space import SearchConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.embed_corpus import embed_corpus, encode_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.encode_texts import encode_queries
from raytriever.retrieval.encoding.encoding_settings import EncodeConfig
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter
from raytriever.retrieval.index.exact_top_k import tie_order
from raytriever.retrieval.index.rank_keys import TieOrder
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.retrieval.mining.candidate_search import open_here
from raytriever.retrieval.mining.miner import build_negatives_table
from raytriever.training.negative_refresh import read_ledger
from raytriever.training.run_config import Config, override
from raytriever.training.training_settings import RefreshConfig, TrainingConfig

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"
GPUS = 2


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Ray's workers import this file. Its tests come first: the session of `records` lasts to the end of the module.
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def meet(config: dict[str, Any]) -> None:
    """Report the GPUs that the trial sees after four trials run at the same time."""
    folder = Path(config["folder"])
    (folder / str(config["number"])).touch()
    end = time.monotonic() + 60
    while len(list(folder.iterdir())) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    tune.report({"met": len(list(folder.iterdir())), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})


def test_four_trials_share_a_gpu(one_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    gpus = gpus_each("trial_gpus", 0.25)
    assert count_slots(1, gpus) == 4
    assert count_slots(1, gpus_each("trial_gpus", None)) == count_slots(1, gpus_each("trial_gpus", 0.6)) == 1
    (tmp_path / "trials").mkdir()
    results = tune.Tuner(
        tune.with_resources(meet, tune.PlacementGroupFactory([resources_of_trial(1, gpus)])),
        param_space={"number": tune.grid_search([0, 1, 2, 3]), "folder": str(tmp_path / "trials")},
        run_config=tune.RunConfig(storage_path=str(tmp_path / "state"), verbose=0),
    ).fit()
    assert [(result.metrics["met"], result.metrics["gpus"]) for result in results] == [(4, "0")] * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_pytorch_cannot_use_is_one_line(one_gpu: None, tmp_path: Path) -> None:
    job = TrainingJob(config=Config(), datasets=(), negatives=None, total_steps=2, folder=tmp_path)
    with pytest.raises(ClusterError) as raised:
        train_on_cluster(job, [].append)
    assert str(raised.value).startswith("the Ray cluster: has a GPU that PyTorch cannot use in a worker (doesn't")
    assert "\n" not in str(raised.value)


def test_a_fraction_without_a_gpu_or_with_several_workers_is_refused() -> None:
    ray.init(address="local", num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(ConfigError, match="trial_gpus: the cluster has no GPU"):
            gpus_each("trial_gpus", 0.5)
    finally:
        ray.shutdown()
    several = override(Config(), {"training": {"num_workers": "2"}})
    with pytest.raises(ConfigError, match="trial_gpus: applies only to trials with one worker"):
        plan_sweep(several, SearchConfig(trial_gpus=0.5))
    for wrong in (0.0, 1.5):
        with pytest.raises(ConfigError, match="is out of range"):
            check_options(SearchConfig(trial_gpus=wrong))


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
    return Case(model, retriever, open_dataset(tiny_dataset, splits, tokenization=tokenization_of(retriever)))


Seen = Callable[[str], set[str]]


def test_a_refresh_reserves_spare_gpus_and_hides_the_others(
    seen: Seen, case: Case, tiny_dataset: Path, tmp_path: Path
) -> None:
    """One worker trains, so one of two GPUs is spare: it belongs to the only actor of a pool of up to three."""
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
    job = TrainingJob(
        config=config, datasets=(location,), negatives=table, total_steps=4, folder=tmp_path, dev_sets=dev_sets
    )
    train_on_cluster(job, events.append)

    assert read_ledger(tmp_path / "negatives").adopted_rounds
    assert len(list((tmp_path / "evaluations").glob("*.json"))) == 2
    for title in ("MapWorker(MapBatches(PoolActor))", "ray::PoolActor"):  # it encodes, then it searches
        [visible] = seen(title)
        assert visible in {"0", "1"}
    assert seen("device of ray::") == {"cuda:0"}
    assert seen("backend of ray::") == {"nccl"}
    assert seen("ray::CheckpointJob") == {""}  # mines; checkpoints are evaluated by the first worker
    texts = [event.text for event in events if hasattr(event, "text")]
    assert "Refreshes encode and search on 1 GPU: --refresh-pool is 3, but 1 of 2 GPUs train." in texts
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
    location = str(case.dataset.location)
    job = TrainingJob(
        config=config, datasets=(location,), negatives=table, total_steps=4, folder=tmp_path, in_process=True
    )
    train_on_cluster(job, events.append)
    [adopted] = read_ledger(tmp_path / "negatives").adopted_rounds
    assert (adopted.step, adopted.used_from) == (2, 3)
    assert not seen("ray::CheckpointJob")
    assert not seen("PoolActor")
    texts = [event.text for event in events if hasattr(event, "text")]
    assert "Refreshes use the GPU of the first worker, while training waits for them." in texts


@pytest.mark.parametrize("gpus", [0.0, 0.5])
def test_actors_that_encode_and_search_see_what_they_reserved(
    seen: Seen, case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: float
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    actors = ActorPool(2, 2, gpus=gpus)
    store = embed_corpus(case.model, case.retriever, case.dataset, actors.encode)
    queries = encode_queries(case.retriever, case.dataset, case.dataset.relevant_queries("test"))
    actors.search(store, queries, 5, tie_order(case.dataset.documents.ids))
    for title in ("MapWorker(MapBatches(PoolActor))", "ray::PoolActor"):
        assert seen(title), title
        assert seen(title) <= ({"0", "1"} if gpus else {""})


def evaluation_of(case: Case, model: str) -> EvaluationJob:
    tiny, letters = EvaluatedModel("tiny", replace(case.model, model=model)), str(case.dataset.location)
    datasets = [EvaluationDataset("letters", {"letters": letters}, "test")]
    return EvaluationJob(models=[tiny], datasets=datasets, baselines=["tiny"], precision="fp32")


def test_a_model_is_evaluated_by_a_process_with_a_gpu(seen: Seen, case: Case, tmp_path: Path) -> None:
    here = evaluate(case.dataset, "test", DenseSystem(case.dataset, case.model, case.retriever))
    lines: list[str] = []
    there = evaluate_once(evaluation_of(case, case.model.model), tmp_path / "evaluation", lines.append)
    assert seen("ray::_run_in_task") <= {"0", "1"}
    assert seen("ray::_run_in_task")
    assert there.models["tiny"]["letters"] == pytest.approx(here.metrics)
    assert [line for line in lines if "split test (fp32 on c" in line]


def test_an_error_of_the_process_with_a_gpu_is_one_of_the_user(records: Path, case: Case, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        evaluate_once(evaluation_of(case, str(tmp_path / "nowhere")), tmp_path / "evaluation", print)


def gpus_are_free() -> bool:
    return ray.available_resources().get("GPU", 0) == GPUS


@pytest.fixture
def store(case: Case, tmp_path: Path) -> EmbeddingStore:
    """Documents in shards of 16."""
    plan = plan_embeddings(case.model, case.retriever, case.dataset, "passage", "fp32")
    writer = StoreWriter(tmp_path / "store", replace(plan, shard_rows=16))
    return encode_store(writer, case.model, case.retriever, case.dataset)


def test_an_actor_that_waits_for_a_gpu_delays_no_search(
    seen: Seen, case: Case, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another job takes GPUs between the count and the start: four actors for two GPUs."""
    monkeypatch.setattr(actor_pool, "GRACE_SECONDS", 3.0)
    wait_for(gpus_are_free)
    order = TieOrder.of(tie_order(case.dataset.documents.ids))
    queries = store.read(np.arange(0, len(store), 3))
    corpus = PooledCorpus(ActorPool(1, 4, cpus=0, gpus=1.0), store, order)
    for k in (1, 20, 1_000):
        assert np.array_equal(corpus.keys(queries, k), open_here(store, order).keys(queries, k))
    assert seen("ray::PoolActor") <= {"0", "1"}


def test_a_search_without_any_actor_fails_in_one_line(
    records: Path, case: Case, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_pool, "START_SECONDS", 3.0)
    wait_for(gpus_are_free)
    other = ray.remote(num_gpus=GPUS)(threading.Event).remote()
    wait_for(lambda: ray.available_resources().get("GPU", 0) == 0)
    with pytest.raises(UserError, match="no search actor started within 3 s"):
        ActorPool(2, 2, gpus=1.0).search(store, store.read(np.arange(3)), 5, np.arange(len(store)))
    ray.kill(other)


def test_a_round_uses_the_gpus_that_training_leaves(records: Path) -> None:
    wait_for(gpus_are_free)
    config = Config(refresh=RefreshConfig(refresh_every=2, refresh_pool="2:3"))
    pools = [choose_pool(replace(config, training=TrainingConfig(num_workers=count))) for count in (1, 2)]
    assert pools == [
        ActorPool(1, 1, cpus=0, gpus=1.0),
        None,
    ]  # without a GPU one process for each node, of which one is here


def test_gpus_of_training_are_never_spare(records: Path) -> None:
    wait_for(gpus_are_free)
    assert count_gpus() == GPUS
    assert [spare_gpus(needed) for needed in range(4)] == [2, 1, 0, 0]


def test_more_gpus_than_the_cluster_has_are_one_line_before_anything_starts(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EncodeConfig(actors="3", actor_gpus=1.0)
    with pytest.raises(ConfigError, match="3 actors with 1 GPUs each do not fit"):
        choose_actor_pool(config)
    monkeypatch.setenv("RAY_ADDRESS", "a cluster that may grow, but not to a GPU")
    monkeypatch.setattr("raytriever.cluster.gpus_and_placement.count_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="the cluster has no GPU"):
        choose_actor_pool(config)
