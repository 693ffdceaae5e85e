"""Statistics of a batch, AUC and drift, against their literal form with any number of workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from batch_ids import BatchIds, build_loss
from examples import gathered_candidates
from thread_workers import on_workers

from raytriever.losses.batch_and_temperature import Candidates
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss import batch_auc, query_positive_distance, query_positive_mmd
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES

QUERIES, PASSAGES = 12, 40


def partials(size: int) -> list[tuple[torch.Tensor, torch.Tensor, BatchIds]]:
    """Coarse scores, so that many are equal; a document that stands twice; two positives, one, and known ones."""
    generator = torch.Generator().manual_seed(4)
    queries = torch.randint(-2, 3, (QUERIES, 3), generator=generator).double()
    passages = torch.randint(-2, 3, (PASSAGES, 3), generator=generator).double()
    passages[-1] = passages[0]
    documents = torch.arange(PASSAGES)
    documents[-1] = 0
    positives = torch.stack([torch.arange(QUERIES), (torch.arange(QUERIES) * 5) % 37], 1)
    positives[::3, 1] = -1
    known = (torch.arange(QUERIES)[:, None] + 20) % 39
    parts = zip(*(table.chunk(size) for table in (queries, passages, positives, documents, known)), strict=True)
    return [(q, p, BatchIds(torch.arange(len(q)), pos, doc, k)) for q, p, pos, doc, k in parts]


def literal_auc(step: int = 1) -> float:
    queries, passages, ids = partials(1)[0]
    scores = queries @ passages[:-1].T
    good, bad = [], []
    for row in range(0, QUERIES, step):
        mine = {int(d) for d in ids.positives[row] if d >= 0}
        good += [float(scores[row, d]) for d in mine]
        bad += [float(scores[row, d]) for d in range(PASSAGES - 1) if d not in mine | {int(ids.known[row])}]
    return sum((g > b) + (g == b) / 2 for g in good for b in bad) / len(good) / len(bad)


def statistic_of_workers(size: int, statistic: Callable[[Candidates, WorkerGroup], torch.Tensor]) -> list[float]:
    """Return the statistic of each of `size` workers."""
    of = partials(size)
    return on_workers(size, lambda workers: float(statistic(gathered_candidates(*of[workers.rank], workers), workers)))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("most", "step"), [(256, 1), (QUERIES, 1), (5, 3), (1, 12)])
def test_the_auc_is_that_of_the_queries_looked_at(size: int, most: int, step: int) -> None:
    expected = literal_auc(step)
    assert 0.1 < expected < 0.9
    for answer in statistic_of_workers(size, lambda candidates, workers: batch_auc(candidates, workers, most)):
        assert answer == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_drift_is_between_queries_and_positives(size: int) -> None:
    queries, passages, ids = partials(1)[0]
    pairs = [(row, int(d)) for row, positive in enumerate(ids.positives) for d in set(positive.tolist()) if d >= 0]
    own, positives = queries[[row for row, _ in pairs]], passages[[document for _, document in pairs]]
    between_centres = float((queries.mean(0) - positives.mean(0)).square().sum())
    expected = {
        query_positive_mmd: between_centres,
        query_positive_distance: float((own - positives).norm(dim=1).mean()),
    }
    for statistic, value in expected.items():
        assert value > 0.01
        for answer in statistic_of_workers(size, statistic):
            assert answer == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_every_loss_logs_both(loss: str) -> None:
    queries, passages, ids = partials(1)[0]
    statistics = build_loss(LossConfig(loss, temperature=0.5))(queries, passages, ids).statistics
    assert float(statistics["batch_auc"]) == pytest.approx(literal_auc(), abs=1e-6)
    assert float(statistics["query_positive_mmd"]) > 0.01
