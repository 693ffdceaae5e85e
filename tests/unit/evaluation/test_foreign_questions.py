"""Questions of another data set (`--unanswerable PATH`): those that this data set answers are left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from beir import write_beir

from raytriever.core.errors import DataError
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.protocol import FOREIGN, Protocol, select_judged_queries
from raytriever.evaluation.requested_models import OpenPart, add_foreign_questions


def test_questions_that_this_data_set_answers_are_left_out(tmp_path: Path) -> None:
    own = write_beir(tmp_path / "own", ["It is blue.", "It is red."], ["What is it?"], test=[(0, 0)])
    passages, questions = ["Bell.", "it is  RED.", "Nobody."], ["what is IT?", "Which color?", "Who called?"]
    other = write_beir(tmp_path / "other", passages, questions, test=[(n, n) for n in range(3)])
    dataset = open_dataset(own, ["test"])
    part = OpenPart("own", dataset, {"test": select_judged_queries(dataset, "test", Protocol())})
    lines: list[str] = []
    made = add_foreign_questions(part, [str(other)], 0.0, lines.append)
    added = made.judged["test"].unanswerable[FOREIGN].tolist()
    assert [made.dataset.queries.texts[query] for query in added] == ["Who called?"]
    assert lines == ["other: 2 of 3 questions are left out: own has the question, or a relevant passage of it"]
    with pytest.raises(DataError, match=r"own, split 'test': has no question that own does not have or answer; leave"):
        add_foreign_questions(part, [str(own)], 0.0, lines.append)
