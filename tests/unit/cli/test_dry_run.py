"""`train --dry-run` plans the memory from `config.json` alone, a guide included, and starts nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, Qwen3Config

from raytriever.cli.main import run
from raytriever.core.errors import ModelError
from raytriever.training.guide_encoder import guide_errors

TINY = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Directory with the `config.json` of a small decoder, and no other file."""
    folder = tmp_path / "decoder"
    Qwen3Config(**TINY, intermediate_size=128, num_key_value_heads=1, head_dim=32).save_pretrained(folder)
    return folder


@pytest.fixture
def dry_run(work: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run `train --dry-run`, which must succeed and write no file; return its lines."""

    def lines(*words: object) -> list[str]:
        assert run("train", [*map(str, words), "--dry-run"]) == 0
        assert not list(work.iterdir())
        return capsys.readouterr().out.splitlines()

    return lines


def row(lines: list[str], title: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(title + "  ")]
    return line.removeprefix(title).split()


@pytest.mark.slow
def test_a_model_without_weights_is_planned(dry_run: Callable[..., list[str]], model: Path) -> None:
    lines = dry_run("--model", model, "--passage-length", 64, "--batch-size", 256, "--lora-rank", 2)
    assert re.fullmatch(rf"{model} \(Qwen3Model\): [\d,]+ weights, [\d,]+ of them trained \(LoRA of rank 2\)", lines[0])
    assert "no model.safetensors" in lines[1]
    assert lines[2].startswith("A step of one worker: 256 queries and 256 passages of at most 64 tokens; ddp")
    assert row(lines, "texts in a chunk") == ["512"] * 3
    assert lines[-3:] == [
        f"{device}: fits without gradient caching" for device in ("24 GB card", "80 GB card", "this machine")
    ]
    parts = ("weights", "gradients", "optimizer states (AdamW)", "weights cast to bf16")
    parts += ("embeddings and scores of the batch", "activations of a chunk", "temporary tensors")
    for column in range(3):
        total = sum(float(row(lines, part)[column]) for part in parts)
        assert total == pytest.approx(float(row(lines, "sum")[column]), abs=0.04)


@pytest.mark.slow
def test_the_flags_of_the_largest_chunk_are_named(
    dry_run: Callable[..., list[str]], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raytriever.experiments.run.dry_run.CARDS", (0.03, 0.001))
    lines = dry_run("--model", model, "--passage-length", 64, "--batch-size", 64)
    planned = re.fullmatch(
        r"0.03 GB card: fits with at most --grad-cache-chunk (\d+); --activation-checkpointing makes room for .+",
        lines[-3],
    )
    assert planned
    texts = int(planned[1])
    assert texts == int(row(lines, "texts in a chunk")[0])
    assert row(lines, "texts in a chunk")[1] == "none"
    assert re.fullmatch(r"0.001 GB card: does not fit, because one text needs 0.0 GB; .*--lora-rank 16", lines[-2])
    asked = dry_run("--model", model, "--passage-length", 64, "--batch-size", 64, "--grad-cache-chunk", texts + 5)
    assert f"does not fit with this chunk; use --grad-cache-chunk {texts}" in asked[-3]
    assert row(asked, "texts in a chunk")[0] == str(texts + 5)


def test_every_stage_is_planned(dry_run: Callable[..., list[str]], model: Path, tmp_path: Path) -> None:
    stages = [{"name": "wide"}, {"name": "narrow", "training": {"batch_size": 8}}]
    settings = {"model": {"model": str(model), "passage_length": 32}, "stages": stages}
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    lines = dry_run("--config", tmp_path / "run.yaml")
    assert [line for line in lines if line.startswith("Stage ")] == ["Stage wide:", "Stage narrow:"]
    assert sum("8 queries and 8 passages" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "nosuch"}, "nosuch"),
        ({"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}, ""),
        ({"model_type": "qwen3", "hidden_size": -3}, "negative dimension"),
    ],
)
def test_an_unusable_architecture_is_one_line(
    dry_run: Callable[..., list[str]], tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (line,) = dry_run("--model", tmp_path)
    assert line.startswith(f"The memory of {tmp_path} cannot be planned: ")
    assert reason in line


def test_errors_of_settings_are_errors(error_line: Callable[..., str], model: Path, tmp_path: Path) -> None:
    (file := tmp_path / "run.yaml").write_text("model: {lora_targets: qury}\n")
    assert "no linear layer 'qury'" in error_line(
        "train", "--model", model, "--lora-rank", 2, "--config", file, "--dry-run"
    )
    assert "temperature" in error_line("train", "--model", model, "--temperature", 1e-320, "--dry-run")
    assert "no such directory" in error_line("train", "--model", tmp_path / "absent", "--dry-run")


@pytest.mark.slow
def test_two_towers_have_twice_the_weights(dry_run: Callable[..., list[str]], tmp_path: Path) -> None:
    BertConfig(**TINY, intermediate_size=128).save_pretrained(tmp_path)
    one, two = (
        int(dry_run("--model", tmp_path, "--towers", towers)[0].split(": ")[1].split()[0].replace(",", ""))
        for towers in ("shared", "separate")
    )
    assert two == 2 * one


MINILM_BYTES = 4 * 22_713_216


def test_a_name_that_no_hub_has_is_compared_with_known_names() -> None:
    with pytest.raises(ModelError, match=r"^guide minlm: the hub .*did you mean 'minilm'"), guide_errors("minlm"):
        raise ModelError("the hub cannot be reached", "minlm", "go online")
    message = r"^guide some/model \(config.json\): is damaged; copy it again"
    with pytest.raises(ModelError, match=message), guide_errors("some/model"):
        raise ModelError("is damaged", "config.json", "copy it again")


@pytest.mark.slow
def test_the_plan_counts_the_guide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertConfig(**sizes).save_pretrained(tmp_path)
    words = ["--model", str(tmp_path), "--passage-length", "16", "--batch-size", "8", "--precision", "fp32"]
    totals = []
    for more in ([], ["--guide", "minilm"]):
        assert run("train", [*words, *more, "--dry-run"]) == 0
        rows = {line[:40].strip(): line[40:].split() for line in capsys.readouterr().out.splitlines()}
        totals.append(float(rows["sum"][0]))
        assert ("guide" in rows) == bool(more)
    assert rows["guide"] == [f"{MINILM_BYTES / 1e9:.2f}"] * 3
    assert totals[1] - totals[0] == pytest.approx(MINILM_BYTES / 1e9, abs=0.011)
