"""Relevance from ids, against a double loop over ids, with any number of workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from batch_ids import BatchIds, TeacherScores, build_loss
from simulated_gpu import CUDA, simulated_gpu, values
from thread_workers import Threads, on_workers

from raytriever.core.errors import LossInputError
from raytriever.losses.batch_and_temperature import PAD, RowRelevance, copy_all
from raytriever.losses.loss_settings import LossConfig

QUERIES, PASSAGES = 8, 24


def partials(size: int, seed: int) -> list[BatchIds]:
    """Few documents, so that much is repeated; rows of unequal length, of another dimension on every worker."""
    generator = torch.Generator().manual_seed(seed)

    def sample(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=generator)

    passages, queries = sample(16, PASSAGES), sample(6, QUERIES)
    positives = passages[sample(PASSAGES, QUERIES, 3)]
    positives[sample(2, QUERIES).bool(), 1] = PAD
    known = sample(20, QUERIES, 4)
    known[sample(2, QUERIES, 4).bool()] = PAD
    groups = torch.cat([positives, sample(20, QUERIES, 3)], 1)
    scores = torch.randn(groups.shape, generator=generator)
    scores[sample(3, *groups.shape) == 0] = torch.nan
    b, n = QUERIES // size, PASSAGES // size
    return [
        BatchIds(
            queries[rank * b :][:b],
            positives[rank * b :][:b],
            passages[rank * n :][:n],
            known[rank * b :][:b, : 4 - rank],
            teacher=TeacherScores(groups[rank * b :][:b], scores[rank * b :][:b]),
        )
        for rank in range(size)
    ]


def hold(result: RowRelevance, everyone: list[BatchIds], rank: int) -> None:
    """Compare with loops over the ids."""
    candidates = list(dict.fromkeys(int(passage) for ids in everyone for passage in ids.passages))
    flat = [int(passage) for ids in everyone for passage in ids.passages]
    assert result.keep(torch.tensor(flat)).tolist() == candidates
    queries = list(dict.fromkeys(int(query) for ids in everyone for query in ids.queries))
    assert result.exchanged.keep(torch.cat([ids.queries for ids in everyone])).tolist() == queries
    pairs, backward = 0, 0
    relevant: dict[int, set[int]] = {query: set() for query in queries}
    for ids in everyone:
        for query, row, known in zip(ids.queries, ids.positives, ids.known, strict=True):
            relevant[int(query)] |= {int(item) for item in (*row, *known)} - {PAD}
    for owner, ids in enumerate(everyone):
        for row in range(len(ids.queries)):
            positives = list(dict.fromkeys(int(positive) for positive in ids.positives[row] if positive != PAD))
            known = {int(item) for item in ids.known[row]} & set(candidates)
            excluded = sorted(candidates.index(positive) for positive in known | set(positives))
            pairs += len(excluded)
            asked_by = sorted(at for at, query in enumerate(queries) if positives[0] in relevant[query])
            backward += len(asked_by)
            if owner != rank:
                continue
            columns = [int(positive) for positive in result.positives[row] if positive != PAD]
            assert columns == [candidates.index(positive) for positive in positives]
            start, end = result.excluded_starts[row : row + 2]
            assert result.excluded_rows[start:end].tolist() == [row] * len(excluded)
            assert result.excluded_columns[start:end].tolist() == excluded
            other = result.exchanged
            assert other.positives[row].tolist() == [queries.index(int(ids.queries[row]))]
            start, end = other.excluded_starts[row : row + 2]
            assert other.excluded_columns[start:end].tolist() == asked_by
            group = result.group
            seen: set[int] = set()
            for slot, (document, score) in enumerate(
                zip(*(table[row] for table in vars(ids.teacher).values()), strict=True)
            ):
                column = int(group.columns[row, slot])
                is_used = int(document) in candidates and not bool(score.isnan()) and int(document) not in seen
                seen |= {int(document)} if is_used else set()
                assert column == (candidates.index(int(document)) if is_used else PAD)
                assert bool(group.is_positive[row, slot]) == (is_used and int(document) in positives)
                assert bool(group.is_negative[row, slot]) == (is_used and column not in excluded)
        if owner == rank:
            documents = [{int(item) for item in row} - {PAD} for row in ids.teacher.documents]
            assert result.group.passages == sum(map(len, documents))
            assert result.queries.tolist() == ids.queries.tolist()
    rows = sum(len(ids.queries) for ids in everyone)
    assert (result.rows, result.negatives) == (rows, rows * len(candidates) - pairs)
    assert result.exchanged.negatives == rows * len(queries) - backward


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [1, 2, 4])
def test_relevance_is_that_of_loops_over_the_ids(size: int, seed: int) -> None:
    everyone = partials(size, seed)
    results = on_workers(size, lambda workers: everyone[workers.rank].relevance(workers))
    for rank, result in enumerate(results):
        hold(result, everyone, rank)


def test_a_relevance_reaches_a_device_in_one_copy() -> None:
    (ids,) = partials(1, 0)
    expected = ids.relevance()
    with simulated_gpu() as counts:
        counts.reset()
        actual = copy_all(expected.map, CUDA)
        assert [item.total() for item in (counts.syncs, counts.pinned, counts.pageable)] == [0, 1, 0]
        assert values(actual.excluded_columns).tolist() == expected.excluded_columns.tolist()
        assert actual.positives.device == CUDA


def test_embeddings_that_are_not_finite_on_one_worker_are_refused_by_all() -> None:
    everyone = partials(2, 2)

    def work(workers: Threads) -> str:
        queries, passages = torch.ones(QUERIES // 2, 3), torch.ones(PASSAGES // 2, 3)
        passages[4, 1] = torch.nan if workers.rank else 1.0
        with pytest.raises(LossInputError) as error:
            build_loss(LossConfig("infonce"))(queries, passages, everyone[workers.rank], workers)
        return str(error.value)

    there, here = on_workers(2, work)
    assert here.startswith("1 of 12 passage embeddings hold NaN or infinity, the first in row 4")
    assert there.startswith("another worker has embeddings that hold NaN or infinity")


def test_ids_that_are_wrong_on_one_worker_are_refused_by_all() -> None:
    everyone = partials(2, 3)
    everyone[1] = replace(everyone[1], positives=torch.full_like(everyone[1].positives, PAD))

    def work(workers: Threads) -> str:
        with pytest.raises(LossInputError) as error:
            everyone[workers.rank].relevance(workers)
        return str(error.value)

    assert len(set(on_workers(2, work))) == 1
