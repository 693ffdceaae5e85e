"""Directories that sentence-transformers writes, read by raytriever: the embeddings of both libraries are compared.

Run: `python benchmarks/zoo.py [--json PATH] [--only PART]`. `tests/support/cases.py` lists the directories: tiny
models with random weights, so that a property that is read wrongly changes the embeddings. Each is encoded on 8 texts
of 3 to 3,000 tokens as queries and as passages, in float32, by `SentenceTransformer.encode_query` and
`encode_document` and by raytriever. Two figures are compared: the smallest cosine of a text, and the largest difference
of a score over the largest score."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy import ndarray
from sentence_transformers import SentenceTransformer

from ends import End, exactly, parser, report, reported
from raytriever.core.errors import UserError
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.encode_texts import encode_texts

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from cases import CASES, TEXTS, Case

AGREES = 0.9999


@dataclass(frozen=True)
class Encoded:
    """Embeddings of the texts as queries and as passages, and their scores."""

    queries: ndarray
    passages: ndarray
    scores: ndarray


@dataclass(frozen=True)
class Examined:
    """Result of one directory.

    Args:
        refusal: error of raytriever, or empty.
        cosine: smallest cosine of a text.
        scores: largest difference of a score, over the largest score.
    """

    refusal: str = ""
    cosine: float = 0.0
    scores: float = 1.0


def by_library(folder: Path, texts: Sequence[str] = TEXTS) -> Encoded:
    """Return what sentence-transformers computes."""
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    queries, passages = (encode(texts, batch_size=4) for encode in (model.encode_query, model.encode_document))
    return Encoded(queries, passages, model.similarity(queries, passages).numpy())


def by_raytriever(retriever: Retriever, texts: Sequence[str] = TEXTS) -> Encoded:
    """Return what raytriever computes."""
    queries, passages = (encode_texts(retriever, texts, side) for side in ("query", "passage"))
    return Encoded(queries, passages, queries @ passages.T)


def smallest_cosine(one: Encoded, other: Encoded) -> float:
    """Return the smallest cosine of a text's two embeddings; 0 if they have another dimension."""
    if one.queries.shape != other.queries.shape:
        return 0.0
    cosines = [
        (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        for a, b in ((one.queries, other.queries), (one.passages, other.passages))
    ]
    return float(np.concatenate(cosines).min())


def difference_of_scores(one: Encoded, other: Encoded) -> float:
    """Return the largest difference of a score, over the largest score, at most 1."""
    return float(min(1, np.abs(one.scores - other.scores).max() / np.abs(one.scores).max()))


def examine(folder: Path) -> Examined:
    """Read a directory with both libraries, and compare them."""
    try:
        retriever = load_retriever(ModelConfig(str(folder)))
    except UserError as error:
        return Examined(refusal=str(error))
    library, own = by_library(folder), by_raytriever(retriever)
    return Examined("", smallest_cosine(library, own), difference_of_scores(library, own))


def holds(case: Case, examined: Examined) -> bool:
    """Return True if the directory agrees, or is refused in one line with the expected reason."""
    if case.refused:
        return case.refused in examined.refusal and "\n" not in examined.refusal
    return not examined.refusal and examined.cosine >= AGREES and examined.scores <= 1 - AGREES


def main() -> None:
    """Print the table of all directories, and write the ends."""
    command = parser(__doc__.partition("\n")[0])
    command.add_argument("--only", default="", metavar="PART", help="only directories whose names contain this")
    arguments = command.parse_args()
    logging.disable(logging.WARNING)
    cases = [case for case in CASES if arguments.only in case.name]
    results = {}
    with TemporaryDirectory() as work:
        for case in cases:
            folder = Path(work) / case.name
            case.write(folder)
            examined = results[case.name] = examine(folder)
            outcome = examined.refusal or f"cosine {examined.cosine:.6f}, scores {examined.scores:.1e}"
            print(f"{case.name:<28} {'holds' if holds(case, examined) else 'FAILS'} {outcome}", flush=True)
    read = [examined for examined in results.values() if not examined.refusal]
    refused = sum(bool(case.refused) for case in cases)
    failed = sum(not holds(case, results[case.name]) for case in cases)
    distance, scores = 1 - min(e.cosine for e in read), max(e.scores for e in read)
    ends = {
        "directories": End(len(cases), ">= 30", len(cases) >= 30),
        "of these to refuse in one line": reported(refused),
        "directories that are read or refused wrongly": exactly(failed, 0),
        "largest 1 - cosine of an embedding": End(distance, "<= 1e-4", distance <= 1 - AGREES),
        "largest difference of scores, over the largest score": End(scores, "<= 1e-4", scores <= 1e-4),
    }
    report("zoo", ends, arguments.json)


if __name__ == "__main__":
    main()
