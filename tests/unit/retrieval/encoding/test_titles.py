"""A place for the title in the prompt of passages: in stores, prepared tokens, the guide and written models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from beir import write_beir
from sentence_transformers import SentenceTransformer

from raytriever.core.errors import ModelError
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import PromptTable
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.shard_encoder import SideTexts, tokenization_of
from raytriever.training.guide_encoder import GuideTexts

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
def retriever(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder), passage_prompt=FORM))


def plain(retriever: Retriever) -> list[list[int]]:
    """Tokens of the texts as the model should read them."""
    return [ids.tolist() for ids in retriever.contents(READ, "passage", "")]


def test_a_passage_is_read_with_its_title_in_its_place(folder: Path, retriever: Retriever) -> None:
    texts = SideTexts(open_dataset(folder, ["train"]), "passage")
    assert [ids.tolist() for ids in texts.read(retriever, range(3))[0]] == plain(retriever)
    assert [ids.tolist() for ids in texts.read(retriever, [2, 0])[0]] == [plain(retriever)[n] for n in (2, 0)]
    guide = GuideTexts(retriever, open_dataset(folder, ["train"]))
    assert [ids.tolist() for ids in guide._sides["passage"][0].read(retriever, [0, 1, 2])[0]] == plain(retriever)


def test_prepared_tokens_are_those_of_the_texts(folder: Path, retriever: Retriever) -> None:
    prepared = open_dataset(folder, ["train"], tokenization=tokenization_of(retriever))
    assert prepared.tokens is not None
    assert [ids.tolist() for ids in prepared.tokens.documents.take(np.arange(3))] == plain(retriever)
    assert [ids.tolist() for ids in SideTexts(prepared, "passage").read(retriever, range(3))[0]] == plain(retriever)


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


def test_texts_without_a_title_are_read_as_the_model_expects(retriever: Retriever, tmp_path: Path) -> None:
    ours = encode_texts(retriever, ["Graz lies on the Mur."], "passage")
    assert (ours == encode_texts(retriever, READ[1:2], "passage", prompt="")).all()
    write_model(retriever, tmp_path)
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
