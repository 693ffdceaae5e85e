"""What a stage takes from the model that the stage before it left."""

from __future__ import annotations

from pathlib import Path

from raytriever.cluster.opening import OpenStage
from raytriever.config import Config, Stage
from raytriever.models.config import ModelConfig
from raytriever.models.description import describe
from raytriever.models.layout import write_model
from raytriever.models.retriever import load_retriever
from raytriever.training.material import Material


def test_of_the_model_before_only_the_weights_are_taken(tiny_encoder: Path, tmp_path: Path) -> None:
    # The stage before had a prefix and lengths of its own, which stand in the files of its model.
    before = tmp_path / "model"
    before.mkdir()
    write_model(load_retriever(ModelConfig(str(tiny_encoder), query_prefix="q: ", passage_length=16)), before)

    own = ModelConfig(str(tiny_encoder), revision="main", passage_prefix="p: ", query_length=20, lora_rank=4)
    description = describe(tiny_encoder, own)
    stage = OpenStage(Stage("b", Config(model=own)), description, Material([], Config().data, 1, 0), total_steps=1)
    after = stage.model_after(before)
    assert (after.model, after.revision, after.lora_rank) == (str(before), None, 4)
    assert load_retriever(after).description == description
    assert (description.query_prefix, description.passage_prefix) == ("", "p: ")
    assert (description.query_length, description.passage_length) == (20, 64)
