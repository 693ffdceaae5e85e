"""Opening of a run: what is checked before anything is written, and queries that are in two splits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raytriever.core.errors import DataError, ModelError
from raytriever.data.data_settings import DataConfig
from raytriever.experiments.run.open_run import open_run
from raytriever.experiments.run.open_training import OpenTraining, resolved_config
from raytriever.experiments.run.whole_run import closing_evaluation
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.description import describe
from raytriever.models.directory.modules import ModelFiles
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.save_model import write_model
from raytriever.training.optimizer_and_schedule import learning_rate_scale
from raytriever.training.run_config import Config
from raytriever.training.training_data import TrainingData


def test_a_stage_uses_only_the_weights_of_the_previous_model(tiny_encoder: Path, tmp_path: Path) -> None:
    # The stage before had a prefix and lengths of its own, which stand in the files of its model.
    before = tmp_path / "model"
    before.mkdir()
    write_model(load_retriever(ModelConfig(str(tiny_encoder), query_prompt="q: ", passage_length=16)), before)

    own = ModelConfig(str(tiny_encoder), revision="main", passage_prompt="p: ", query_length=20, lora_rank=4)
    description = describe(ModelFiles.read(tiny_encoder), own)
    data = TrainingData([], Config().data, 1, 0)
    stage = OpenTraining(Config(model=own, name="b"), description, data, total_steps=1).starting_from(before)
    after = stage.config.model
    assert (after.model, after.revision, after.lora_rank) == (str(before), None, 4)
    assert load_retriever(after).description == description
    assert (description.query_prompt, description.passage_prompt) == ("", "p: ")
    assert (description.query_length, description.passage_length) == (20, 64)


def test_the_tracker_gets_the_resolved_settings(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    base = Config(
        data=DataConfig(str(tiny_dataset)),
        model=ModelConfig(str(tiny_encoder), passage_length=20),
        loss=LossConfig("mw"),
    )
    base = replace(base, training=replace(base.training, batch_size=16, max_steps=2))
    stages = replace(base, name="one"), replace(base, name="two", model=replace(base.model, pooling="cls"))
    staged = replace(base, stages=stages)
    used = open_run(staged, lambda line: None).settings()
    resolved = {"model": str(tiny_encoder), "pooling": "mean", "similarity": "cosine", "towers": "shared"}
    resolved |= {"query_prompt": "", "passage_prompt": "", "query_length": 20, "passage_length": 20}
    assert resolved.items() <= used["model"].items()
    assert used["training"]["precision"] in ("fp32", "bf16")
    assert used["training"]["device"] in ("cpu", "cuda")
    assert used["training"]["num_workers"] == 1
    assert [stage["model"]["pooling"] for stage in used["stages"]] == ["mean", "cls"]
    assert all(
        value is not None for section in used.values() if isinstance(section, dict) for value in section.values()
    )


def test_the_driver_reads_no_weights_and_finds_that_they_do_not_fit(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are loaded where they are used: by the processes that evaluate and train."""
    monkeypatch.setattr("raytriever.models.encoder.load_weights", lambda *_: pytest.fail("weights are read"))
    config = Config(data=DataConfig(str(tiny_dataset)), model=ModelConfig(str(tiny_encoder)))
    assert open_run(config, lambda line: None).encoder.startswith("mean pooling, cosine, 64 tokens")
    other = Path(shutil.copytree(tiny_encoder, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = weights["embeddings.word_embeddings.weight"][:, :16].contiguous()
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"embeddings\.word_embeddings\.weight"):
        open_run(replace(config, model=ModelConfig(str(other))), lambda line: None)


def test_a_guide_is_checked_before_any_data_is_opened(tiny_encoder: Path, tmp_path: Path) -> None:
    guide = Path(shutil.copytree(tiny_encoder, tmp_path / "guide"))
    weights = load_file(guide / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"].fill_(torch.nan)
    save_file(weights, guide / "model.safetensors", {"format": "pt"})
    config = Config(
        data=DataConfig(str(tmp_path / "no data")),
        model=ModelConfig(str(tiny_encoder)),
        loss=LossConfig("mw", guide=str(guide)),
    )
    with pytest.raises(ModelError, match=r"^guide \S+/guide: the embedding of a query holds NaN or infinity"):
        open_run(config, lambda line: None)


def test_the_device_of_a_clusters_workers_is_not_guessed(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    config = Config(model=ModelConfig(str(tiny_encoder)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    used = resolved_config(config, describe(ModelFiles.read(tiny_encoder), config.model))
    assert "device" not in used["training"]
    assert "precision" not in used["training"]


def with_repeated(tiny_dataset: Path, folder: Path, count: int) -> Path:
    """The data set with further test queries, whose texts are those of training queries in other case."""
    shutil.copytree(tiny_dataset, folder)
    lines = (folder / "queries.jsonl").read_text().splitlines()[:count]
    with (folder / "queries.jsonl").open("a") as queries, (folder / "qrels" / "test.tsv").open("a") as judgements:
        for i, line in enumerate(lines):
            queries.write(line.replace(f'"q{i}"', f'"again{i}"').replace("what is", "What  IS") + "\n")
            judgements.write(f"again{i}\td{i}\t1\n")
    return folder


def opened(tiny_encoder: Path, dataset: Path, **data: bool) -> list[str]:
    lines: list[str] = []
    config = Config(data=DataConfig(str(dataset), **data), model=ModelConfig(str(tiny_encoder)))  # type: ignore[arg-type]
    open_run(config, lines.append)
    return [line for line in lines if "training queries too" in line]


def test_many_overlapping_queries_are_refused_unless_allowed(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, own_cache: Path
) -> None:
    dataset = with_repeated(tiny_dataset, tmp_path / "set", 8)
    with pytest.raises(DataError, match=r"set: 8 of 40 queries of split 'test' \(20.0%\) .*; leave these queries out"):
        opened(tiny_encoder, dataset)
    line = (
        "set: 8 of 40 queries of split 'test' (20.0%) are training queries too (equal except for case and white space)"
    )
    assert opened(tiny_encoder, dataset, allow_split_overlap=True) == [line]


def test_a_few_overlapping_queries_are_logged(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, own_cache: Path
) -> None:
    [line] = opened(tiny_encoder, with_repeated(tiny_dataset, tmp_path / "set", 1))
    assert line.startswith("set: 1 of 33 queries of split 'test' (3.0%) are training queries too")
    assert opened(tiny_encoder, tiny_dataset) == []


def test_a_run_with_stages_has_the_dev_split_that_calibrates_it(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, own_cache: Path
) -> None:
    base = Config(data=DataConfig(str(tiny_dataset)), model=ModelConfig(str(tiny_encoder)))
    lines: list[str] = []
    whole = open_run(replace(base, stages=(replace(base, name="one"),)), lines.append)
    assert set(whole.dataset.judgements) == {"dev", "test"}

    # Another data set that has a test split alone is evaluated, too, and gets no calibration.
    evaluated = Path(shutil.copytree(tiny_dataset, tmp_path / "evaluated"))
    for split in ("train", "dev"):
        (evaluated / "qrels" / f"{split}.tsv").unlink()
    data = replace(base.data, dataset=str(evaluated), allow_split_overlap=True)
    whole = open_run(replace(base, data=data, stages=(replace(base, name="one"),)), lines.append)
    assert set(whole.dataset.judgements) == {"test"}
    assert closing_evaluation(whole, tmp_path / "model", lines.append).targets == ()
    [line] = [line for line in lines if line.startswith("the model gets no calibration.json: ")]
    assert "'dev'" in line

    # A stage that trains on the dev queries of the evaluated data says so.
    assert not [line for line in lines if "training queries too" in line]
    trained = Path(shutil.copytree(tiny_dataset, tmp_path / "trained"))
    shutil.copy(trained / "qrels" / "dev.tsv", trained / "qrels" / "train.tsv")
    stage = replace(base, name="one", data=replace(base.data, dataset=str(trained)))
    open_run(replace(base, stages=(stage,)), lines.append)
    assert [line for line in lines if line.startswith("letters: 32 of 32 queries of split 'dev'")]


def test_a_warm_up_that_is_longer_than_the_run_is_said(tiny_encoder: Path, tiny_dataset: Path, own_cache: Path) -> None:
    config = Config(data=DataConfig(str(tiny_dataset)), model=ModelConfig(str(tiny_encoder)))

    def lines(steps: int) -> list[str]:
        logged: list[str] = []
        training = replace(config.training, max_steps=steps, batch_size=16, warmup_steps=10, learning_rate=5e-5)
        open_run(replace(config, training=training), logged.append)
        return [line for line in logged if "warmup" in line]

    line = (
        "--warmup-steps 10 is not below the 4 steps of this training: the learning rate reaches only 1.8e-05, not 5e-05"
    )
    assert lines(4) == [line]
    assert learning_rate_scale(3, 10, 4) * 5e-5 == pytest.approx(1.8e-5, rel=0.02)
    assert lines(11) == []
