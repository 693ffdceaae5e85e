"""A function and a model of sentence-transformers are measured as the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytriever as rt


def test_a_function_and_a_library_model_are_measured(tiny_encoder: Path, letters: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = rt.load_model(tiny_encoder)

    def encode(texts: list[str], side: str) -> Any:
        return model.encode_queries(texts) if side == "query" else model.encode_passages(texts)

    library = SentenceTransformer(str(tiny_encoder), device="cpu")
    systems = {"here": model, "mine": encode, "library": library, "both": f"bm25+{tiny_encoder}", "fused": "bm25+mine"}
    report = rt.evaluate(systems, letters)
    here, mine, library, both, fused = (report.metrics[name]["letters"] for name in systems)
    assert mine == pytest.approx(here, abs=1e-6)
    assert library == pytest.approx(here, abs=1e-3)
    assert fused == pytest.approx(both, abs=1e-6)
    assert report.to_pandas()["ndcg_at_10"].iloc[4] != report.to_pandas()["ndcg_at_10"].iloc[1]


@pytest.mark.parametrize(
    ("encode", "line"),
    [
        (3, "models: holds int; give names, paths, models, runs, encode(texts, side) or a SentenceTransformer"),
        (lambda texts, side: [1.0], "mine: returns float64 [1] for 1 texts; return numbers, an array [texts, comp"),
        (
            lambda texts, side: np.full((len(texts), 2), np.nan),
            "mine: returns NaN or infinity for the text 'dimension'",
        ),
        (lambda texts, side: np.ones((len(texts), len(texts[0]))), "components, but returned 5 before; return one"),
    ],
)
def test_what_is_wrong_with_a_function_is_one_line(letters: Path, encode: Any, line: str) -> None:
    with pytest.raises(rt.ConfigError) as error:
        rt.evaluate({"mine": encode}, letters)
    assert line in str(error.value)
