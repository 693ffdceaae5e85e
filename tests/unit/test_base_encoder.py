"""The base encoder: no token is lost, nothing held out or measured is trained on, and a killed training continues."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from raytriever.errors import ConfigError, DataError
from raytriever.models.source import embedded_minilm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    return importlib.import_module("base_encoder")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Return a text file of 300 sentences of a few words."""
    words = ["rain", "snow", "wind", "sun", "fog"]
    lines = [f"on day {i} there was {words[i % 5]} and then {words[i % 3]} in the valley" for i in range(300)]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(lines) + "\n\n")
    return path


@pytest.fixture
def plan(base: ModuleType) -> Any:
    return base.Plan(steps=12, length=32, tokens=256, learning_rate=0.01, every=4)


def train(base: ModuleType, texts: Path, plan: Any, output: Path, lines: int | None = None, **call: Any) -> Any:
    """Train; with `lines`, die when that line is logged."""

    def log(line: str) -> None:
        logged.append(line)
        if len(logged) == lines:
            raise KeyboardInterrupt

    logged: list[str] = []
    training, facts = base.prepare([str(texts)], plan, **SIZES)
    training.resume(output)
    if lines is None:
        training.train(output, facts, log, **{"minutes": 10, **call})
    else:
        with pytest.raises(KeyboardInterrupt):
            training.train(output, facts, log, minutes=10)
    return training


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "encoder" / "model.safetensors")


@pytest.mark.slow
def test_a_killed_training_continues_to_the_same_weights(
    base: ModuleType, texts: Path, plan: Any, tmp_path: Path
) -> None:
    train(base, texts, plan, tmp_path / "whole")
    killed = train(base, texts, plan, tmp_path / "killed", lines=1)
    killed.step(4)  # done after the checkpoint, and lost
    train(base, texts, plan, tmp_path / "killed")
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    points = json.loads((tmp_path / "killed" / "encoder" / "figures.json").read_text())["measurements"]
    assert [point["step"] for point in points] == [4, 8, 12]
    assert points[-1]["tokens"] == 12 * 256
    assert points[-1]["loss"] < points[0]["loss"]


@pytest.mark.slow
def test_more_steps_continue_and_other_settings_do_not(
    base: ModuleType, texts: Path, plan: Any, tmp_path: Path
) -> None:
    train(base, texts, replace(plan, steps=4), tmp_path)
    first = weights(tmp_path)
    longer = train(base, texts, replace(plan, steps=8), tmp_path)
    assert longer.progress.step == 8
    assert not torch.equal(
        first["embeddings.word_embeddings.weight"], longer.model.bert.embeddings.word_embeddings.weight
    )
    with pytest.raises(ConfigError, match="4 are fewer than the 8 that are done"):
        train(base, texts, replace(plan, steps=4), tmp_path)
    with pytest.raises(ConfigError, match=r"other settings \(seed\)"):
        train(base, texts, replace(plan, seed=1), tmp_path)
    texts.write_text(texts.read_text().replace("valley", "town"))
    with pytest.raises(ConfigError, match=r"other settings \(texts\)"):
        train(base, texts, plan, tmp_path)


def test_packing_keeps_every_token(base: ModuleType) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_minilm(), trust_remote_code=False)
    texts = ["one two three", "four", "five six seven eight nine ten"]
    expected = [token for text in texts for token in tokenizer(text)["input_ids"]]
    packed = base.pack(texts, tokenizer, 7)
    assert packed.shape == (3, 7)
    assert packed[:2].flatten().tolist() == expected[:14]
    assert packed[2].tolist() == expected[-7:]
    with pytest.raises(DataError, match="1 texts have 3 tokens; 7 are needed"):
        base.pack(["four"], tokenizer, 7)


def test_held_out_texts_are_not_trained_on(base: ModuleType, texts: Path, plan: Any) -> None:
    training, facts = base.prepare([str(texts)], plan, **SIZES)
    lines = texts.read_text().split("\n")[:300]
    held_out = [line for line in lines if base.is_held_out(line)]
    assert facts["texts"] == {"trained": 300 - len(held_out), "held_out": len(held_out)}
    assert 0 < len(held_out) < 20
    assert all(base.is_held_out(line.upper() + " ") for line in held_out)
    read = training._tokenizer.decode(training.sequences.flatten().tolist())
    assert [line for line in lines if f"[CLS] {line} [SEP]" in read] == [one for one in lines if one not in held_out]


def test_of_a_data_set_only_texts_of_its_split_are_read(base: ModuleType, tmp_path: Path) -> None:
    """Query 3 is in both splits, queries 4 and 5 have the same words, and document c is judged in both splits."""
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    rows = {"corpus": "abcde", "queries": "12345"}
    texts = {name: f"text {name}" for name in "abcde1235"} | {"4": "TEXT  5"}
    for file, names in rows.items():
        lines = [json.dumps({"_id": name, "title": "", "text": texts[name]}) for name in names]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    judged = {"train": ["1 a", "1 c", "2 b", "3 b", "4 b"], "test": ["3 d", "5 c"]}
    for split, pairs in judged.items():
        table = ["query-id\tcorpus-id\tscore", *("\t".join([*pair.split(), "1"]) for pair in pairs)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(table) + "\n")
    assert base.read_source(str(folder)) == ["text a", "text b", "text 1", "text 2"]
    assert base.read_source(f"{folder}#test") == ["text d"]
    with pytest.raises(DataError, match=r"has no split 'dev'; there are: test, train"):
        base.read_source(f"{folder}#dev")


@pytest.mark.slow
def test_a_missing_source_is_one_line(base: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["base_encoder.py", "gone.txt", "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=r"^base_encoder.py: gone.txt: cannot be read \(.*\); give a file in UTF-8.*$"):
        base.main()
    assert not (tmp_path / "out").exists()
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"text " * 100)[:-20])
    with pytest.raises(DataError, match=r"cut.txt.gz: cannot be read \("):
        base.read_source(str(tmp_path / "cut.txt.gz"))
