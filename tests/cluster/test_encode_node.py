"""Death of a node during `jobs/encode.py` with actors on two nodes; the store has the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from beir import write_beir
from encoding_case import files
from processes import children_of, ended, processes, wait_for
from ray.cluster_utils import Cluster

from raytriever.cli.main import run
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore

SHARDS = 12
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head with room for one actor."""
    two_nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield two_nodes
    two_nodes.shutdown()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_beir(tmp_path / "long", ["abcdefghij"[: n % 9 + 1] * 5 for n in range(SHARDS * 1_024)], ["a"])


def test_the_death_of_a_node_changes_no_byte(
    command_line: Callable,
    started: list,
    tiny_encoder: Path,
    corpus: Path,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cli = command_line()
    words = ["--dataset", str(corpus), "--model", str(tiny_encoder), "--precision", "fp32", "--batch-tokens", "64"]
    for name, value in cli.environment.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as patch:
        patch.setenv("RAYTRIEVER_CACHE", str(cli.folder / "other"))  # or its embeddings would be copied
        assert run("encode", [*words, "--output", str(cli.folder / "peace")]) == 0

    node = cluster.add_node(num_cpus=1)
    [raylet] = node.all_processes["raylet"]
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    store = cli.folder / "interrupted"
    process = cli.start("encode", *words, "--actors", "2", "--output", str(store))
    started.append(process)

    def done() -> set[str]:
        return {file.stem for file in store.glob("*/work/0*.json")}

    def at_work() -> bool:
        """Some shards stand, and the node that is to die has an actor."""
        return bool(done()) and bool(processes("PoolActor", children_of(raylet.process.pid)))

    wait_for(at_work, 120, process)
    cluster.remove_node(node, allow_graceful=False)

    def written(names: set[str]) -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for name in names for file in store.glob(f"*/{name}.*.npy")}

    whole = done()
    before = written(whole)
    assert len(whole) < SHARDS - 1
    ended(process)
    # The same bytes, and what stood was not made again.
    assert files(store) == files(cli.folder / "peace")
    assert written(whole) == before
    assert len(EmbeddingStore.open(store)) == SHARDS * 1_024
    assert len(os.listdir(store)) == 2
