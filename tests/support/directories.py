"""Writers of model directories with random weights: sentence-transformers' own files, and those of older releases.

A directory is built from the library's modules and saved with the library. Some are then converted to older files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from tiny_models import KINDS, write_transformer
from torch import nn

DIM = 32
E5 = {"query": "query: ", "document": "passage: "}
INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def transformer(folder: Path, architecture: str, lengths: dict[str, int] | None = None, **settings: Any) -> Transformer:
    """Return a Transformer module of a tiny model; `lengths` are those of the module by side."""
    source = folder.with_name(f"{folder.name}-{settings.get('seed', 0)}-source")
    write_transformer(source, architecture, dim=DIM, **settings)
    return Transformer(str(source), **(lengths or {}))


def dense(inputs: int, outputs: int, activation: nn.Module | None = None, seed: int = 5, **settings: Any) -> Dense:
    module = Dense(inputs, outputs, activation_function=activation or nn.Identity(), **settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return module


def written(
    architecture: str,
    pooling: str | Sequence[str] = "mean",
    *after: Callable[[], nn.Module],
    prompts: dict[str, str] | None = None,
    default_prompt_name: str | None = None,
    include: bool = True,
    similarity: str | None = None,
    truncate_dim: int | None = None,
    edit: Callable[[Path], None] | None = None,
    **settings: Any,
) -> Callable[[Path], None]:
    """Return the writer of a directory with a Transformer, a Pooling and further modules."""

    def write(folder: Path) -> None:
        modules = [
            transformer(folder, architecture, **settings),
            Pooling(DIM, pooling, include_prompt=include),
            *(make() for make in after),
        ]
        save(modules, folder, prompts, default_prompt_name, similarity, truncate_dim)
        if edit is not None:
            edit(folder)

    return write


def save(
    modules: list[nn.Module],
    folder: Path,
    prompts: dict[str, str] | None = None,
    default_prompt_name: str | None = None,
    similarity: str | None = None,
    truncate_dim: int | None = None,
) -> None:
    model = SentenceTransformer(
        modules=modules,
        device="cpu",
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        similarity_fn_name=similarity,
        truncate_dim=truncate_dim,
    )
    model.save_pretrained(str(folder), create_model_card=False)
    if similarity is None:  # the library stores what it assumes; older files leave it out
        edit_json(folder / "config_sentence_transformers.json", similarity_fn_name=None)
    if truncate_dim is not None:
        edit_json(folder / "config_sentence_transformers.json", truncate_dim=truncate_dim)


def two_towers(query_pooling: str = "cls") -> Callable[[Path], None]:
    """Return the writer of a Router with another tower for each side, and a Normalize that both share."""

    def write(folder: Path) -> None:
        query, document = (
            [transformer(folder, "bert", seed=seed, max_length=length), Pooling(DIM, mode)]
            for seed, length, mode in ((1, 64, query_pooling), (2, 256, "cls"))
        )
        save([Router.for_query_document(query, document), Normalize()], folder, E5)

    return write


def two_towers_with_dense(folder: Path) -> None:
    query, document = (
        [
            transformer(folder, "distilbert", seed=seed, max_length=256),
            Pooling(DIM, "mean"),
            dense(DIM, 24, seed=seed),
        ]
        for seed in (3, 4)
    )
    save([Router.for_query_document(query, document)], folder, similarity="dot")


def routed(same_transformer: bool, same_head: bool = False) -> Callable[[Path], None]:
    """Return the writer of a Router whose sides share their pooling and a transformer or a Dense module."""

    def write(folder: Path) -> None:
        query = transformer(folder, "bert")
        document = query if same_transformer else transformer(folder, "bert", seed=1)
        head = dense(DIM, DIM, seed=3)
        other = head if same_head else dense(DIM, DIM, seed=4)
        pooling = Pooling(DIM, "cls")
        router = Router.for_query_document([query, pooling, head], [document, pooling, other])
        save([router, Normalize()], folder)

    return write


def router_after_pooling(folder: Path) -> None:
    router = Router.for_query_document([dense(DIM, DIM, seed=3), Normalize()], [Dropout(0.3), dense(DIM, DIM, seed=4)])
    save([transformer(folder, "bert"), Pooling(DIM, "mean"), router, dense(DIM, 12)], folder)


def static_embedding(folder: Path) -> None:
    tokenizer = transformer(folder, "bert").tokenizer.backend_tokenizer
    save([StaticEmbedding(tokenizer, embedding_dim=DIM)], folder)


def custom_module(folder: Path) -> None:
    written("bert")(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "custom_code.MyTransformer"
    (folder / "modules.json").write_text(json.dumps(modules))


def plain(architecture: str, causal_lm: bool = False, **settings: Any) -> Callable[[Path], None]:
    """Return the writer of a directory of transformers only, which the library reads with a default pooling."""

    def write(folder: Path) -> None:
        write_transformer(folder, architecture, dim=DIM, **settings)
        if causal_lm:  # weights under the names of the model with a head, whose own weights are tied
            edit_json(folder / "config.json", architectures=[f"{KINDS[architecture].model}ForCausalLM"])

    return write


# Files of older releases.


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2))


def drop_json(path: Path, *names: str) -> None:
    content = {name: value for name, value in json.loads(path.read_text()).items() if name not in names}
    path.write_text(json.dumps(content, indent=2))


SWITCHES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def as_release_2(length: int = 128, **settings: Any) -> Callable[[Path], None]:
    """Return a converter to the files of releases 2 to 5: switches, `max_seq_length`, other class paths.

    Args:
        length: `max_seq_length` of the module; the tokenizer allows more.
        settings: further entries of `sentence_bert_config.json`.
    """

    def convert(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        for module in modules:
            module["type"] = f"sentence_transformers.models.{module['type'].rsplit('.', 1)[-1]}"
            path = folder / module["path"] / "config.json"
            if module["type"].endswith("Pooling"):
                stored = json.loads(path.read_text())
                modes = [stored["pooling_mode"]] if isinstance(stored["pooling_mode"], str) else stored["pooling_mode"]
                switches = {switch: mode in modes for mode, switch in SWITCHES.items()}
                path.write_text(json.dumps({"word_embedding_dimension": stored["embedding_dimension"], **switches}))
            elif module["type"].endswith("Normalize"):
                path.unlink()
            elif module["type"].endswith("Dense"):
                drop_json(path, "module_input_name", "module_output_name")
        (folder / "modules.json").write_text(json.dumps(modules))
        own = {"max_seq_length": length, "do_lower_case": False, **settings}
        (folder / "sentence_bert_config.json").write_text(json.dumps(own))
        versions = {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"__version__": versions}))

    return convert


def as_release_1(folder: Path) -> None:
    """Name the settings of the module as release 1 named them for RoBERTa."""
    as_release_2(96)(folder)
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")


def cased(folder: Path) -> None:
    """Make the tokenizer of a directory sensitive to case, with `do_lower_case` in the module's settings."""
    as_release_2(256, do_lower_case=True)(folder)
    edit_json(folder / "tokenizer.json", normalizer=None)


def truncates_left(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", truncation_side="left")
