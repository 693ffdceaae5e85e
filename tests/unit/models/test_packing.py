"""Packed batches of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raytriever.models.packing import is_packed, join, lengths_of, move, pack, select, texts_of, tokens_of

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
def test_texts_that_are_selected_and_joined_again_are_the_same(prompts: list[int] | None) -> None:
    part = pack(TEXTS, prompt_lengths=prompts)
    pieces = [select(part, 0, 1), select(part, 1, 3)]
    expected = pack(TEXTS[1:], prompt_lengths=prompts and prompts[1:])
    assert {name: tensor.tolist() for name, tensor in pieces[1].items()} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }
    joined = join(pieces)
    assert joined.keys() == part.keys()
    assert all(torch.equal(joined[name], part[name]) and joined[name].dtype == part[name].dtype for name in part)
