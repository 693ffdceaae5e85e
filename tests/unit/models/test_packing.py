"""Packed batches of tokens; buckets keep order and values, and their cut is the cheapest."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from numpy import ndarray

from raytriever.models import packing
from raytriever.models.packing import (
    BUCKET_COST,
    Buckets,
    cut_points,
    fill_buckets,
    is_packed,
    join,
    lengths_of,
    move,
    pack,
    texts_of,
    token_cost,
    tokens_of,
)

TEXTS = [np.array([7, 8, 9]), np.array([5]), np.array([1, 2], dtype=np.int32)]
PADDED = {
    "input_ids": torch.zeros(2, 4, dtype=torch.long),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
}


def test_texts_lie_one_after_another_and_each_starts_at_the_first_position() -> None:
    part = pack(TEXTS, first_position=2, prompt_lengths=[1, 0, 2])
    assert {name: tensor.tolist() for name, tensor in part.items()} == {
        "input_ids": [[7, 8, 9, 5, 1, 2]],
        "position_ids": [[2, 3, 4, 2, 2, 3]],
        "starts": [0, 3, 4, 6],
        "lengths": [3, 1, 2],
        "left_out": [1, 0, 2],
    }
    assert part["starts"].dtype == torch.int32
    assert all(part[name].dtype == torch.int64 for name in part if name != "starts")


def test_texts_and_tokens_of_both_forms_are_counted() -> None:
    part = pack(TEXTS)
    assert (is_packed(part), texts_of(part), tokens_of(part), lengths_of(part).tolist()) == (True, 3, 6, [3, 1, 2])
    padded = texts_of(PADDED), tokens_of(PADDED), lengths_of(PADDED).tolist()
    assert (is_packed(PADDED), *padded) == (False, 2, 8, [4, 2])


def test_lengths_are_never_copied_to_a_device() -> None:
    moved = move(pack(TEXTS), lambda tensor: tensor.to("meta"))
    assert {name for name, tensor in moved.items() if tensor.device.type == "cpu"} == {"lengths"}


@pytest.mark.parametrize("prompts", [None, [1, 0, 2]])
def test_packed_batches_that_are_joined_are_one(prompts: list[int] | None) -> None:
    part = pack(TEXTS, prompt_lengths=prompts)
    pieces = [pack(TEXTS[item], prompt_lengths=prompts and prompts[item]) for item in (slice(1), slice(1, 3))]
    joined = join(pieces)
    assert joined.keys() == part.keys()
    assert all(torch.equal(joined[name], part[name]) and joined[name].dtype == part[name].dtype for name in part)


def pad(rows: list[ndarray]) -> dict[str, torch.Tensor]:
    dim = max(map(len, rows))
    return {"input_ids": torch.tensor([[*row, *[0] * (dim - len(row))] for row in rows], dtype=torch.int64)}


def make_buckets(lengths: list[int], most: int | None = None) -> Buckets:
    """Return buckets of texts with these lengths; text n consists of the token n + 1."""
    return fill_buckets([np.full(length, row + 1) for row, length in enumerate(lengths)], pad, most)


def cost(lengths: ndarray, cuts: list[int]) -> int:
    return sum(int(token_cost(part.max())) * len(part) + BUCKET_COST for part in np.split(lengths, cuts))


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cut_is_cheaper(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(1, 120, rng.integers(1, 11)) * rng.choice([1, 4]))
    monkeypatch.setattr(packing, "BUCKETS", int(rng.integers(1, 5)))
    monkeypatch.setattr(packing, "LEVELS", 1_000)  # every length is a level
    others = (cuts for more in range(packing.BUCKETS) for cuts in combinations(range(1, len(lengths)), more))
    cuts = cut_points(lengths)
    assert len(cuts) < packing.BUCKETS
    assert cost(lengths, cuts) == min(cost(lengths, list(other)) for other in others)


def test_many_distinct_lengths_have_a_nearly_cheapest_cut() -> None:
    lengths = np.sort(np.random.default_rng(0).integers(3, 8_192, 3_000))
    even = [len(part) for part in np.array_split(lengths, packing.BUCKETS)]
    assert cost(lengths, cut_points(lengths)) <= cost(lengths, np.cumsum(even)[:-1].tolist())


def test_texts_of_one_length_share_a_bucket_unless_a_split_saves_tokens() -> None:
    assert cut_points(np.array([7] * 1_000)) == []
    assert cut_points(np.array([3, 4, 5])) == []
    assert cut_points(np.array([3] * 100 + [300])) == [100]


@pytest.mark.parametrize("most", [None, 1, 50, 400])
def test_every_text_is_in_one_bucket_at_its_index(most: int | None) -> None:
    lengths = np.random.default_rng(1).integers(1, 90, 70).tolist()
    result = make_buckets(lengths, most)
    laid = torch.cat([part["input_ids"][:, 0] for part in result.buckets])[result.indices]
    assert laid.tolist() == list(range(1, 71))
    tokens = [int((part["input_ids"] > 0).sum()) for part in result.buckets]
    assert sum(tokens) == sum(lengths)
    if most:
        # One text at least; otherwise what a fair fraction of the part's texts takes, a text more where it is uneven.
        assert all(len(ids) == 1 or ids[:-1].numel() <= most for ids in (part["input_ids"] for part in result.buckets))
