"""Contents and templates give the output of the tokenizer, for tokenizers of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from raytriever.core.errors import ModelError
from raytriever.models.directory.hub_or_local import embedded_minilm
from raytriever.models.tokenization import Template, content_tokenizer_json

LINES = [
    "query: how far is the moon from the earth?",
    "passage: The Moon is Earth's only natural satellite; it orbits at 384,400 km on average.",
    "Der Mond umkreist die Erde in etwa 27 Tagen.",
    "月は地球の唯一の自然衛星です。",
    "ดวงจันทร์เป็นบริวารของโลก",
]
TEXTS = [
    "",
    " ",
    "\n",
    "a",
    "the moon",
    *LINES,
    "query: ",
    "🙂 \u2028 \u200b e\u0301",
    "the [SEP] </s> <s> [PAD] of it",  # special tokens spelled in a text
    "word, " * 300,
    "ด" * 700,
]
LENGTHS = [3, 4, 8, 33, 512]


def minilm() -> Any:
    return AutoTokenizer.from_pretrained(embedded_minilm(), local_files_only=True)


def unigram(**settings: Any) -> Any:
    """As XLM-R's: Unigram over a metaspace, `<s> $A </s>`."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **settings)


def bpe(single: str, **settings: Any) -> Any:
    """Byte-level, as GPT-2's and its many heirs'; `single` is the template, empty for none."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    if single:
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single=single, special_tokens=[("<|end|>", 0)]),
            ]
        )
    names = {"eos_token": "<|end|>", "pad_token": "<|pad|>"} | settings
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


KINDS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "wordpiece": (minilm, 1, 1),
    "unigram": (unigram, 1, 1),
    "unigram-cut-left": (lambda: unigram(truncation_side="left"), 1, 1),
    "unigram-pad-left": (lambda: unigram(padding_side="left"), 1, 1),
    "bpe": (lambda: bpe(""), 0, 0),
    "bpe-end": (lambda: bpe("$A <|end|>"), 0, 1),
    "bpe-end-cut-left-pad-left": (lambda: bpe("$A <|end|>", truncation_side="left", padding_side="left"), 0, 1),
    "bpe-end-thrice": (lambda: bpe("<|end|> <|end|> $A <|end|>"), 2, 1),
}


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> tuple[Any, int, int]:
    make, before, after = KINDS[request.param]
    return make(), before, after


def contents(tokenizer: Any, texts: list[str]) -> list[np.ndarray]:
    """As a process that has the JSON alone makes them."""
    own = Tokenizer.from_str(content_tokenizer_json(tokenizer))
    return [np.array(encoding.ids, np.uint32) for encoding in own.encode_batch_fast(texts, add_special_tokens=False)]


def assert_same(tokenizer: Any, texts: list[str], lengths: list[int]) -> None:
    template, token_ids = Template.of(tokenizer), contents(tokenizer, texts)
    for length in lengths:
        expected = tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        inputs = template.assemble(token_ids, length)
        assert [ids.tolist() for ids in inputs] == expected
        padded = tokenizer.pad({"input_ids": expected}, return_tensors="pt")
        ours = template.pad(inputs)
        assert ours.keys() == padded.keys()
        for name, tensor in ours.items():
            assert tensor.dtype == torch.int64
            assert torch.equal(tensor, padded[name]), name


def test_inputs_and_batches_equal_those_of_the_tokenizer(kind: tuple[Any, int, int]) -> None:
    tokenizer, before, after = kind
    template = Template.of(tokenizer)
    assert (len(template.before), len(template.after)) == (before, after)
    assert_same(tokenizer, TEXTS, LENGTHS)
    longest = max(map(len, contents(tokenizer, TEXTS)))
    assert longest > LENGTHS[-1]  # so that every length cut something


def test_the_json_holds_no_truncation_and_padding_of_earlier_calls() -> None:
    tokenizer = minilm()
    assert tokenizer.backend_tokenizer.truncation  # of the published file
    first = content_tokenizer_json(tokenizer)
    tokenizer(TEXTS, truncation=True, max_length=5, padding=True)
    assert content_tokenizer_json(tokenizer) == first
    assert len(contents(tokenizer, ["word " * 900])[0]) == 900
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 5  # and the tokenizer itself is left alone


@pytest.mark.parametrize("type_", [np.uint16, np.uint32, np.int64])
def test_contents_may_be_slices_of_any_integer_type(type_: type) -> None:
    flat = np.arange(100, 130, dtype=type_)
    flat.setflags(write=False)
    template = Template((1, 2), (3,), keep_end=False, pad_token=0, pad_left=False)
    result = template.assemble([flat[4:20], flat[:0], flat[7:8]], 6)
    assert [ids.tolist() for ids in result] == [[1, 2, 104, 105, 106, 3], [1, 2, 3], [1, 2, 107, 3]]
    assert {ids.dtype for ids in result} == {np.dtype(np.int64)}
    assert template.assemble([flat], 2)[0].tolist() == [1, 2, 3]  # special tokens are never cut
    assert template.assemble([], 6) == []


def test_a_batch_without_texts_and_a_text_without_tokens() -> None:
    template = Template((), (), keep_end=False, pad_token=9, pad_left=False)
    assert template.pad([])["input_ids"].shape == (0, 0)
    result = template.pad([np.zeros(0, np.int64), np.array([4, 5])])
    assert result["input_ids"].tolist() == [[9, 9], [4, 5]]
    assert result["attention_mask"].tolist() == [[0, 0], [1, 1]]


def test_unsupported_settings_are_refused() -> None:
    for single in ("$A <|end|> $A", "<|end|> $A <|end|> $A"):  # more than one gap
        with pytest.raises(ModelError, match="before and after"):
            Template.of(bpe(single))
    with pytest.raises(ModelError, match="no padding token"):
        Template.of(bpe("", pad_token=None))
    with pytest.raises(ModelError, match="split_special_tokens"):
        content_tokenizer_json(unigram(split_special_tokens=True))


def test_a_vocabulary_without_common_letters() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"<|pad|>": 0, "<|end|>": 1, "ด": 2}, merges=[]))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>")
    template = Template.of(fast)
    assert (template.before, template.after) == ((), (1,))
    assert_same(fast, ["", "ดด", "abc"], LENGTHS)
