"""Questions of another data set (`--unanswerable PATH`): those that this data set answers are left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytriever.core.errors import DataError
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.protocol import FOREIGN, Protocol, select_judged_queries
from raytriever.evaluation.requested_models import OpenPart, add_foreign_questions


def write(folder: Path, documents: dict[str, str], queries: dict[str, str], judged: dict[str, str]) -> Path:
    folder.joinpath("qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        rows = (json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())
        (folder / f"{name}.jsonl").write_text("".join(rows))
    rows = "".join(f"{query}\t{document}\t1\n" for query, document in judged.items())
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


def test_questions_that_this_data_set_answers_are_left_out(tmp_path: Path) -> None:
    own = write(tmp_path / "own", {"d": "It is blue.", "e": "It is red."}, {"q": "What is it?"}, {"q": "d"})
    other = write(
        tmp_path / "other",
        {"1": "Bell.", "2": "it is  RED.", "3": "Nobody."},
        {"a": "what is IT?", "b": "Which color?", "c": "Who called?"},
        {"a": "1", "b": "2", "c": "3"},
    )
    dataset = open_dataset(own, ["test"])
    part = OpenPart("own", dataset, {"test": select_judged_queries(dataset, "test", Protocol())})
    lines: list[str] = []
    made = add_foreign_questions(part, [str(other)], 0.0, lines.append)
    added = made.judged["test"].unanswerable[FOREIGN].tolist()
    assert [made.dataset.queries.texts[query] for query in added] == ["Who called?"]
    assert lines == ["other: 2 of 3 questions are left out: own has the question, or a relevant passage of it"]
    with pytest.raises(DataError, match=r"own, split 'test': has no question that own does not have; leave it out of"):
        add_foreign_questions(part, [str(own)], 0.0, lines.append)
