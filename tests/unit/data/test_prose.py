from __future__ import annotations

import pytest

from raytriever.data.pydocs.docstrings import flat, normalised, question_and_answer

REST = "It says enough about the matter at issue, " * 5


def test_the_first_sentence_is_the_question() -> None:
    docstring = f"Compute the sum of\n:func:`~numpy.add` over an axis. More here.\n\n{REST}"
    question, answer = question_and_answer(docstring) or ("", "")
    assert question == "Compute the sum of numpy.add over an axis."
    assert answer.startswith("More here. It says enough")


def test_abbreviations_do_not_end_a_sentence() -> None:
    result = question_and_answer(f"Scale the values, e.g. The ones of v2.0 here. Then go.\n\n{REST}")
    assert result is not None
    assert result[0] == "Scale the values, e.g. The ones of v2.0 here."


def test_the_question_does_not_stand_in_the_answer() -> None:
    result = question_and_answer(f"Return the mean of rows.\n\nreturn  the mean\nof rows\n\n{REST}")
    assert result is not None
    assert normalised("Return the mean of rows") not in normalised(result[1])


@pytest.mark.parametrize(
    "docstring",
    [
        "Too short.\n\n" + REST,
        "Says little in the rest of it.\n\nVery little.",
        "Returns: the value of the thing that is.\n\n" + REST,
        "See https://example.org for all of it.\n\n" + REST,
        "Deprecated since the very first version.\n\n" + REST,
        ">>> print(one, two, three, four, five)\n\n" + REST,
        "A sentence that was cut off by\n\n" + REST,
        "The values of this are the following:\n\n" + REST,
        "This long line goes on and on and on and on and on until it stops nowhere\n\n" + REST,
        "",
    ],
)
def test_what_says_too_little_is_left_out(docstring: str) -> None:
    assert question_and_answer(docstring) is None


def test_markup_is_taken_off() -> None:
    text = """
    Parameters
    ----------
    a : ``array_like``
        See `the guide <https://x.org>`_ and [the book](https://y.org), *not* :class:`Foo <bar.Foo>`.
    .. versionadded:: 1.2
    :param b: a number
    :returns: another
    >>> f(1)
    """
    assert flat(text) == ("Parameters a : array_like See the guide and the book, not Foo. b: a number another f(1)")


def test_what_no_file_can_hold_is_taken_out() -> None:
    assert flat("from \ud800 to \u00fc") == "from to \u00fc"


def test_long_answers_end_at_a_word() -> None:
    result = question_and_answer("Return the mean of rows.\n\n" + "word " * 1000)
    assert result is not None
    assert len(result[1]) <= 1200
    assert set(result[1].split()) == {"word"}
