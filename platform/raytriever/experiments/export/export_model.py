"""Export of a model: one committed directory with weights, graphs for other runtimes, and a model card.

1. Load the model in float32 with merged adapters, and write it as a directory of sentence-transformers.
2. Write each tower as a graph and compare it with the tower. Both must give the same embeddings for texts of many
   lengths, sampled from the vocabulary. If a graph fails, nothing is written.
3. Copy the calibration, if it belongs to these weights.
4. Write the model card from the files of the run and the evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

from raytriever.core.errors import ModelError, StorageError, setting
from raytriever.core.progress import activity
from raytriever.core.reading.json_and_yaml import conform, read_yaml
from raytriever.core.store.commit import committed_directory, write_atomically
from raytriever.core.store.disk import check_writable
from raytriever.core.store.remote_folders import copy_of
from raytriever.evaluation.calibrate_system import FOLDER
from raytriever.evaluation.results import EVALUATION, RESULTS, Results
from raytriever.experiments.export.export_settings import ExportConfig
from raytriever.experiments.export.model_card import CardFacts, model_card
from raytriever.experiments.export.onnx_and_openvino import FILES, check_packages, open_graph, write_graph
from raytriever.models.directory.hub_or_local import MINILM
from raytriever.models.directory.model_files import quiet_transformers
from raytriever.models.directory.modules import ModelFiles
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import TokenBatch
from raytriever.models.prompts import Side
from raytriever.models.resolve_model import resolve_model
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.search.calibration_file import FILE as CALIBRATION
from raytriever.retrieval.search.calibration_file import Calibration, encoder_digest, read_calibration

# Largest allowed difference of a component, relative to the norm of the embedding: ten times the effect of rounding.
TOLERANCE = 1e-5
BATCHES = 6
# Maximum number of tokens of a compared text. Attention over 32,768 tokens needs more memory than a laptop has.
LONGEST = 1_024
_REMEDY = "restore the run directory, or give only its model/ directory"


@dataclass(frozen=True)
class Parity:
    """Comparison of a graph with its tower."""

    backend: str  # `onnx` or `openvino`
    side: Side  # `query` or `passage`; `passage` if both share a tower
    texts: int
    difference: float  # largest difference of a component, relative to the norm of the embedding
    cosine: float  # lowest cosine between a text's embeddings by the graph and by the tower

    def __str__(self) -> str:
        return (
            f"{self.backend} ({self.side} tower): {self.texts} texts, largest difference {self.difference:.1e}, "
            f"lowest cosine {self.cosine:.7f}"
        )


def export(config: ModelConfig, settings: ExportConfig, output: Path, log: Callable[[str], None]) -> list[Parity]:
    """Write a model, its graphs and its model card into a new directory. Return the comparison of each graph."""
    for backend in settings.format_names:
        check_packages(backend)
    check_writable(output)
    if output.exists():
        raise StorageError("exists", setting("output", output), "give another directory, or remove this one")
    results = _read_results(Path(settings.evaluation), config.model) if settings.evaluation else Results()
    calibration = _current_calibration(config, settings.evaluation, results, log)
    # transformers imports DeepSpeed if it is installed, and DeepSpeed logs many lines if there is no GPU.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    retriever = load_retriever(config).eval()
    _check_exportable(retriever, settings)
    parities = []
    with committed_directory(output) as folder:
        with quiet_transformers():
            write_model(retriever, folder)
        for side, subfolder in _towers(retriever, folder):
            for backend in settings.format_names:
                log(f"{backend}: writing the {side} tower")
                parities.append(_write_and_compare(retriever, side, backend, subfolder))
        if calibration is not None:
            is_int8 = calibration.digest == encoder_digest(config, calibration.dataset, int8=True)
            digest = encoder_digest(ModelConfig(model=str(folder)), calibration.dataset, int8=is_int8)
            calibration = replace(calibration, digest=digest)
            write_atomically(folder / CALIBRATION, calibration.to_json())
        facts = CardFacts(
            name=settings.push_to_hub.rsplit("/", 1)[-1] if settings.push_to_hub else _name(config, output),
            description=retriever.description,
            dim=retriever.dim,
            licence=settings.licence,
            results=results,
            calibration=calibration,
            graphs=[f"`{FILES[parity.backend]}`: {parity}" for parity in parities],
            **_run_facts(config.model),
        )
        (folder / "README.md").write_text(model_card(facts), encoding="utf-8")
    return parities


def _current_calibration(
    config: ModelConfig, evaluation: str | None, results: Results, log: Callable[[str], None]
) -> Calibration | None:
    """Return the calibration to export: the evaluation's, if it has one, else that of the model directory.

    A calibration that belongs to other weights or settings than the model's is skipped, with a log line."""
    files = [resolve_model(config.model, config.revision) / CALIBRATION]
    if evaluation and len(results.about) == 1:
        [name], [dataset] = results.models, results.about
        files.insert(0, Path(evaluation) / FOLDER / name / f"{dataset}.json")
    for file in files:
        calibration = read_calibration(file)
        if calibration is None:
            continue
        if calibration.digest in [encoder_digest(config, calibration.dataset, int8=int8) for int8 in (False, True)]:
            return calibration
        log(f"{file}: belongs to other weights, prompts or lengths than those of this model; it is not exported")
    return None


def _check_exportable(retriever: Retriever, settings: ExportConfig) -> None:
    description = retriever.description
    has_prompts = bool(description.query_prompt or description.passage_prompt)
    if settings.format_names and has_prompts and not description.pool_prompt:
        what = "the model leaves the prompt out of pooling, which a graph cannot do"
        remedy = f"leave out {setting('formats')}, or give {setting('query_prompt')} '' {setting('passage_prompt')} ''"
        raise ModelError(what, setting("formats", ",".join(settings.format_names)), remedy)


class _Model(TypedDict, total=False):
    model: str


class _Settings(TypedDict, total=False):
    data: dict[str, Any]
    model: _Model
    loss: dict[str, Any]


def _towers(retriever: Retriever, folder: Path) -> list[tuple[Side, Path]]:
    if retriever.query.backbone is retriever.passage.backbone:
        return [("passage", folder)]
    return [(side, pipeline.transformer.folder) for side, pipeline in ModelFiles.read(folder).sides.items()]


@activity("writing a graph and comparing it with the encoder")
def _write_and_compare(retriever: Retriever, side: Side, backend: str, directory: Path) -> Parity:
    batches = _samples(retriever, side)
    tower = retriever.query if side == "query" else retriever.passage
    embed = open_graph(write_graph(tower, batches[0], backend, directory), backend)
    with torch.inference_mode():
        expected = np.concatenate([tower(batch).float().numpy() for batch in batches])
    actual = np.concatenate([embed(batch) for batch in batches])
    length = np.linalg.norm(expected, axis=1)
    difference = np.abs(actual - expected).max(axis=1) / length
    cosine = (actual * expected).sum(axis=1) / (length * np.linalg.norm(actual, axis=1))
    parity = Parity(backend, side, len(expected), float(difference.max()), float(cosine.min()))
    if not parity.difference <= TOLERANCE:
        remedy = "try other versions of the packages that export the graph; nothing was written"
        raise ModelError(f"the graph differs from the encoder: {parity}", setting("formats", backend), remedy)
    return parity


def _samples(retriever: Retriever, side: Side) -> list[TokenBatch]:
    generator = np.random.default_rng(0)
    description = retriever.description
    longest = min(LONGEST, description.query_length if side == "query" else description.passage_length)
    batches = []
    for number in range(BATCHES):
        lengths = np.unique(np.geomspace(1, longest, 2 * BATCHES).astype(int))[number % 2 :: 2]
        contents = [generator.integers(len(retriever.tokenizer), size=length) for length in lengths[: number + 2]]
        batches.append(retriever.pad(retriever.assemble(contents, side)))
    return batches


def _name(config: ModelConfig, output: Path) -> str:
    return output.name if config.model == MINILM or Path(config.model).exists() else config.model.rsplit("/", 1)[-1]


def _run_facts(model: str) -> dict[str, Any]:
    path = Path(model)
    for folder in (path, path.parent):
        config, evaluation = folder / "config.yaml", folder / EVALUATION
        if config.is_file() and (evaluation / RESULTS).is_file() and (folder / "model") in (path, path / "model"):
            settings = conform(read_yaml(config, _REMEDY), str(config), _Settings, _REMEDY)
            return {"config": dict(settings), "trained": Results.read(evaluation, _REMEDY)}
    return {}


def _read_results(folder: Path, model: str) -> Results:
    results = Results.read(folder)
    path = Path(model)  # a run directory and its `model/` mean the same model
    same = {path, path / "model", *([path.parent] if path.name == "model" else [])}
    names = [name for name, system in results.systems.items() if Path(copy_of(system["model"])) in same]
    if not names:
        measured = ", ".join(system["model"] for system in results.systems.values())
        raise StorageError(f"is an evaluation of {measured}, not {model}", str(folder), "evaluate the exported model")
    name = names[0]
    rows = [row for row in results.thresholds if row.model == name]
    return Results(models={name: results.models[name]}, about=results.about, thresholds=rows)


def push_to_hub(folder: Path, name: str) -> str:
    """Upload a directory as one commit to OWNER/NAME, which is created as private if missing. Return its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export the model").commit_url)
    except Exception as error:  # the client has changed its HTTP library and exceptions more than once
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = f"check the name, the connection and HF_TOKEN; the exported model is in {folder}"
        raise ModelError(f"the upload to the hub failed ({reason})", setting("push_to_hub", name), remedy) from error
