from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROWS = [
    {"premise": "Two women embrace.", "hypothesis": "Women touch.", "label": "entailment", "split": "validation"},
    {"premise": "Two women embrace.", "hypothesis": "Men fight.", "label": "contradiction", "split": "validation"},
    {"premise": "A man plays.", "hypothesis": "He is glad.", "label": "neutral", "split": "train"},
]


def test_what_labels_mean(read, write) -> None:
    result = read(write("pairs.jsonl.gz", ROWS))
    assert (result.plan.format, result.plan.splits) == ("pairs", None)
    assert result.plan.parts[0].split is None
    assert result.positives() == [("Two women embrace.", "Women touch.", 0)]
    assert result.negatives() == [("Two women embrace.", "Men fight.", "gold", 0)]
    assert {row.split for row in result.records.judgements} == {"dev"}
    assert {row.text for row in result.records.documents} == {"Women touch.", "Men fight.", "He is glad."}
    assert {row.text for row in result.records.queries} == {"Two women embrace.", "A man plays."}


def test_numbers_as_the_hub_has_them(read, write) -> None:
    rows = [{key: row[key] for key in ("premise", "hypothesis")} | {"label": n} for n, row in enumerate(ROWS[:1] * 4)]
    rows[3]["label"] = -1
    result = read(write("plain_text/validation-00000-of-00001.parquet", rows))
    assert (result.plan.format, result.plan.splits) == ("pairs", ("dev",))
    assert (len(result.records.judgements), len(result.records.negatives)) == (1, 1)
    assert result.records.judgements[0].split == "dev"
    assert result.bad == ["label '-1' is none of entailment, neutral, contradiction or 0, 1, 2"]


@pytest.mark.parametrize("label", ["-", None, 3, True, 0.0, []])
def test_other_labels_are_bad(read, write, label: object) -> None:
    result = read(write("pairs.jsonl", [ROWS[0] | {"label": label}, ROWS[0]]))
    assert len(result.bad) == 1
    assert "is none of entailment" in result.bad[0]
    assert len(result.records.queries) == 1


@pytest.mark.parametrize("split", ["../../x", "/x", "a/b", ".", "..", "a" * 200, "a\x00", "a b"])
def test_a_split_is_a_name_and_no_path(read, write, split: str) -> None:
    result = read(write("pairs.jsonl", [ROWS[0] | {"split": split}, ROWS[0]]))
    assert result.bad == [f"split {split[:20]!r} is no name; use letters, digits, '_', '.' and '-'"]
    assert {row.split for row in result.records.judgements} == {"dev"}


@pytest.mark.data
@pytest.mark.parametrize(
    ("pack", "positives", "negatives"),
    [
        ("snli", {"dev": 3329, "test": 3368}, 3278 + 3237),
        ("sick", {"train": 1299, "dev": 144, "test": 1414}, 665 + 74 + 720),
        ("indonli", {"train": 3476, "dev": 807, "test": 1849}, 3439 + 749 + 1763),
    ],
)
def test_the_packs(data_packs: Path, read, pack: str, positives: dict[str, int], negatives: int) -> None:
    result = read(data_packs / pack)
    assert (result.plan.format, result.bad) == ("pairs", [])
    assert Counter(row.split for row in result.records.judgements) == positives
    assert len(result.records.negatives) == negatives


@pytest.mark.data
def test_a_pack_without_splits_next_to_another_format(data_packs: Path, read) -> None:
    result = read(data_packs / "climate-fever-evidence", "pairs")
    assert (result.plan.splits, len(result.plan.parts)) == (("train",), 1)
    assert (len(result.records.judgements), len(result.records.negatives)) == (1943, 802)
