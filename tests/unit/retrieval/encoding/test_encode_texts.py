"""Encoding keeps the order of the texts; batches follow the token budget; titles have a place in the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, current_thread

import numpy as np
import pytest
import torch
from beir import write_beir
from sentence_transformers import SentenceTransformer
from torch import nn

from raytriever.core.errors import ModelError
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.models import inference
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import TokenBatch
from raytriever.models.prompts import PromptTable, Side
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import PackedLinear, load_for_encoding, speed_up
from raytriever.retrieval.encoding.shard_encoder import SideTexts, tokenization_of
from raytriever.training.guide_encoder import GuideTexts


def test_order_and_values_do_not_depend_on_batches(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    rng = np.random.default_rng(1)
    texts = ["a" * int(n) for n in rng.integers(0, 80, 150)]
    one_by_one = np.concatenate([encode_texts(retriever, [text], "passage") for text in texts])
    monkeypatch.setattr("raytriever.retrieval.encoding.encode_texts.WINDOW", 40)
    monkeypatch.setitem(inference.TOKEN_BUDGET, "cpu", 200)
    np.testing.assert_allclose(encode_texts(retriever, texts, "passage"), one_by_one, atol=1e-5)


@pytest.fixture
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_batches_in_threads_give_the_same_bytes(
    tiny_encoder: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = load_for_encoding(ModelConfig(str(tiny_encoder)), precision, torch.device("cpu"))
    rng = np.random.default_rng(1)
    texts = ["a" * int(n) for n in rng.integers(1, 80, 300)]
    inputs = retriever.assemble(retriever.contents(texts, "passage"), "passage")
    rows = retriever.batches(inputs, 400)
    rows[5] = []
    done, threads = [], set()
    encode = retriever.encode

    def noted(tokens: TokenBatch, side: Side) -> torch.Tensor:
        threads.add((current_thread().name, torch.get_num_threads()))
        return encode(tokens, side)

    retriever.encode = noted  # type: ignore[method-assign]
    together = retriever.start(inputs, rows, "passage", done.append).result()
    assert {cores for _, cores in threads} == {1}
    assert torch.get_num_threads() == 2
    assert sum(done) == sum(map(len, rows))
    threads.clear()
    monkeypatch.setattr(inference, "MOST_THREADS", 1)
    alone = retriever.start(inputs, rows, "passage").result()
    assert threads == {("MainThread", 2)}
    assert together.tobytes() == alone.tobytes()


@pytest.mark.usefixtures("two_cores")
def test_an_error_in_a_thread_ends_all(tiny_encoder: Path) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    calls: list[int] = []

    def broken(tokens: TokenBatch, side: Side) -> torch.Tensor:
        calls.append(len(calls))
        raise RuntimeError("no memory")

    retriever.encode = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no memory"):
        retriever.start([np.array([1, 2])] * 60, [[row] for row in range(60)], "passage").result()
    assert len(calls) <= 4
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_cores")
def test_while_a_thread_encodes_the_last_batch_the_other_begins_the_next_call(tiny_encoder: Path) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    encode, may_end = retriever.encode, Event()

    def held(tokens: TokenBatch, side: Side) -> torch.Tensor:
        assert tokens["input_ids"].shape[1] == 2 or may_end.wait(60)
        return encode(tokens, side)

    retriever.encode = held  # type: ignore[method-assign]
    short, long, rows = np.array([1, 2]), np.array([1, 2, 3]), [[row] for row in range(4)]
    first = retriever.start([long, short, short, short], rows, "passage")
    second = retriever.start([short] * 4, rows, "passage").result()
    may_end.set()
    np.testing.assert_array_equal(first.result()[1:], second[1:])


def test_a_budget_smaller_than_one_text_still_encodes_it(tiny_encoder: Path) -> None:
    inputs = [np.zeros(length, np.int64) for length in (5, 9, 2)]
    assert load_retriever(ModelConfig(str(tiny_encoder))).batches(inputs, budget=4) == [[1], [0], [2]]


def test_in_int8_an_embedding_does_not_depend_on_the_other_texts() -> None:
    retriever = load_for_encoding(ModelConfig("minilm"), "int8", torch.device("cpu"))
    rng = np.random.default_rng(0)
    words = ["alpha", "beta", "gamma", "delta", "river", "stone", "model", "query"]
    texts = [" ".join(rng.choice(words, length)) for length in (3, 3, 9, 11, 12, 27, 40, 75)]
    together = encode_texts(retriever, texts, "passage")
    alone = np.concatenate([encode_texts(retriever, [text], "passage") for text in texts])
    assert together.tobytes() == alone.tobytes()


TEXTS = ["a" * n for n in (1, 5, 5, 30, 61)]


@pytest.fixture
def retriever(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder)))


def test_fp32_agrees_up_to_rounding(retriever: Retriever) -> None:
    plain = encode_texts(retriever, TEXTS, "passage")
    assert any(isinstance(module, PackedLinear) for module in speed_up(retriever).modules())
    assert not any(type(module) is nn.Linear for module in retriever.query.backbone.encoder.modules())
    np.testing.assert_allclose(encode_texts(retriever, TEXTS, "passage"), plain, atol=1e-6)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_the_number_of_threads_changes_no_byte(tiny_encoder: Path, precision: str) -> None:
    retriever = load_for_encoding(ModelConfig(str(tiny_encoder)), precision, torch.device("cpu"))
    [bucket] = retriever.tokenize(["a" * 50] * 40, "passage").buckets
    embeddings = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        with torch.inference_mode():
            embeddings.append(retriever.encode(bucket, "passage"))
    assert all(torch.equal(embedding, embeddings[0]) for embedding in embeddings)


FORM = "title: {title} | text: "
DOCUMENTS = [("Vienna", "It lies on the Danube."), ("", "Graz lies on the Mur."), ("Linz: a city", "It has a port.")]
READ = [
    "title: Vienna | text: It lies on the Danube.",
    "title: none | text: Graz lies on the Mur.",
    "title: Linz: a city | text: It has a port.",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"title": title, "text": text} for title, text in DOCUMENTS]
    return write_beir(tmp_path / "rivers", rows, ["which river"], train=[(0, 0)])


@pytest.fixture
def titled(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder), passage_prompt=FORM))


def plain(titled: Retriever) -> list[list[int]]:
    """Tokens of the texts as the model should read them."""
    return [ids.tolist() for ids in titled.contents(READ, "passage", "")]


def test_a_passage_is_read_with_its_title_in_its_place(folder: Path, titled: Retriever) -> None:
    texts = SideTexts(open_dataset(folder, ["train"]), "passage")
    assert [ids.tolist() for ids in texts.read(titled, range(3))[0]] == plain(titled)
    assert [ids.tolist() for ids in texts.read(titled, [2, 0])[0]] == [plain(titled)[n] for n in (2, 0)]
    guide = GuideTexts(titled, open_dataset(folder, ["train"]))
    assert [ids.tolist() for ids in guide._sides["passage"][0].read(titled, [0, 1, 2])[0]] == plain(titled)


def test_prepared_tokens_are_those_of_the_texts(folder: Path, titled: Retriever) -> None:
    prepared = open_dataset(folder, ["train"], tokenization=tokenization_of(titled))
    assert prepared.tokens is not None
    assert [ids.tolist() for ids in prepared.tokens.documents.take(np.arange(3))] == plain(titled)
    assert [ids.tolist() for ids in SideTexts(prepared, "passage").read(titled, range(3))[0]] == plain(titled)


def test_a_title_that_moves_into_the_text_is_another_passage(folder: Path) -> None:
    texts = SideTexts(open_dataset(folder, ["train"]), "passage")
    same, before = texts.keys(range(3), FORM), texts.keys(range(3), "")
    moved = (
        (folder / "corpus.jsonl")
        .read_text()
        .replace('"title": "Vienna", "text": "It', '"title": "", "text": "Vienna It')
    )
    (folder / "corpus.jsonl").write_text(moved)
    again = SideTexts(open_dataset(folder, ["train"]), "passage")
    assert (again.keys(range(3), "")[0] == before[0]).all()  # joined, both are one text
    assert (again.keys(range(3), FORM)[0] != same[0]).any()
    assert (again.keys(range(3), FORM)[1] == same[1]).all()


def test_texts_without_a_title_are_read_as_the_model_expects(titled: Retriever, tmp_path: Path) -> None:
    ours = encode_texts(titled, ["Graz lies on the Mur."], "passage")
    assert (ours == encode_texts(titled, READ[1:2], "passage", prompt="")).all()
    write_model(titled, tmp_path)
    theirs = SentenceTransformer(str(tmp_path), device="cpu").encode_document(["Graz lies on the Mur."])
    assert abs(theirs - ours).max() < 1e-5
    assert load_retriever(ModelConfig(str(tmp_path))).description.passage_prompt == FORM


def test_other_places_are_refused(tiny_encoder: Path) -> None:
    for table, flag in (
        (PromptTable(query=FORM), "query_prompt"),
        (PromptTable(passage="{title} {title}"), "passage_prompt"),
        (PromptTable(passage="title: {title} | text: {text}"), "passage_prompt"),
    ):
        with pytest.raises(ModelError, match=f"{flag}: the prompt .* which nothing would replace"):
            table.of("scifact")
    unpooled = load_retriever(ModelConfig(str(tiny_encoder), passage_prompt="passage: "))
    object.__setattr__(unpooled.description, "pool_prompt", False)
    unpooled.prompts = PromptTable(passage=FORM)
    with pytest.raises(ModelError, match=r"does not pool the prompt, .*; write 'title: none | text: '"):
        unpooled.prompts_of("scifact")
