from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from raytriever.data.prepare.tokenisation import MAX_CHARACTERS, Tokenisation, flat


def test_a_prefix_goes_in_front_and_nothing_is_cut_or_added(words: Tokenisation) -> None:
    result = words.encode(["query text", "", "x " * 5000], "title ")
    assert result[:2] == [[3, 2, 1], [3]]
    assert len(result[2]) == 5001


def test_beyond_the_bound_a_text_is_not_read(words: Tokenisation) -> None:
    [result] = words.encode(["a " * MAX_CHARACTERS], "")
    assert len(result) == MAX_CHARACTERS // 2


def test_whatever_changes_tokens_changes_the_digest(words: Tokenisation) -> None:
    others = [
        replace(words, query_prompt="a"),
        replace(words, passage_prompt="a"),
        replace(words, query_prompt="a", passage_prompt="a"),
        replace(words, tokenizer=words.tokenizer.replace("query", "queries")),
    ]
    assert len({one.digest for one in [words, *others]}) == 5
    assert "vocab" not in repr(words)


def test_large_vocabularies_take_four_bytes() -> None:
    from tokenizers import Tokenizer, models

    many = Tokenizer(models.WordLevel({f"w{n}": n for n in range(70_000)}, unk_token="w0"))
    assert Tokenisation(many.to_str()).dtype == np.uint32


def test_flat_rows_come_back_by_their_offsets() -> None:
    rows: list[list[int]] = [[1, 2], [], [3]]
    ids, offsets = flat(rows, np.dtype("<u2"))
    assert [ids[start:end].tolist() for start, end in pairwise(offsets)] == [[1, 2], [], [3]]
    assert ids.dtype == np.uint16
    assert flat([], np.dtype("<u2"))[1].tolist() == [0]
