"""A cross-encoder as the judge: its scores beside transformers' own, and directories that cannot be one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raytriever.errors import ModelError
from raytriever.retrieval.mine_judge import CrossEncoder

PAIRS = (["what is ab", "cd", "a b c d e"], ["ab is ba", "a long passage " * 40, "x"])


@pytest.fixture(scope="module")
def judge(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of one score with random weights."""
    return made(tiny_encoder, tmp_path_factory.mktemp("judge") / "one", num_labels=1)


def made(tokenizer: Path, folder: Path, **settings: Any) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    shutil.copytree(tokenizer, folder)
    (folder / "model.safetensors").unlink()
    torch.manual_seed(1)
    config = BertConfig.from_pretrained(tokenizer)
    for name, value in settings.items():
        setattr(config, name, value)
    model = BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight, std=2)
    model.save_pretrained(folder)
    return folder


def literal(folder: Path) -> np.ndarray:
    """Each pair alone, by transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        found = [
            model(**tokenizer(query, passage, truncation=True, max_length=64, return_tensors="pt")).logits.item()
            for query, passage in zip(*PAIRS, strict=True)
        ]
    return np.array(found)


def test_scores_are_those_of_transformers_through_a_sigmoid(judge: Path) -> None:
    scores = CrossEncoder(judge, torch.device("cpu"), "fp32")(*PAIRS)
    wanted = literal(judge)
    assert np.ptp(wanted) > 0.1
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-wanted)), atol=1e-5)


def test_an_identity_that_the_configuration_names_is_heeded(tiny_encoder: Path, tmp_path: Path) -> None:
    told = {"activation_fn": "torch.nn.modules.linear.Identity"}
    folder = made(tiny_encoder, tmp_path / "identity", num_labels=1, sentence_transformers=told)
    np.testing.assert_allclose(CrossEncoder(folder, torch.device("cpu"), "fp32")(*PAIRS), literal(folder), atol=1e-4)


def test_what_cannot_judge_is_refused(tiny_encoder: Path, judge: Path, tmp_path: Path) -> None:
    def refused(folder: Path) -> str:
        with pytest.raises(ModelError) as error:
            CrossEncoder(folder, torch.device("cpu"), "fp32")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "holds no config.json" in refused(tmp_path / "none")
    assert "tells 3 labels apart" in refused(made(tiny_encoder, tmp_path / "three", num_labels=3))
    # An encoder without a head: transformers alone would give it a random one.
    headless = Path(shutil.copytree(tiny_encoder, tmp_path / "headless"))
    config = (headless / "config.json").read_text().replace("{", '{"num_labels": 1,', 1)
    (headless / "config.json").write_text(config)
    assert "has no trained weights for classifier" in refused(headless)
    pickled = Path(shutil.copytree(judge, tmp_path / "pickled"))
    torch.save({}, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    assert "cannot be loaded" in refused(pickled)
