"""Cross-encoder: scores equal those of transformers and sentence-transformers; unusable directories are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import write_cross_encoder

from raytriever.core.errors import ModelError
from raytriever.models.cross_encoder import CrossEncoder

PAIRS = (["what is ab", "cd", "a b c d e"], ["ab is ba", "a long passage " * 40, "x"])


@pytest.fixture(scope="module")
def judge(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of one score with random weights."""
    return write_cross_encoder(tiny_encoder, tmp_path_factory.mktemp("judge") / "one")


def literal(folder: Path) -> np.ndarray:
    """Each pair alone, by transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        results = [
            model(**tokenizer(query, passage, truncation=True, max_length=64, return_tensors="pt")).logits.item()
            for query, passage in zip(*PAIRS, strict=True)
        ]
    return np.array(results)


def test_logits_are_the_scores_before_the_activation(judge: Path) -> None:
    scores = CrossEncoder(judge, torch.device("cpu"), "fp32").logits(*PAIRS)
    np.testing.assert_allclose(scores, literal(judge), atol=1e-5)


def test_a_length_truncates_the_longer_text(judge: Path) -> None:
    cut, whole = (CrossEncoder(judge, torch.device("cpu"), "fp32", length) for length in (16, None))
    assert (cut.length, whole.length) == (16, 64)
    queries, passages = ["ab", "ab"], ["cd", "c d e f g h i j k l m n o p q r"]
    same, other = np.abs(cut.logits(queries, passages) - whole.logits(queries, passages))
    assert same < 1e-6 < 1e-4 < other
    for length in (7, 65):
        with pytest.raises(ModelError, match=f"cannot read pairs of {length} tokens; give a length from 8 to 64"):
            CrossEncoder(judge, torch.device("cpu"), "fp32", length)


@pytest.mark.parametrize("activation", [torch.nn.Identity(), torch.nn.Sigmoid()], ids=["identity", "sigmoid"])
def test_directories_of_sentence_transformers_give_its_scores(
    judge: Path, tmp_path: Path, activation: torch.nn.Module
) -> None:
    import sentence_transformers

    theirs = sentence_transformers.CrossEncoder(str(judge), activation_fn=activation, device="cpu")
    theirs.save_pretrained(str(tmp_path / "saved"))
    ours = CrossEncoder(tmp_path / "saved", torch.device("cpu"), "fp32")
    assert ours.activation == type(activation).__name__
    wanted = theirs.predict(list(zip(*PAIRS, strict=True)), show_progress_bar=False)
    np.testing.assert_allclose(ours(*PAIRS), wanted, atol=1e-5)


def test_the_digest_covers_the_files_that_decide_a_score(judge: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(judge, tmp_path / "copy"))
    (copy / "README.md").write_text("about it")
    digests = [CrossEncoder(folder, torch.device("cpu"), "fp32").digest() for folder in (judge, copy)]
    assert digests[0] == digests[1]
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**content, "layer_norm_eps": 1e-5}))
    assert CrossEncoder(copy, torch.device("cpu"), "fp32").digest() != digests[0]


def test_unusable_directories_are_refused(tiny_encoder: Path, judge: Path, tmp_path: Path) -> None:
    def refused(folder: Path) -> str:
        with pytest.raises(ModelError) as error:
            CrossEncoder(folder, torch.device("cpu"), "fp32")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "has no config.json" in refused(tmp_path / "none")
    assert "has 3 labels" in refused(write_cross_encoder(tiny_encoder, tmp_path / "three", num_labels=3))
    # An encoder without a head: transformers alone would give it a random one.
    headless = Path(shutil.copytree(tiny_encoder, tmp_path / "headless"))
    config = (headless / "config.json").read_text().replace("{", '{"num_labels": 1,', 1)
    (headless / "config.json").write_text(config)
    assert "has no trained weights for classifier" in refused(headless)
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in ("Transformer", "Pooling")]
    for name, content, message in (
        ("modules.json", modules, "consists of Transformer, Pooling and"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "needs the prompt 'query'"),
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.Tanh"}, "has the activation 'Tanh'"),
        ("config_sentence_transformers.json", [1], "the content is a list, expected an object"),
    ):
        other = Path(shutil.copytree(judge, tmp_path / message[:9]))
        (other / name).write_text(json.dumps(content))
        assert message in refused(other)
