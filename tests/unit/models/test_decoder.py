"""Decoders: the end token, attention to later tokens, padding on either side, and no cache."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_models import DECODERS, text_of, write_transformer
from tokenizers import processors
from transformers import AutoModel, AutoTokenizer

from raytriever.core.errors import ConfigError, ModelError
from raytriever.models.decoder import attends_to_later_tokens, set_bidirectional
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.training.run_config import from_dict

TEXTS = [text_of(3, 1), "a", text_of(40, 2), text_of(9, 3)]


def load(directory: Path, **settings: Any) -> Any:
    return load_retriever(ModelConfig(str(directory), **{"pooling": "last", **settings}))


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("architecture", DECODERS)
def test_an_appended_end_token_is_saved_for_every_library(tmp_path: Path, architecture: str) -> None:
    base = write_transformer(tmp_path / "base", architecture, end_token=False)
    plain = load(base, append_eos="no")
    retriever = load(base, append_eos="yes", query_length=512, passage_length=8)
    end = retriever.tokenizer.eos_token_id
    without = plain.token_ids(TEXTS, "query")
    ours = retriever.token_ids(TEXTS, "query")
    assert [ids.tolist() for ids in ours] == [[*ids.tolist(), end] for ids in without]
    cut = retriever.token_ids(TEXTS, "passage")
    assert [len(ids) for ids in cut] == [min(8, len(ids)) for ids in ours]
    assert all(ids[-1] == end for ids in cut)
    (tmp_path / "saved").mkdir()
    write_model(retriever, tmp_path / "saved")
    again = load_retriever(ModelConfig(str(tmp_path / "saved")))
    assert again.description.append_eos == "yes"
    assert [ids.tolist() for ids in again.token_ids(TEXTS, "query")] == [ids.tolist() for ids in ours]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer(TEXTS)["input_ids"] == [ids.tolist() for ids in ours]
    assert tokenizer(TEXTS, truncation=True, max_length=8)["input_ids"] == [ids.tolist() for ids in cut]
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    read = theirs.tokenize(TEXTS[:1])["input_ids"][0].tolist()
    assert read == retriever.token_ids(TEXTS[:1], "passage")[0].tolist()
    assert abs(theirs.encode_document(TEXTS) - encode_texts(retriever, TEXTS, "passage")).max() < 1e-5


def test_offsets_of_a_byte_level_tokenizer_are_kept(tmp_path: Path) -> None:
    """The layout of Llama 3: a sequence of offsets and a template."""
    base = write_transformer(tmp_path / "base", "llama", end_token=False)
    tokenizer = AutoTokenizer.from_pretrained(base)
    backend = tokenizer.backend_tokenizer
    backend.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])]
    )
    tokenizer.save_pretrained(base)
    retriever = load(base, append_eos="yes")
    assert [ids[[0, -1]].tolist() for ids in retriever.token_ids(TEXTS, "query")] == [[1, 2]] * len(TEXTS)
    first, _ = retriever.tokenizer.backend_tokenizer.post_processor
    assert isinstance(first, processors.ByteLevel)
    assert first.trim_offsets is False
    pair = retriever.tokenizer("a", "a")["input_ids"]
    assert pair == retriever.tokenizer("a")["input_ids"] * 2


def test_a_tokenizer_that_ends_texts_does_not_change(tmp_path: Path) -> None:
    base = write_transformer(tmp_path / "base", "qwen3")
    for append_eos in ("auto", "yes", "no"):
        assert load(base, append_eos=append_eos).token_ids(TEXTS, "query")[0][-1] == 0  # <|endoftext|>


def test_last_pooling_without_an_end_token_warns_once_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = write_transformer(tmp_path / "base", "llama", end_token=False)
    with caplog.at_level(logging.WARNING):
        load(base, append_eos="no")
        load(base, pooling="mean")
        load(base, append_eos="yes")
        assert not caplog.records
        load(base)
        load(base)
    (record,) = caplog.records
    assert "--append-eos yes" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    base = write_transformer(tmp_path / "base", "llama", end_token=False)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(base)
    with pytest.raises(ConfigError, match=r"append_eos yes: the tokenizer of .* has no end token"):
        load(base, append_eos="yes")


@pytest.mark.parametrize(
    ("written", "value"), [("yes", "yes"), (True, "yes"), ("no", "no"), (False, "no"), ("auto",) * 2]
)
def test_yaml_may_write_yes_and_no(written: object, value: str) -> None:
    assert from_dict({"model": {"append_eos": written}}, "file").model.append_eos == value


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("architecture", DECODERS)
def test_bidirectional_attention_is_saved_for_every_library(tmp_path: Path, architecture: str) -> None:
    base = write_transformer(tmp_path / "base", architecture)
    causal, retriever = load(base, pooling="mean"), load(base, pooling="mean", bidirectional=True)
    assert not attends_to_later_tokens(causal.query.backbone)
    assert attends_to_later_tokens(retriever.query.backbone)
    ours = encode_texts(retriever, TEXTS, "passage")
    assert np.abs(ours - encode_texts(causal, TEXTS, "passage")).max() > 0.01
    (tmp_path / "saved").mkdir()
    write_model(retriever, tmp_path / "saved")
    again = load_retriever(ModelConfig(str(tmp_path / "saved")))
    assert np.abs(encode_texts(again, TEXTS, "passage") - ours).max() < 1e-6
    assert attends_to_later_tokens(AutoModel.from_pretrained(tmp_path / "saved").eval())
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert abs(theirs.encode_document(TEXTS) - ours).max() < 1e-5
    back = load_retriever(ModelConfig(str(tmp_path / "saved"), bidirectional=False))
    assert not attends_to_later_tokens(back.query.backbone)


def test_a_model_that_ignores_the_setting_is_refused(tmp_path: Path) -> None:
    from transformers import StableLmConfig, StableLmModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = StableLmModel(StableLmConfig(vocab_size=50, num_key_value_heads=2, **sizes)).eval()
    with pytest.raises(ModelError, match=r"StableLmModel .* bidirectional"):
        set_bidirectional(model, True, tmp_path)


def test_the_setting_is_no_change_for_an_encoder(tiny_encoder: Path) -> None:
    plain, retriever = load(tiny_encoder), load(tiny_encoder, bidirectional=True)
    assert (encode_texts(retriever, TEXTS, "query") == encode_texts(plain, TEXTS, "query")).all()


@pytest.mark.slow
def test_gemma_with_its_own_setting_stays_bidirectional(tmp_path: Path) -> None:
    base = write_transformer(tmp_path / "base", "gemma3_text", use_bidirectional_attention=True)
    for bidirectional in (None, True):
        retriever = load(base, pooling="mean", bidirectional=bidirectional)
        assert attends_to_later_tokens(retriever.query.backbone)
        theirs = AutoModel.from_pretrained(base).eval()
        tokens = retriever.pad(retriever.token_ids(TEXTS, "query"))
        with torch.no_grad():
            expected, states = (item(**tokens).last_hidden_state for item in (theirs, retriever.query.backbone))
        assert torch.equal(states, expected)
    with pytest.raises(ModelError, match=r"Gemma3TextModel .* bidirectional=False"):
        load(base, bidirectional=False)


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("architecture", DECODERS)
def test_nothing_builds_a_cache(tmp_path: Path, architecture: str) -> None:
    base = write_transformer(tmp_path / "base", architecture, use_cache=True)
    retriever = load(base)
    tokens = retriever.pad(retriever.token_ids(TEXTS, "query"))
    for mode in (True, False):
        output = retriever.train(mode).query.backbone(**tokens)
        assert output.past_key_values is None


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("architecture", DECODERS)
@pytest.mark.parametrize("bidirectional", [None, True])
def test_padding_on_either_side_gives_the_same_embeddings(
    tmp_path: Path, architecture: str, bidirectional: bool | None
) -> None:
    results = []
    for side in ("left", "right"):
        base = write_transformer(tmp_path / side, architecture, padding_side=side)
        retriever = load(base, bidirectional=bidirectional)
        alone = torch.cat(
            [retriever.encode(retriever.pad([ids]), "query") for ids in retriever.token_ids(TEXTS, "query")]
        )
        tokens = retriever.pad(retriever.token_ids(TEXTS, "query"))
        assert (tokens["attention_mask"][:, 0] == 0).any() == (side == "left" and architecture != "gpt2")
        together = retriever.encode(tokens, "query")
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
        results.append(together)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_learned_positions_are_never_shifted_by_padding(tmp_path: Path, architecture: str) -> None:
    base = write_transformer(tmp_path / "base", architecture, padding_side="left", max_length=256)
    retriever = load(base, pooling="mean")
    ours = encode_texts(retriever, TEXTS, "passage")
    (tmp_path / "saved").mkdir()
    write_model(retriever, tmp_path / "saved")
    shifted, saved = (SentenceTransformer(str(folder), device="cpu") for folder in (base, tmp_path / "saved"))
    one_by_one = shifted.encode_document(TEXTS, batch_size=1, normalize_embeddings=True)
    assert abs(ours - one_by_one).max() < 1e-5
    assert abs(shifted.encode_document(TEXTS, normalize_embeddings=True) - one_by_one).max() > 0.01
    assert abs(saved.encode_document(TEXTS) - ours).max() < 1e-5
