"""A model handed over: one committed directory with weights, graphs for other runtimes, and a card.

1. Load in float32, adapters merged; write as sentence-transformers' directory.
2. Write each tower as a graph, and test it against the tower: texts of many lengths, drawn from the vocabulary, must
   get the same embeddings. If a graph fails, nothing is written.
3. Write the card from the files next to the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from numpy import ndarray

from raytriever.activity import activity
from raytriever.errors import ModelError, StorageError
from raytriever.evaluation.results import read_results
from raytriever.export.card import CardFacts, model_card
from raytriever.export.config import ExportConfig
from raytriever.export.graph import FILES, GraphRunner, check_packages, write_graph
from raytriever.models.config import ModelConfig
from raytriever.models.encoder import TokenBatch
from raytriever.models.retriever import Retriever, Side, load_retriever
from raytriever.models.source import MINILM
from raytriever.models.weights import quiet_transformers
from raytriever.models.writer import write_model
from raytriever.reading.structured import conform, read_json, read_yaml
from raytriever.storage import check_writable, committed_directory, disk_errors

# The largest difference of a component, over the length of the embedding: ten times what float32 was seen to lose.
TOLERANCE = 1e-5
BATCHES = 6


@dataclass(frozen=True)
class Parity:
    """Comparison of a graph with its tower.

    Args:
        form: `onnx` or `openvino`.
        side: `query` or `passage`; `passage` where both share a tower.
        texts: how many were compared.
        difference: the largest of a component, relative to the embedding's length.
        cosine: the lowest.
    """

    form: str
    side: Side
    texts: int
    difference: float
    cosine: float

    def __str__(self) -> str:
        return (
            f"{self.form} ({self.side} tower): {self.texts} texts, largest difference {self.difference:.1e}, "
            f"lowest cosine {self.cosine:.7f}"
        )


def export(config: ModelConfig, asked: ExportConfig, output: Path, say: Callable[[str], None]) -> list[Parity]:
    """Write a model and what was asked for into a new directory.

    Raises:
        UserError: the model or the evaluation cannot be read, a package is missing, the directory exists, a graph is
            not the tower.
    """
    for form in asked.named:
        check_packages(form)
    check_writable(output)
    if output.exists():
        raise StorageError("exists", f"--output {output}", "give another directory, or remove it")
    results = _results(Path(asked.evaluation), config.model) if asked.evaluation else {}
    # transformers imports DeepSpeed where it is installed, which would tell at length that there is no GPU.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    retriever = load_retriever(config).eval()
    found = []
    with committed_directory(output) as folder:
        with quiet_transformers():
            write_model(retriever, folder)
        for side, place in _towers(folder):
            for form in asked.named:
                say(f"{form}: writing the {side} tower")
                found.append(_write_and_compare(retriever, side, form, folder / place))
        facts = CardFacts(
            name=asked.push_to_hub.rsplit("/", 1)[-1] if asked.push_to_hub else _name(config, output),
            description=retriever.description,
            width=retriever.width,
            licence=asked.licence,
            results=results,
            graphs=[f"`{FILES[parity.form]}`: {parity}" for parity in found],
            **_run_of(config.model),
        )
        (folder / "README.md").write_text(model_card(facts), encoding="utf-8")
    return found


class _Structure(TypedDict):
    query: list[str]
    document: list[str]


class _Router(TypedDict):
    structure: _Structure


class _Model(TypedDict, total=False):
    model: str


class _Settings(TypedDict, total=False):
    data: dict[str, Any]
    model: _Model
    loss: dict[str, Any]


class _Trained(TypedDict):
    dataset: str
    split: str
    bm25: NotRequired[dict[str, float]]
    before: NotRequired[dict[str, float]]
    after: NotRequired[dict[str, float | None]]


_AGAIN = "restore the run directory, or name its model/ alone"


def _towers(folder: Path) -> list[tuple[Side, str]]:
    """Return the towers of a written model and their folders."""
    router = folder / "router_config.json"
    if not router.is_file():
        return [("passage", "")]
    with disk_errors(router, reading=True):
        structure = read_json(router, _Router, "copy the model again", error=ModelError)["structure"]
    if not structure["query"] or not structure["document"]:
        raise ModelError("is torn or changed: a tower has no module", str(router), "copy the model again")
    return [("query", structure["query"][0]), ("passage", structure["document"][0])]


@activity("writing a graph and comparing it with the encoder")
def _write_and_compare(retriever: Retriever, side: Side, form: str, directory: Path) -> Parity:
    batches = _samples(retriever, side)
    tower = retriever.query if side == "query" else retriever.passage
    graph = GraphRunner(write_graph(tower, batches[0], form, directory), form)
    with torch.inference_mode():
        wanted = np.concatenate([tower(batch).float().numpy() for batch in batches])
    came = np.concatenate([graph.encode(batch) for batch in batches])
    parity = _compare(form, side, wanted, came)
    if not parity.difference <= TOLERANCE:
        raise ModelError(
            f"the graph differs from the encoder: {parity}",
            f"--formats {form}",
            "another version of the exporter may do better; nothing was written",
        )
    return parity


def _compare(form: str, side: Side, wanted: ndarray, came: ndarray) -> Parity:
    length = np.linalg.norm(wanted, axis=1)
    difference = np.abs(came - wanted).max(axis=1) / length
    cosine = (came * wanted).sum(axis=1) / (length * np.linalg.norm(came, axis=1))
    return Parity(form, side, len(wanted), float(difference.max()), float(cosine.min()))


def _samples(retriever: Retriever, side: Side) -> list[TokenBatch]:
    """Batches of texts of many lengths up to the longest, of tokens drawn from the vocabulary; the same every time."""
    chance = np.random.default_rng(0)
    how = retriever.description
    longest = how.query_length if side == "query" else how.passage_length
    batches = []
    for number in range(BATCHES):
        lengths = np.unique(np.geomspace(1, longest, 2 * BATCHES).astype(int))[number % 2 :: 2]
        contents = [chance.integers(len(retriever.tokenizer), size=length) for length in lengths[: number + 2]]
        batches.append(retriever.pad(retriever.assemble(contents, side)))
    return batches


def _name(config: ModelConfig, output: Path) -> str:
    return output.name if config.model == MINILM or Path(config.model).exists() else config.model.rsplit("/", 1)[-1]


def _run_of(model: str) -> dict[str, Mapping[str, Any]]:
    """Settings and figures of the run a model directory belongs to; nothing where it belongs to none."""
    place = Path(model)
    for folder in (place, place.parent):
        config, metrics = folder / "config.yaml", folder / "metrics.json"
        if config.is_file() and metrics.is_file() and (folder / "model") in (place, place / "model"):
            with disk_errors(folder, reading=True):
                settings = conform(read_yaml(config, _AGAIN), str(config), _Settings, _AGAIN)
                return {"config": dict(settings), "trained": dict(read_json(metrics, _Trained, _AGAIN))}
    return {}


def _results(folder: Path, model: str) -> dict[str, Any]:
    """Read an evaluation's results for one model.

    Raises:
        StorageError: it is none, or of other models.
    """
    results = read_results(folder)
    names = [name for name, system in results.get("systems", {}).items() if Path(system["model"]) in _same(model)]
    if not names:
        measured = ", ".join(system["model"] for system in results.get("systems", {}).values())
        raise StorageError(f"measured {measured}, not {model}", str(folder), "evaluate the model that is handed over")
    name = names[0]
    rows = [row for row in results.get("calibration") or [] if row["model"] == name]
    return {"models": results["models"][name], "about": results["about"], "calibration": rows}


def _same(model: str) -> set[Path]:
    place = Path(model)
    return {place, place / "model", *([place.parent] if place.name == "model" else [])}


def push_to_hub(folder: Path, name: str) -> str:
    """Upload a directory as one commit; a repository that is not there yet is made, private.

    Args:
        folder: what is uploaded, all of it.
        name: OWNER/NAME.

    Returns:
        The address of the commit.

    Raises:
        ModelError: the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message="Hand the model over").commit_url)
    except Exception as error:  # of the client, which has changed its HTTP library, and its exceptions, more than once
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the hub did not take it ({reason})",
            f"--push-to-hub {name}",
            f"check the name, the connection and HF_TOKEN; what was written stands in {folder}",
        ) from error
