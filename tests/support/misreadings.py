"""Misreadings of a model directory, as changes of a model of sentence-transformers that has been read from it.

With each of them a test proves that a comparison of embeddings notices the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from torch import nn

Change = Callable[[SentenceTransformer], None]


def towers(model: SentenceTransformer) -> list[Transformer]:
    return [module for module in model.modules() if isinstance(module, Transformer)]


def _poolings(model: SentenceTransformer) -> Iterator[Pooling]:
    return (module for module in model.modules() if isinstance(module, Pooling))


def pooling_as(*modes: str) -> Change:
    def change(model: SentenceTransformer) -> None:
        for pooling in _poolings(model):
            pooling.pooling_mode = modes if len(modes) > 1 else modes[0]

    return change


def length_as(length: int) -> Change:
    def change(model: SentenceTransformer) -> None:
        for tower in towers(model):
            tower.max_seq_length, tower.query_length, tower.document_length = length, None, None

    return change


def prompts_as(**prompts: str) -> Change:
    def change(model: SentenceTransformer) -> None:
        model.prompts = {"query": "", "document": "", **prompts}

    return change


def include_prompt(model: SentenceTransformer) -> None:
    model.set_pooling_include_prompt(True)


def similarity_as(name: str) -> Change:
    def change(model: SentenceTransformer) -> None:
        model.similarity_fn_name = name

    return change


def module_as(kind: type[nn.Module], replacement: Callable[[Any], nn.Module], which: int = 0) -> Change:
    """Replace one of the modules of a class."""

    def change(model: SentenceTransformer) -> None:
        names = [name for name, module in model.named_children() if isinstance(module, kind)]
        setattr(model, names[which], replacement(getattr(model, names[which])))

    return change


def activation_as(activation: nn.Module) -> Change:
    def change(model: SentenceTransformer) -> None:
        for module in model.modules():
            if isinstance(module, Dense):
                module.activation_function = activation

    return change


def no_residual(model: SentenceTransformer) -> None:
    for module in model.modules():
        if isinstance(module, Dense):
            module.use_residual = False


def no_end_token(model: SentenceTransformer) -> None:
    from tokenizers.processors import ByteLevel

    for tower in towers(model):
        tower.tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)


def end_token(model: SentenceTransformer) -> None:
    from tokenizers.processors import TemplateProcessing

    for tower in towers(model):
        token, number = tower.tokenizer.pad_token, tower.tokenizer.pad_token_id
        tower.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"$A {token}", special_tokens=[(token, number)]
        )


def config_as(**settings: Any) -> Change:
    """Change the configuration of the transformers, which is read again at every call."""

    def change(model: SentenceTransformer) -> None:
        for tower in towers(model):
            for name, value in settings.items():
                setattr(tower.model.config, name, value)
            for module in tower.model.modules():
                for name, value in settings.items():
                    if hasattr(module, name):
                        setattr(module, name, value)

    return change


def flip_padding(model: SentenceTransformer) -> None:
    for tower in towers(model):
        tower.tokenizer.padding_side = "left" if tower.tokenizer.padding_side == "right" else "right"


def flip_truncation(model: SentenceTransformer) -> None:
    for tower in towers(model):
        tower.tokenizer.truncation_side = "left" if tower.tokenizer.truncation_side == "right" else "right"


def keep_case(model: SentenceTransformer) -> None:
    from tokenizers.normalizers import Sequence as Normalizers

    for tower in towers(model):
        tower.tokenizer.backend_tokenizer.normalizer = Normalizers([])


def swap_towers(model: SentenceTransformer) -> None:
    routes = model[0].sub_modules
    routes["query"], routes["document"] = routes["document"], routes["query"]


def last_column(model: SentenceTransformer) -> None:
    """Pool the last column as the last token, even if it is padding, with the padding on the right."""

    class LastColumn(nn.Module):
        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            return features | {"sentence_embedding": features["token_embeddings"][:, -1]}

    module_as(Pooling, lambda _: LastColumn())(model)
    for tower in towers(model):
        tower.tokenizer.padding_side = "right"
