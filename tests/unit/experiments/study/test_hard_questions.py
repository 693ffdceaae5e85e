"""Questions that are made: their entities occur in the corpus, no passage has them with the rest of the question."""

from __future__ import annotations

from pathlib import Path

from beir import write_beir

from hard_questions import hard_questions
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_all_splits

TOWNS = ["Graz", "Linz", "Wels", "Steyr", "Krems", "Zwettl", "Melk", "Horn", "Tulln", "Baden"]
PAGES = [
    f"The town of {town} has a bridge that masons repaired in {1800 + 7 * number}. Trains leave {town} in the morning. "
    f"A market in {town} opens daily. The mayor of {town} lives near the market in {town} today."
    for number, town in enumerate(TOWNS)
]


def opened(folder: Path, pages: list[str], questions: list[tuple[str, int]]) -> RetrievalDataset:
    judged = [(n, page) for n, (_, page) in enumerate(questions)]
    return open_all_splits(write_beir(folder / "set", pages, [text for text, _ in questions], test=judged))


def test_a_name_is_replaced_by_one_of_another_passage(tmp_path: Path) -> None:
    page = (
        "A cathedral of granite was painted by monks. The cathedral stands in Linz today. A market in Linz opens daily."
    )
    questions = [
        ("Who painted the granite cathedral in Linz?", 10),
        ("who painted the granite cathedral in linz", 10),
        ("who painted the granite cathedral", 10),
    ]
    dataset = opened(tmp_path, [*PAGES, page], questions)
    made = hard_questions(dataset, [0, 1, 2], 0)
    assert list(made) == [0, 1]
    begin, end = "Who painted the granite cathedral in ", "?"
    assert made[0].startswith(begin)
    assert made[0].endswith(end)
    town = made[0].removeprefix(begin).removesuffix(end)
    assert town in set(TOWNS) - {"Linz"}
    assert made[1].removeprefix(begin.lower()).capitalize() in set(TOWNS) - {"Linz"}
    assert made == hard_questions(dataset, [0, 1, 2], 0)
    assert len({hard_questions(dataset, [0], seed)[0] for seed in range(8)}) > 1


def test_no_question_is_made_that_a_passage_answers(tmp_path: Path) -> None:
    # The page of every town has the words of the question: another town gives a question that has an answer.
    others = [f"Grass grows slowly on hill {letter}." for letter in "abcdefgh"]
    dataset = opened(tmp_path, [*PAGES, *others], [("Where did masons repair the bridge of Linz?", 1)])
    assert hard_questions(dataset, [0], 0) == {}


def test_years_and_numbers(tmp_path: Path) -> None:
    page = "The tower of iron was opened to visitors in 1850 and has 412 steps."
    dataset = opened(tmp_path, [*PAGES, page], [("who opened the iron tower in 1850", 10), ("what has 412 steps", 10)])
    made = hard_questions(dataset, [0, 1], 0)
    year = int(made[0].removeprefix("who opened the iron tower in "))
    assert year in {1800 + 7 * number for number in range(10)}
    assert 3 <= abs(year - 1850) <= 60
    assert 1 not in made  # no other number of three digits
