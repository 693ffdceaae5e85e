"""A zoo of model directories that sentence-transformers writes, with random weights, and what each must show.

Every case is one directory. `Case.write` builds it from the library's own modules and saves it with the library; some
are then converted to the files of older releases. `Case.teeth` names the properties of the directory that a reader may
misread. Each comes with a change that applies the misreading to a model of the library, so that a test can prove that
the comparison notices it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, StaticEmbedding, Transformer
from tiny_models import KINDS, text_of, write_transformer
from torch import nn

WIDTH = 32
# Numbers of words: 3 to 3,000 tokens and more, by tokenizer.
TEXTS = [text_of(words, seed=words) for words in (2, 9, 40, 90, 200, 420, 900, 2_000)]
LONG = 4_096
Change = Callable[[SentenceTransformer], None]


@dataclass(frozen=True)
class Case:
    """One directory of the zoo.

    Args:
        name: name of the directory.
        write: writes it.
        teeth: the misreading of each property, applied to the library's model.
        refused: word of the one-line refusal, or empty where the directory must be read.
    """

    name: str
    write: Callable[[Path], None]
    teeth: dict[str, Change] = field(default_factory=dict)
    refused: str = ""


# Misreadings.


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


# Writers.


def transformer(folder: Path, architecture: str, lengths: dict[str, int] | None = None, **settings: Any) -> Transformer:
    """Return a Transformer module of a tiny model; `lengths` are those of the module by side."""
    source = folder.with_name(f"{folder.name}-{settings.get('seed', 0)}-source")
    write_transformer(source, architecture, width=WIDTH, **settings)
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
            Pooling(WIDTH, pooling, include_prompt=include),
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
            [transformer(folder, "bert", seed=seed, max_length=length), Pooling(WIDTH, mode)]
            for seed, length, mode in ((1, 64, query_pooling), (2, 256, "cls"))
        )
        save([Router.for_query_document(query, document), Normalize()], folder, E5)

    return write


def two_towers_with_dense(folder: Path) -> None:
    query, document = (
        [
            transformer(folder, "distilbert", seed=seed, max_length=256),
            Pooling(WIDTH, "mean"),
            dense(WIDTH, 24, seed=seed),
        ]
        for seed in (3, 4)
    )
    save([Router.for_query_document(query, document)], folder, similarity="dot")


def static_embedding(folder: Path) -> None:
    tokenizer = transformer(folder, "bert").tokenizer.backend_tokenizer
    save([StaticEmbedding(tokenizer, embedding_dim=WIDTH)], folder)


def custom_module(folder: Path) -> None:
    written("bert")(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "custom_code.MyTransformer"
    (folder / "modules.json").write_text(json.dumps(modules))


def plain(architecture: str, causal_lm: bool = False, **settings: Any) -> Callable[[Path], None]:
    """Return the writer of a directory of transformers only, which the library reads with a default pooling."""

    def write(folder: Path) -> None:
        write_transformer(folder, architecture, width=WIDTH, **settings)
        if causal_lm:  # weights under the names of the model with a head, whose own weights are tied
            edit_json(folder / "config.json", architectures=[f"{KINDS[architecture].model}ForCausalLM"])

    return write


# Files of older releases.


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2))


def drop_json(path: Path, *names: str) -> None:
    content = {name: value for name, value in json.loads(path.read_text()).items() if name not in names}
    path.write_text(json.dumps(content, indent=2))


_SWITCHES = {
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
                switches = {switch: mode in modes for mode, switch in _SWITCHES.items()}
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


E5 = {"query": "query: ", "document": "passage: "}
INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
EVERY_MODE = tuple(_SWITCHES)

CASES = [
    Case("bert-mean-normalize", written("bert", "mean", Normalize, max_length=512), {"pooling": pooling_as("cls")}),
    Case("bert-similarity-absent", written("bert", max_length=512), {"similarity": similarity_as("dot")}),
    Case("bert-dot", written("bert", similarity="dot", max_length=512), {"similarity": similarity_as("cosine")}),
    Case("bert-euclidean", written("bert", similarity="euclidean"), refused="euclidean"),
    Case("bert-cls", written("bert", "cls", Normalize), {"pooling": pooling_as("mean")}),
    Case("bert-max", written("bert", "max"), {"pooling": pooling_as("mean")}),
    Case(
        "bert-mean-sqrt-len",
        written("bert", "mean_sqrt_len_tokens", similarity="dot"),
        {"scale": pooling_as("mean")},
    ),
    Case("bert-weightedmean", written("bert", "weightedmean"), {"pooling": pooling_as("mean")}),
    Case("bert-lasttoken", written("bert", "lasttoken", Normalize), {"pooling": pooling_as("cls")}),
    Case("bert-mean-then-cls", written("bert", ("mean", "cls")), {"pooling": pooling_as("cls", "mean")}),
    Case(
        "bert-every-mode-dense",
        written("bert", EVERY_MODE, lambda: dense(6 * WIDTH, 24)),
        {"pooling": pooling_as(*reversed(EVERY_MODE)), "dense": activation_as(nn.Tanh())},
    ),
    Case("bert-length-128", written("bert", max_length=128), {"length": length_as(512)}),
    Case("bert-positions-300", written("bert", positions=300), {"length": length_as(128)}),
    Case("bert-positions-2048", written("bert", positions=2_048, max_length=2_048), {"length": length_as(512)}),
    Case(
        "bert-length-by-side",
        written("bert", max_length=512, lengths={"query_length": 32, "document_length": 200}),
        {"length": length_as(200)},
    ),
    Case("bert-left-end-kept", written("bert", max_length=64, edit=truncates_left), {"truncation": flip_truncation}),
    Case("bert-padding", written("bert", "cls"), {"padding": flip_padding}),
    Case(
        "bert-labse",
        written("bert", "cls", lambda: dense(WIDTH, WIDTH, nn.Tanh()), Normalize),
        {"dense": activation_as(nn.Identity())},
    ),
    Case(
        "bert-dense-residual",
        written("bert", "mean", lambda: dense(WIDTH, WIDTH, nn.Tanh(), use_residual=True)),
        {"residual": no_residual},
    ),
    Case(
        "bert-dense-residual-wider",
        written("bert", "mean", lambda: dense(WIDTH, 48, nn.GELU(), use_residual=True)),
        {"residual": no_residual, "dense": activation_as(nn.Identity())},
    ),
    Case(
        "bert-normalize-dense",
        written("bert", "mean", Normalize, lambda: dense(WIDTH, 24, nn.Tanh()), similarity="dot"),
        {"normalize": module_as(Normalize, lambda _: nn.Identity())},
    ),
    Case(
        "bert-truncate-dim",
        written("bert", "mean", Normalize, truncate_dim=12),
        {"truncate_dim": lambda model: setattr(model, "truncate_dim", None)},
    ),
    Case(
        "bert-truncate-dim-dot",
        written("bert", "mean", truncate_dim=20, similarity="dot"),
        {"truncate_dim": lambda model: setattr(model, "truncate_dim", None)},
    ),
    Case(
        "bert-default-prompt",
        written("bert", prompts={"web": "task: "}, default_prompt_name="web"),
        {"prompt": prompts_as(query="task: ", document="task: ")},
    ),
    Case("bert-static", static_embedding, refused="StaticEmbedding"),
    Case("bert-custom-module", custom_module, refused="custom_code"),
    Case(
        "minilm-release-2",
        written("bert", "mean", Normalize, max_length=512, edit=as_release_2()),
        {"length": length_as(512), "pooling": pooling_as("cls")},
    ),
    Case(
        "release-2-switches",
        written("bert", ("cls", "max"), lambda: dense(2 * WIDTH, 24, nn.Tanh()), edit=as_release_2()),
        {"pooling": pooling_as("max", "cls"), "length": length_as(512)},
    ),
    Case(
        "release-2-tokenizer-args",
        written("bert", edit=as_release_2(128, tokenizer_args={"model_max_length": 64})),
        {"length": length_as(128)},
    ),
    Case(
        "release-1-roberta",
        written("xlm-roberta", "mean", max_length=512, edit=as_release_1),
        {"length": length_as(512)},
    ),
    Case("release-2-lower-case", written("bert", edit=cased), {"lower case": keep_case}),
    Case(
        "xlm-roberta-e5",
        written("xlm-roberta", "mean", Normalize, prompts=E5, max_length=512),
        {"prompt": prompts_as()},
    ),
    Case(
        "xlm-roberta-passage-prompt",
        written("xlm-roberta", prompts={"query": "query: ", "passage": "passage: "}, max_length=512),
        {"prompt": prompts_as(query="query: ", document="passage: ")},
    ),
    Case("mpnet-length-384", written("mpnet", "mean", Normalize, max_length=384), {"length": length_as(128)}),
    Case(
        "mpnet-release-2", written("mpnet", "cls", max_length=512, edit=as_release_2(256)), {"length": length_as(512)}
    ),
    Case("distilbert-tas-b", written("distilbert", "cls", similarity="dot"), {"similarity": similarity_as("cosine")}),
    Case(
        "modernbert-gte",
        written("modernbert", "cls", positions=LONG, max_length=LONG, layers=3),
        {"length": length_as(512), "local attention": config_as(sliding_window=512)},
    ),
    Case(
        "modernbert-nomic",
        written(
            "modernbert",
            positions=LONG,
            layers=3,
            prompts={"query": "search_query: ", "document": "search_document: "},
        ),
        {"prompt": prompts_as(query="search_query: "), "length": length_as(512)},
    ),
    Case(
        "modernbert-lasttoken-left", written("modernbert", "lasttoken", padding_side="left"), {"padding": last_column}
    ),
    Case(
        "t5-sentence",
        written("t5", "mean", lambda: dense(WIDTH, 24, bias=False), Normalize, max_length=256),
        {"dense": activation_as(nn.Tanh()), "length": length_as(512)},
    ),
    Case(
        "t5-instructor",
        written(
            "t5", "mean", lambda: dense(WIDTH, WIDTH, bias=False), Normalize, prompts=E5, include=False, max_length=512
        ),
        {"include_prompt": include_prompt, "prompt": prompts_as()},
    ),
    Case(
        "bert-prompt-not-pooled",
        written("bert", "cls", prompts=E5, include=False, max_length=512),
        {"include_prompt": include_prompt},
    ),
    Case(
        "qwen3-prompt-not-pooled",
        written("qwen3", "weightedmean", prompts={"query": INSTRUCTION}, include=False, max_length=512),
        {"include_prompt": include_prompt},
    ),
    Case(
        "qwen2-gte",
        written("qwen2", "lasttoken", Normalize, prompts={"query": INSTRUCTION}, positions=LONG, max_length=LONG),
        {"end token": no_end_token, "prompt": prompts_as(), "length": length_as(512)},
    ),
    Case(
        "qwen3-embedding",
        written("qwen3", "lasttoken", Normalize, prompts={"query": INSTRUCTION}, positions=LONG, max_length=LONG),
        {"end token": no_end_token, "prompt": prompts_as(document=INSTRUCTION), "pooling": pooling_as("mean")},
    ),
    Case(
        "qwen3-no-end-token", written("qwen3", "lasttoken", end_token=False, max_length=512), {"end token": end_token}
    ),
    Case(
        "qwen3-right-padding",
        written("qwen3", "lasttoken", Normalize, padding_side="right", max_length=512),
        {"padding": last_column},
    ),
    Case(
        "mistral-e5",
        written("mistral", "lasttoken", Normalize, prompts={"query": INSTRUCTION}, positions=LONG, max_length=LONG),
        {"window": config_as(sliding_window=512), "length": length_as(512), "pooling": pooling_as("mean")},
    ),
    Case("llama-last", written("llama", "lasttoken", positions=LONG, max_length=1_024), {"length": length_as(512)}),
    Case(
        "llama-bidirectional",
        written("llama", "mean", Normalize, max_length=512, is_causal=False),
        {"bidirectional": config_as(is_causal=True)},
    ),
    Case(
        "gemma3-embedding",
        written(
            "gemma3_text",
            "mean",
            lambda: dense(WIDTH, 64, seed=6, bias=False),
            lambda: dense(64, WIDTH, seed=7, bias=False),
            Normalize,
            prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
            use_bidirectional_attention=True,
            positions=2_048,
            max_length=2_048,
        ),
        {
            "dense": activation_as(nn.Tanh()),
            "prompt": prompts_as(),
            "length": length_as(512),
        },
    ),
    Case("gemma3-mean-causal", written("gemma3_text", max_length=512), {"pooling": pooling_as("cls")}),
    Case("plain-bert", plain("bert", max_length=256), {"length": length_as(512), "pooling": pooling_as("cls")}),
    Case("plain-qwen3-base", plain("qwen3", max_length=512), {"pooling": pooling_as("lasttoken")}),
    Case("plain-qwen3-causal-lm", plain("qwen3", causal_lm=True, max_length=512), {"pooling": pooling_as("mean")}),
    Case("router-two-towers", two_towers(), {"towers": swap_towers, "prompt": prompts_as(), "length": length_as(128)}),
    Case("router-two-poolings", two_towers("mean"), refused="mean and cls"),
    Case("router-dense-dot", two_towers_with_dense, {"towers": swap_towers, "dense": activation_as(nn.Tanh())}),
]
