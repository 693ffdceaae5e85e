"""LoRA: only adapters are trained, and the written model contains them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tiny_models import embed, write_transformer
from transformers import AutoModel

from raytriever.core.errors import ConfigError, ModelError
from raytriever.models.encoder import set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prepare_for_training import prepare_for_training
from raytriever.models.resolve_model import resolve_model
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encode_texts import encode_texts

ADAPTER = ("lora_A.default.weight", "lora_B.default.weight")
TEXTS = ["one", "two words", "", "a longer text, with punctuation"]


def adapted(tiny_encoder: Path, *, seed: int = 0, **settings: object) -> Retriever:
    config = ModelConfig(str(tiny_encoder), **{"lora_rank": 4, **settings})
    retriever = load_retriever(config)
    prepare_for_training(retriever, config, seed)
    return retriever


def step(retriever: Retriever) -> None:
    """One step of a loss that depends on both towers."""
    trained = [parameter for parameter in retriever.parameters() if parameter.requires_grad]
    queries, passages = embed(retriever, retriever.tokenize(TEXTS, "query"), retriever.tokenize(TEXTS[::-1], "passage"))
    wanted = torch.randn(2, *queries.shape, generator=torch.manual_seed(1))
    (queries * wanted[0] + passages * wanted[1]).sum().backward()
    assert all(parameter.grad is not None for parameter in trained)
    assert all(parameter.grad is None for parameter in retriever.parameters() if not parameter.requires_grad)
    torch.optim.Adam(trained, lr=0.02).step()
    retriever.zero_grad()


def values(retriever: Retriever) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in retriever.named_parameters()}


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_step_changes_only_adapters(tiny_encoder: Path, towers: str) -> None:
    retriever = adapted(tiny_encoder, towers=towers)
    before = values(retriever)
    step(retriever)
    step(retriever)  # in the first one only B moves: it is zero, so A has no gradient yet
    changed = {name for name, value in values(retriever).items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if ".lora_A." in name or ".lora_B." in name}
    sides = {name.split(".")[0] for name in changed}
    assert sides == ({"query"} if towers == "shared" else {"query", "passage"})
    # Two layers of four projections in attention and two behind it; A and B each.
    assert len(changed) == len(sides) * 2 * 6 * 2
    assert not any("pooler" in name for name in changed)


DECODER = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
LAYERS = {
    **dict.fromkeys(("qwen2", "qwen3", "llama", "mistral", "gemma3_text"), DECODER),
    **dict.fromkeys(("bert", "xlm-roberta"), "query key value attention.output.dense intermediate.dense output.dense"),
    "mpnet": "attn.q attn.k attn.v attn.o intermediate.dense output.dense",
    "distilbert": "q_lin k_lin v_lin out_lin lin1 lin2",
    "modernbert": "attn.Wqkv attn.Wo mlp.Wi mlp.Wo",
}


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("architecture", LAYERS)
def test_every_linear_layer_of_the_blocks_is_adapted(tmp_path: Path, architecture: str) -> None:
    encoder = write_transformer(tmp_path / "encoder", architecture)
    retriever = adapted(encoder)
    layers = {name.partition(".lora_A.")[0] for name in values(retriever) if ".lora_A." in name}
    assert len(layers) == 2 * len(LAYERS[architecture].split())
    assert all(any(layer.endswith(f".{item}") for item in LAYERS[architecture].split()) for layer in layers)
    step(retriever)  # a gradient for each of them
    first, second = LAYERS[architecture].split()[:2]
    some = values(adapted(encoder, lora_targets=f"{first},{second}"))
    assert sum(".lora_A." in name for name in some) == 4


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_new_adapters_do_not_change_the_embeddings(tiny_encoder: Path, towers: str) -> None:
    plain = load_retriever(ModelConfig(str(tiny_encoder), towers=towers))
    retriever = adapted(tiny_encoder, towers=towers)
    assert not retriever.query.training
    for side in ("query", "passage"):
        assert (encode_texts(retriever, TEXTS, side) == encode_texts(plain, TEXTS, side)).all()


@pytest.mark.parametrize(
    ("towers", "settings"),
    [("separate", {"lora_alpha": 1.0}), ("shared", {"lora_targets": "query, attention.output.dense"})],
)
def test_a_written_model_encodes_like_the_trained_one(
    tiny_encoder: Path, tmp_path: Path, towers: str, settings: dict[str, object]
) -> None:
    retriever = adapted(tiny_encoder, towers=towers, **settings)
    base = encode_texts(retriever, TEXTS, "passage")
    for _ in range(3):
        step(retriever)
    trained = values(retriever)
    write_model(retriever, tmp_path)
    read = load_retriever(ModelConfig(str(tmp_path)))
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    for side, encode in (("query", theirs.encode_query), ("passage", theirs.encode_document)):
        ours = encode_texts(retriever, TEXTS, side)
        assert abs(ours - base).max() > 0.01
        assert abs(encode_texts(read, TEXTS, side) - ours).max() < 1e-5
        assert abs(encode(TEXTS) - ours).max() < 1e-5
    # Training may go on from where it was.
    assert all(torch.equal(value, trained[name]) for name, value in values(retriever).items())


def test_adapters_are_merged_in_float32_and_written_in_the_type_of_the_base(tiny_encoder: Path, tmp_path: Path) -> None:
    config = ModelConfig(str(tiny_encoder), lora_rank=4)
    retriever = load_retriever(config, torch.bfloat16)
    prepare_for_training(retriever, config, 0)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            step(retriever)
    trained = values(retriever)
    write_model(retriever, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    layers = [name.removesuffix(".base_layer.weight") for name in trained if name.endswith(".base_layer.weight")]
    for layer in layers:
        base, a, b = (trained[f"{layer}.{part}"] for part in ("base_layer.weight", *ADAPTER))
        expected = base.double() + 2 * b.double() @ a.double()
        merged = written[f"{layer.removeprefix('query.backbone.')}.weight"].double()
        # Half of the distance of two bf16 numbers, and the rounding of float32.
        assert ((merged - expected).abs() <= (2**-8 + 2**-20) * expected.abs() + 1e-9).all(), layer
        assert not torch.equal(merged, base.double())
    read, theirs = load_retriever(ModelConfig(str(tmp_path))), SentenceTransformer(str(tmp_path), device="cpu")
    assert next(read.parameters()).dtype == torch.float32
    ours = encode_texts(read, TEXTS, "passage")
    assert abs(theirs.float().encode_document(TEXTS) - ours).max() < 1e-5
    assert abs(encode_texts(retriever, TEXTS, "passage") - ours).max() < 0.05


@pytest.mark.fast_every(9)
@pytest.mark.parametrize(
    ("architecture", "settings"), [("bert", {}), ("qwen3", {"pooling": "last", "append_eos": "yes"})]
)
def test_adapters_alone_are_loaded_onto_the_base(
    tmp_path: Path, architecture: str, settings: dict[str, object]
) -> None:
    encoder = write_transformer(tmp_path / "encoder", architecture, end_token=False)
    config = ModelConfig(str(encoder), lora_rank=4, **settings)
    retriever = load_retriever(config)
    prepare_for_training(retriever, config, 0)
    untrained = encode_texts(retriever, TEXTS, "passage")
    for _ in range(3):
        step(retriever)
    (tmp_path / "adapters").mkdir()
    write_model(retriever, tmp_path / "adapters", adapters_of=config)
    weights = [file.name for file in (tmp_path / "adapters").rglob("*.safetensors")]
    assert set(weights) == {"adapter_model.safetensors"}
    theirs = SentenceTransformer(str(tmp_path / "adapters"), device="cpu")
    for side, encode in (("query", theirs.encode_query), ("passage", theirs.encode_document)):
        ours = encode_texts(retriever, TEXTS, side)
        assert abs(ours - untrained).max() > 0.01
        assert abs(encode(TEXTS) - ours).max() < 1e-5
        read = load_retriever(ModelConfig(str(tmp_path / "adapters")))
        assert abs(encode_texts(read, TEXTS, side) - ours).max() < 1e-5


def adapters_of_peft(base: Path, folder: Path) -> Path:
    """Adapters with large weights, written by peft alone, as most are published."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(AutoModel.from_pretrained(base), LoraConfig(r=2, target_modules=["query", "value"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    model.save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft
def test_adapters_of_peft_are_read_with_the_settings_of_their_base(
    tiny_encoder: Path, tmp_path: Path, own_cache: Path
) -> None:
    # The base may lie anywhere, also in a folder of adapters.
    base_folder = shutil.copytree(tiny_encoder, tmp_path / "adapters" / "base")
    folder = adapters_of_peft(base_folder, tmp_path / "adapters" / "mine")
    theirs = SentenceTransformer(str(base_folder), device="cpu")
    base = theirs.encode_document(TEXTS, normalize_embeddings=True)
    theirs[0].auto_model.load_adapter(str(folder))
    for _ in range(2):  # merged once
        ours = encode_texts(load_retriever(ModelConfig(str(folder))), TEXTS, "passage")
        assert abs(theirs.encode_document(TEXTS, normalize_embeddings=True) - ours).max() < 1e-5
        assert abs(base - ours).max() > 0.01
    [merged] = [path for path in (tmp_path / "cache" / "merged").iterdir() if path.is_dir()]
    assert resolve_model(str(folder)) == merged
    assert resolve_model(str(folder), weights=False) == base_folder
    (base_folder / "config.json").touch()  # the base may be another one now
    assert resolve_model(str(folder)) != merged


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft
def test_adapters_that_cannot_be_read_are_one_line(tiny_encoder: Path, tmp_path: Path, own_cache: Path) -> None:
    folder = adapters_of_peft(tiny_encoder, tmp_path / "adapters")
    file, settings = folder / "adapter_config.json", json.loads((folder / "adapter_config.json").read_text())
    other = write_transformer(tmp_path / "other", "qwen3", end_token=False)
    for changes, message in (
        (
            {"base_model_name_or_path": str(tmp_path / "gone")},
            "belong to .*gone, which cannot be read \\(no such directory",
        ),
        ({"base_model_name_or_path": None}, "does not name the model that its adapters belong to; correct base_model"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path"),
        ({"base_model_name_or_path": str(other)}, "its adapters do not fit .*other|of a model with the layer"),
        ({"peft_type": "IA3"}, "holds adapters of type 'IA3'"),
        ({"r": -1}, "do not fit"),
    ):
        file.write_text(json.dumps(settings | changes))
        with pytest.raises(ModelError, match=message) as caught:
            resolve_model(str(folder))
        assert "\n" not in str(caught.value)
    file.write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="is damaged or changed"):
        resolve_model(str(folder))
    assert not [path for path in (tmp_path / "cache").glob("merged/*") if path.is_dir()]


def test_towers_share_frozen_weights(tiny_encoder: Path) -> None:
    frozen = load_retriever(ModelConfig(str(tiny_encoder)))
    retriever = adapted(tiny_encoder, towers="separate")
    assert retriever.query.backbone is not retriever.passage.backbone
    bases = {id(parameter) for parameter in retriever.parameters() if not parameter.requires_grad}
    assert len(bases) == len(list(frozen.parameters()))
    adapters = [name for name, parameter in retriever.named_parameters() if parameter.requires_grad]
    assert {name.split(".")[0] for name in adapters} == {"query", "passage"}
    moved = retriever.to(torch.float64)  # as onto a device: the tensors change, and stay shared
    assert len({id(parameter) for parameter in moved.parameters() if not parameter.requires_grad}) == len(bases)


def test_different_towers_keep_their_own_weights(tiny_encoder: Path, tmp_path: Path) -> None:
    two = load_retriever(ModelConfig(str(tiny_encoder), towers="separate"))
    with torch.no_grad():
        two.passage.backbone.embeddings.word_embeddings.weight.add_(1.0)
    write_model(two, tmp_path)
    config = ModelConfig(str(tmp_path), lora_rank=2)
    retriever = load_retriever(config)
    prepare_for_training(retriever, config, 0)
    query, passage = (
        tower.backbone.embeddings.word_embeddings.weight for tower in (retriever.query, retriever.passage)
    )
    assert query is not passage
    assert torch.equal(query + 1.0, passage)


def test_a_seed_decides_the_adapters_and_generators_do_not_change(tiny_encoder: Path) -> None:
    torch.manual_seed(5)
    one = values(adapted(tiny_encoder, towers="separate", seed=3))
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)
    again = values(adapted(tiny_encoder, towers="separate", seed=3))
    other = values(adapted(tiny_encoder, towers="separate", seed=4))
    assert all(torch.equal(value, again[name]) for name, value in one.items())
    first = [name for name in one if ".lora_A." in name]
    assert not any(torch.equal(one[name], other[name]) for name in first)
    assert not torch.equal(one[first[0]], one[first[0].replace("query.", "passage.", 1)])


def test_dropout_of_the_encoder_does_not_change_that_of_adapters(tiny_encoder: Path) -> None:
    retriever = adapted(tiny_encoder, lora_dropout=0.25)
    set_dropout(retriever, 0.0)
    results = {part.p for part in retriever.modules() if isinstance(part, torch.nn.Dropout)}
    assert results == {0.0, 0.25}
    retriever.train()
    one, other = (retriever.encode(retriever.pad(retriever.token_ids(TEXTS, "query")), "query") for _ in range(2))
    assert torch.equal(one, other)  # B is zero at first, whatever reaches it
    step(retriever)
    one, other = (retriever.encode(retriever.pad(retriever.token_ids(TEXTS, "query")), "query") for _ in range(2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"lora_rank": 0, "lora_alpha": 8.0},
            r"lora_alpha: has no effect without lora_rank; leave it out, or give lora_rank",
        ),
        ({"lora_rank": 0, "lora_dropout": 0.1}, r"lora_dropout: has no effect"),
        ({"lora_rank": 0, "save_adapters": True}, r"save_adapters: has no effect"),
        ({"save_adapters": True, "towers": "separate"}, r"save_adapters=True: .* two transformers"),
        ({"save_adapters": True, "bidirectional": True}, r"save_adapters=True: .* bidirectional=True; leave it out"),
        ({"lora_rank": 0, "lora_targets": "query"}, r"lora_targets: has no effect"),
        ({"lora_targets": "query,valeu"}, r"lora_targets: .*no linear layer 'valeu'; did you mean 'value'\?"),
        ({"lora_targets": "pooler.dense"}, r"no linear layer 'pooler.dense'"),
    ],
)
def test_settings_that_contradict_are_refused(tiny_encoder: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapted(tiny_encoder, **settings)


def test_a_missing_package_names_its_extra(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"lora_rank: peft is not installed; pip install 'raytriever\[lora\]'"):
        adapted(tiny_encoder)
    retriever = adapted(tiny_encoder, lora_rank=0)
    assert all(p.requires_grad for name, p in retriever.named_parameters() if "pooler" not in name)
