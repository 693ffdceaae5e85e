"""A guide that no hub has, and its bytes in the plan of the memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import BertConfig

from raytriever.cli.main import run
from raytriever.core.errors import ModelError
from raytriever.training.guide_encoder import guide_errors

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
