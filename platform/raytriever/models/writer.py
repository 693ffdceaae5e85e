"""Write a retriever as a model directory that other libraries can read.

A shared tower is written as a plain sentence-transformers directory, which `AutoModel.from_pretrained` reads too. Two
towers are written in sentence-transformers' Router layout, where each tower is a transformers directory. The settings
of raytriever are in `raytriever.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raytriever.models.description import OWN_FILE, Description
from raytriever.models.encoder import Encoder
from raytriever.models.lora import merged_weights
from raytriever.models.retriever import Retriever, hidden_size

# The class paths of sentence-transformers' file format since 2.0; newer releases still read them.
TRANSFORMER = "sentence_transformers.models.Transformer"
POOLING = "sentence_transformers.models.Pooling"
NORMALIZE = "sentence_transformers.models.Normalize"
ROUTER = "sentence_transformers.models.Router"


def write_model(retriever: Retriever, directory: Path) -> None:
    """Write weights, tokenizer and settings into an existing, empty directory."""
    description = retriever.description
    _write_json(directory / OWN_FILE, asdict(description))
    if description.towers == "shared":
        modules = _write_tower(retriever, retriever.query, description.passage_length, directory, "")
        _write_json(
            directory / "modules.json",
            [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)],
        )
    else:
        _write_router(retriever, directory)
    prompts = description.prompts | {"query": description.query_prompt, "document": description.passage_prompt}
    _write_json(
        directory / "config_sentence_transformers.json",
        {
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": description.similarity,
            "model_type": "SentenceTransformer",
            # sentence-transformers truncates after Normalize: the direction is the same, the length is below one.
            **({"truncate_dim": description.truncate_dim} if description.truncate_dim else {}),
        },
    )


def _write_router(retriever: Retriever, directory: Path) -> None:
    description = retriever.description
    query = _write_tower(retriever, retriever.query, description.query_length, directory, "query_")
    passage = _write_tower(retriever, retriever.passage, description.passage_length, directory, "document_")
    _write_json(
        directory / "router_config.json",
        {
            "types": dict(query + passage),
            "structure": {"query": [name for name, _ in query], "document": [name for name, _ in passage]},
            "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
        },
    )
    _write_json(directory / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": ROUTER}])


def _write_tower(
    retriever: Retriever, tower: Encoder, length: int, directory: Path, prefix: str
) -> list[tuple[str, str]]:
    """Write the folders of one tower; return their names and sentence-transformers classes in order."""
    names = [f"{prefix}{i}_{kind}" for i, kind in enumerate(("Transformer", "Pooling", "Normalize"))]
    if not prefix:
        names[0] = ""  # the top directory, which AutoModel reads
    folder = directory / names[0]
    folder.mkdir(exist_ok=True)
    # Adapters are merged, so readers of the directory do not need them.
    tower.backbone.save_pretrained(folder, state_dict=merged_weights(tower.backbone))  # type: ignore[operator]
    retriever.tokenizer.save_pretrained(folder)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    pooling = _pooling_settings(hidden_size(tower.backbone), retriever.description)
    _write_json(directory / names[1] / "config.json", pooling)
    classes = [(names[0], TRANSFORMER), (names[1], POOLING)]
    if not tower.normalise:
        return classes
    # The module has no settings, but empty directories may be lost in copies and archives.
    _write_json(directory / names[2] / "config.json", {})
    return [*classes, (names[2], NORMALIZE)]


def _pooling_settings(width: int, description: Description) -> dict[str, Any]:
    switches = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
    modes = {f"pooling_mode_{switch}": mode == description.pooling for mode, switch in switches.items()}
    return {"word_embedding_dimension": width, **modes}


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
