"""Data and an encoder with random weights for a training on a machine without a network.

Run: `PYTHONPATH=platform python benchmarks/on_gpu/mission_data.py FOLDER [--shape minilm] [--documents 5000]`. It
writes `FOLDER/SHAPE`, and in `FOLDER/data` a corpus of random words, a query from the words of each document, and
judgements of train, dev and test in BEIR's layout."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from on_gpu.models import SHAPES, contents, words_of, write_model

QUERY_WORDS, DOCUMENT_TOKENS = 12, 64


def main() -> int:
    """Write the data and the encoder."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--shape", choices=SHAPES, default="minilm")
    options.add_argument("--documents", type=int, default=5_000)
    arguments = options.parse_args()
    write_model(arguments.folder, arguments.shape, torch.device("cpu"))
    write_data(arguments.folder / "data", arguments.documents)
    return 0


def write_data(folder: Path, documents: int) -> None:
    """Write corpus, queries and judgements; the first eight tenths of the queries are those of train."""
    (folder / "qrels").mkdir(parents=True)
    rng = np.random.default_rng(0)
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as queries:
        for row, text in enumerate(contents(documents, DOCUMENT_TOKENS, 0)):
            some = rng.permutation(text)[:QUERY_WORDS]
            corpus.write(json.dumps({"_id": f"d{row}", "title": "", "text": words_of(text)}) + "\n")
            queries.write(json.dumps({"_id": f"q{row}", "text": words_of(some)}) + "\n")
    ends = {"train": (0, 8), "dev": (8, 9), "test": (9, 10)}
    for split, (begin, end) in ends.items():
        rows = range(documents * begin // 10, documents * end // 10)
        lines = [f"q{row}\td{row}\t1\n" for row in rows]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))


if __name__ == "__main__":
    sys.exit(main())
