"""Stores of embeddings, written by actors of Ray Data in a real session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from beir import write_beir
from deadly_encoder import LoadDeadly
from encoding_case import Case, files

from raytriever.cluster.actor_pool import ActorPool
from raytriever.core.errors import ModelError
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.embed_corpus import encode_store, plan_embeddings
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder, encode_in_process
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter

DOCUMENTS, SKULL = 96, 41
POOL = ActorPool(1, 2)
pytestmark = pytest.mark.slow


@pytest.fixture
def case(tiny_encoder: Path, tmp_path: Path, own_cache: Path) -> Case:
    """A corpus in shards of 16, with one text that has a `%`."""
    texts = ["a" * (n % 50 + 1) + "%" * (n == SKULL) for n in range(DOCUMENTS)]
    dataset = open_dataset(write_beir(tmp_path / "numbers", texts, ["a"]), [])
    config = ModelConfig(str(tiny_encoder))
    return Case(config, load_for_encoding(config, "fp32"), dataset, tmp_path, shard_rows=16, batch_tokens=100)


def deadly(case: Case) -> ShardEncoder:
    """Return the encoder of a store, which is killed by a `%`."""
    writer = StoreWriter(case.folder / "store", case.plan)
    writer.begin()
    load = LoadDeadly(case.config.model, "%", case.folder / "store.deaths")
    return ShardEncoder(writer, load, str(case.dataset.location))


def test_actors_write_what_one_process_writes(session: None, case: Case) -> None:
    stores = []
    for name, run in {"alone": encode_in_process, "actors": POOL.encode}.items():
        writer = StoreWriter(case.folder / name, case.plan)
        stores.append(files(encode_store(writer, case.config, case.retriever, case.dataset, run).path))
    assert stores[0] == stores[1]
    assert len(list(case.folder.glob("actors/*/*.embeddings.npy"))) == 6


def test_actors_copy_what_earlier_stores_have_and_encode_the_rest(session: None, case: Case) -> None:
    first = StoreWriter(case.folder / "cache" / "embeddings" / "first", case.plan)
    embeddings = encode_store(first, case.config, case.retriever, case.dataset).array()
    texts = [*case.dataset.passages()]
    rows = ["ab", *texts[:40], "abc", *texts[40:]]
    dataset = open_dataset(write_beir(case.folder / "numbers", rows, ["a"]), [])
    plan = plan_embeddings(case.config, case.retriever, dataset, "passage", "fp32")
    writer = StoreWriter(case.folder / "second", replace(plan, shard_rows=16, batch_tokens=100))
    encoded: list[int] = []

    def run(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        POOL.encode(encoder, missing, encoded.append)

    second = encode_store(writer, case.config, case.retriever, dataset, run).array()
    assert sorted(encoded) == [1, 1]
    copied = [row for row in range(len(rows)) if row not in (0, 41)]
    # Equal texts have one embedding, that of the first.
    assert second[copied].tobytes() == embeddings[[texts.index(text) for text in texts]].tobytes()
    assert (abs(second[[0, 41]]).sum(1) > 0).all()


def test_a_shard_that_kills_three_actors_is_named(session: None, case: Case) -> None:
    encoder = deadly(case)
    with pytest.raises(ModelError, match=r"numbers \(passage\), rows 33 to 48: 3 processes died while they loaded"):
        POOL.encode(encoder, encoder.writer.missing(), lambda rows: None)
    assert (case.folder / "store.deaths").read_text().count("died") == 3
    assert not list(encoder.writer.work.glob("*.begun"))  # the next command tries again


def test_a_user_error_in_an_actor_is_one_line(session: None, case: Case, tmp_path: Path) -> None:
    encoder = deadly(case)
    broken = replace(encoder, load=replace(encoder.load, model=str(tmp_path / "none")))
    with pytest.raises(ModelError, match="no such directory") as caught:
        POOL.encode(broken, encoder.writer.missing(), lambda rows: None)
    assert "\n" not in str(caught.value)
