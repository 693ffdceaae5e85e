"""The losses never make the processor wait for a GPU, but once: no operation whose result the host must read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from examples import example, gathered_candidates
from sham_device import CUDA, sham_device
from torch.utils._python_dispatch import TorchDispatchMode

from raytriever.losses.batch import Candidates
from raytriever.losses.config import LOSS_NAMES, LossConfig
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss import batch_auc, query_positive_distance, query_positive_mmd
from raytriever.losses.mw.pairwise import PairwiseSums, TensorWalk
from raytriever.losses.registry import LOSSES, build_loss
from raytriever.losses.relevance import gather_relevance

READ_BY_THE_HOST = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "is_nonzero", "equal"}


class Waits(TorchDispatchMode):
    """Names of operations that would wait on a GPU, as far as they can be seen on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        is_mask = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in READ_BY_THE_HOST or is_mask:
            self.reads.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    before = torch.Tensor.tolist
    with monkeypatch.context() as patched, Waits() as mode:

        def tolist(tensor: torch.Tensor) -> list:
            mode.reads.append("tolist")
            return before(tensor)

        patched.setattr(torch.Tensor, "tolist", tolist)
        yield mode.reads


@pytest.fixture
def on_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """MW as on a GPU: the compiled pass of a processor reads tensors as arrays."""
    monkeypatch.setattr(
        PairwiseSums,
        "walk",
        lambda sums, scale=1.0: TensorWalk(sums._grid, sums._slope @ sums._refinement.T * scale, scale),
    )


def gathered() -> tuple[Candidates, object]:
    batch = example(0, batch=40, hard=3, positives=3, width=8)
    inputs = [x.detach().float().requires_grad_() for x in (batch.queries, batch.passages)]
    return replace(gathered_candidates(*inputs, batch.ids, temperature=0.1), largest_score=200.0), batch.ids


@pytest.mark.usefixtures("on_tensors")
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_a_loss_and_its_gradient_wait_for_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LossConfig(loss=name, temperature=0.1)
    for _ in range(2):  # constants are computed at the first call
        batch, ids = gathered()
        with waits(monkeypatch) as reads:
            LOSSES[name](config, batch, ids, ALONE).share.backward()
    assert reads == []


def test_the_statistics_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = gathered()
    with waits(monkeypatch) as reads:
        for statistic in (batch_auc, query_positive_distance, query_positive_mmd):
            statistic(batch, ALONE)
    assert reads == []


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_a_loss_on_a_device_waits_once(name: str) -> None:
    batch = example(2, batch=20, hard=3, positives=3, width=8)
    with sham_device() as counts:
        relevance = gather_relevance(batch.ids, ALONE, CUDA, both_ways=True)  # as the loader does
        loss = build_loss(LossConfig(loss=name, temperature=0.1 if name != "triplet" else 0.01)).to(CUDA)
        for _ in range(2):
            counts.syncs.clear()
            inputs = [x.detach().float().to(CUDA).requires_grad_() for x in (batch.queries, batch.passages)]
            loss(*inputs, replace(batch.ids, relevance=relevance)).value.backward()
    lines = [line for line in counts.syncs.elements() if "losses/" in line]
    assert [line.split(":")[0] for line in lines] == ["to the host losses/loss.py"]


@pytest.mark.parametrize("learns", [False, True])
def test_the_bounds_of_all_widths_are_read_once(learns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = example(1, batch=40, hard=3, positives=3, width=8)
    loss = build_loss(
        LossConfig(loss="infonce", temperature=0.1, matryoshka_dims="4,2", learn_temperature=learns), unit_length=True
    )
    batch, _ = gathered()
    with waits(monkeypatch) as reads:
        bound = loss._largest_score(batch, batch.embeddings, ALONE)
    assert reads == ["tolist"]
    assert bound >= float((batch.queries @ batch.embeddings.T).detach().abs().max() / 0.1)
    with waits(monkeypatch) as nested:
        loss(sample.queries, sample.passages, sample.ids)
    one_width = build_loss(LossConfig(loss="infonce", temperature=0.1))
    with waits(monkeypatch) as whole:
        one_width(sample.queries, sample.passages, sample.ids)
    assert len(nested) == len(whole)
