"""Parser of answers, and their JSON schema."""

from __future__ import annotations

import pytest

from raytriever.evaluation.annotation.llm_prompts import (
    ANSWER,
    LONGEST_ANSWER,
    RELEVANCE,
    UTILITY,
    MalformedAnswer,
    build_schema,
    read_answer,
    read_numbers,
)


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ('{"useful": [3, 1]}', [2, 0]),
        ('{"useful": []}', []),
        ('{"useful": [2, 2, 1, 2]}', [1, 0]),
        ('```json\n{"useful": [1]}\n```', [0]),
        ('<think>{"useful": [2]} or not</think> {"useful": [3]}', [2]),
        ('I think {this} first: {"useful": [1]}, no: {"useful": [2]}.', [1]),
        ('{"why": {"a": 1}, "useful": [1]}', [0]),
    ],
)
def test_numbers_are_read_in_the_order_named(content: str, places: list[int]) -> None:
    assert read_numbers(UTILITY, content, 3) == places


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", 'no JSON object with "relevant"'),
        ("no", 'no JSON object with "relevant"'),
        ('{"relevant": [1', 'no JSON object with "relevant"'),
        ('{"useful": [1]}', 'no JSON object with "relevant"'),
        ('{"relevant": "1"}', '"relevant" is no list'),
        ('{"relevant": null}', '"relevant" is no list'),
        ('{"relevant": [0]}', "holds 0, which is no number from 1 to 3"),
        ('{"relevant": [4]}', "holds 4, "),
        ('{"relevant": [-1]}', "holds -1, "),
        ('{"relevant": [1.0]}', "holds 1.0, "),
        ('{"relevant": [true]}', "holds true, "),
        ('{"relevant": ["1"]}', 'holds "1", '),
        ('{"relevant": [[1]]}', "holds [1], "),
        ("{" * 3000, "no JSON object"),
        ('{"a":' * 3000, "no JSON object"),
    ],
)
def test_anything_else_is_malformed(content: str, why: str) -> None:
    with pytest.raises(MalformedAnswer) as error:
        read_numbers(RELEVANCE, content, 3)
    assert why in str(error.value)


def test_answers() -> None:
    assert read_answer('{"answer": " Forty-two. "}') == "Forty-two."
    assert len(read_answer(f'{{"answer": "{"x" * 9000}"}}')) == LONGEST_ANSWER
    assert read_answer('{"answer": "\\ud800"}') == "?"
    for content in ('{"answer": " "}', '{"answer": 42}', '{"answer": null}', "Forty-two."):
        with pytest.raises(MalformedAnswer):
            read_answer(content)


def test_the_schema_allows_what_is_read() -> None:
    import jsonschema

    schema = build_schema(RELEVANCE, 2)
    jsonschema.validate({"relevant": [2, 1]}, schema)
    for wrong in ({"relevant": [3]}, {"relevant": ["1"]}, {}, {"relevant": [], "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    jsonschema.validate({"answer": "yes"}, build_schema(ANSWER, 2))
