"""A tokenizer without a model, and a data set in BEIR layout to be broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytriever.data.tokenise import Tokenisation


@pytest.fixture(scope="session")
def words_json() -> str:
    """A tokenizer of the library `tokenizers`, serialised: words and marks, split at white space, to few ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0} | {word: place for place, word in enumerate(["text", "query", "title"], start=1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


@pytest.fixture
def words(words_json: str) -> Tokenisation:
    return Tokenisation(words_json)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Forty documents, forty queries, each with its own document as the only judgement, split 30 to 10."""
    folder = tmp_path / "small"
    (folder / "qrels").mkdir(parents=True)
    rows = {
        "corpus": [{"_id": f"d{n}", "title": f"title {n}", "text": f"text {n} of many"} for n in range(40)],
        "queries": [{"_id": f"q{n}", "text": f"query {n}"} for n in range(40)],
    }
    for name, found in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    for split, members in {"train": range(30), "test": range(30, 40)}.items():
        lines = "".join(f"q{n}\td{n}\t1\n" for n in members)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder
