"""What a checkpoint is worth: as much as the model that would be written of it, and recorded once."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from saved_checkpoint import save_checkpoint

from raytriever.cluster.train.validate_checkpoint import DevSet, Validations, digest_of, open_dev_sets
from raytriever.core.errors import ConfigError, DataError, ModelError, StorageError
from raytriever.core.store.commit import committed_directory
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import in_this_process
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.systems import DenseSystem
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.training.dev_validation import read_records
from raytriever.training.run_config import Config, check_config
from raytriever.training.training_settings import TrainingConfig, ValidationConfig


@pytest.fixture
def config(tiny_encoder: Path, tiny_dataset: Path) -> Config:
    return Config(
        data=DataConfig(dataset=str(tiny_dataset)),
        model=ModelConfig(str(tiny_encoder)),
        training=TrainingConfig(best_metric="ndcg_at_5", precision="fp32"),
    )


@pytest.fixture
def own(tiny_dataset: Path) -> RetrievalDataset:
    return open_dataset(tiny_dataset, ["train", "dev"])


def saved(config: Config, folder: Path, spoilt: bool = False) -> Path:
    """A checkpoint of the encoder with weights of its own, with a parameter of the loss; and its model."""
    torch.manual_seed(5)
    retriever = load_retriever(config.model)
    for parameter in retriever.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    if spoilt:
        next(retriever.parameters()).data[:] = float("nan")
    with committed_directory(folder / "model") as aside:
        write_model(retriever.eval(), aside)
    return save_checkpoint(retriever, config.model, folder, 4)


def describe_datasets(config: Config, own: RetrievalDataset) -> tuple[DevSet, ...]:
    return open_dev_sets(config, own, in_this_process, lambda line: None)


def checked(config: Config, own: RetrievalDataset) -> None:
    """As a run looks at it before it begins."""
    check_config(config)
    describe_datasets(config, own)


def test_a_checkpoint_is_worth_what_its_model_is(config: Config, own: RetrievalDataset, tmp_path: Path) -> None:
    checkpoint = saved(config, tmp_path)
    validations = Validations(config, describe_datasets(config, own), tmp_path / "evaluations")
    record = validations.run(4, checkpoint)
    model = ModelConfig(str(tmp_path / "model"))
    expected = evaluate(
        own, "dev", DenseSystem(own, model, load_for_encoding(model, "fp32", torch.device("cpu")))
    ).metrics
    assert {name: record.metrics[f"dev/{name}"] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert record.value == record.metrics["dev/ndcg_at_5"]
    assert 0 < record.value < 1
    assert list(read_records(tmp_path / "evaluations")) == [record]
    # What is recorded is not measured again, for any caller.
    (checkpoint / "state.json").unlink()
    assert validations.run(4, checkpoint) == record
    with pytest.raises(StorageError):
        validations.run(6, checkpoint)


def test_of_several_data_sets_the_mean_decides(
    config: Config, own: RetrievalDataset, tmp_path: Path, tiny_dataset: Path
) -> None:
    other = tmp_path / "other"
    other.symlink_to(tiny_dataset)
    config = replace(config, validation=ValidationConfig(eval_datasets=f"own,{other}#test", eval_corpus=50))
    sets = describe_datasets(config, own)
    assert [(item.name, item.split) for item in sets] == [("letters", "dev"), ("other", "test")]
    metrics = Validations(config, sets, tmp_path / "evaluations").run(4, saved(config, tmp_path)).metrics
    for name in ("ndcg_at_5", "auc"):
        parts = [metrics[f"dev/{item}/{name}"] for item in ("letters", "other")]
        assert metrics[f"dev/{name}"] == pytest.approx(sum(parts) / 2)
        assert parts[0] != parts[1]
    assert digest_of(sets, config) != digest_of(sets, replace(config, validation=ValidationConfig(eval_corpus=51)))
    assert digest_of(sets, config) != digest_of(sets[:1], config)


@pytest.mark.parametrize("eval_corpus", [None, 50])
def test_relevant_documents_that_are_not_in_the_corpus_count(
    config: Config, tmp_path: Path, tiny_dataset: Path, eval_corpus: int | None
) -> None:
    folder = Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))
    dev = folder / "qrels" / "dev.tsv"
    dev.write_text(dev.read_text().replace("q100\td100\t", "q100\tgone\t") + "q101\tgone\t1\n")
    data = DataConfig(dataset=str(folder), max_bad_rows=0.1)
    config = replace(config, data=data, validation=ValidationConfig(eval_corpus=eval_corpus))
    training = replace(config.training, best_metric="recall_at_200")
    own = open_dataset(folder, ["train", "dev"], max_bad_rows=0.1)
    config = replace(config, training=training)
    validations = Validations(config, describe_datasets(config, own), tmp_path / "evaluations")
    # Everything is found but q100's only relevant document, and one of the two of q101.
    assert validations.run(4, saved(config, tmp_path)).value == pytest.approx(30.5 / 32)


def test_weights_that_are_not_finite_are_named(config: Config, own: RetrievalDataset, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="embeddings are not finite, the first of text 'what is"):
        Validations(config, describe_datasets(config, own), tmp_path).run(4, saved(config, tmp_path, spoilt=True))
    assert not read_records(tmp_path)


@pytest.mark.parametrize(
    ("settings", "validation", "error", "message"),
    [
        ({"best_metric": "ndgc_at_10"}, {}, ConfigError, r"unknown metric 'ndgc_at_10'; did you mean 'ndcg'"),
        ({"best_metric": "auc_at_10"}, {}, ConfigError, r"'auc_at_10' does not have a valid cutoff"),
        ({"best_metric": "accuracy_at_20"}, {}, ConfigError, r"letters, split 'dev': query 'q\d+' has no answers"),
        ({}, {"eval_datasets": "own#verify"}, DataError, "verify"),
        ({}, {"eval_datasets": "own,own#test"}, ConfigError, "two data sets have the name 'letters'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_starts(
    config: Config, own: RetrievalDataset, settings: dict, validation: dict, error: type, message: str
) -> None:
    config = replace(config, training=replace(config.training, **settings), validation=ValidationConfig(**validation))
    with pytest.raises(error, match=message):
        checked(config, own)


def test_an_empty_dev_split_is_refused(config: Config, tiny_dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv"):
        (folder / name).write_text((tiny_dataset / name).read_text())
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t0\n")
    config = replace(config, validation=ValidationConfig(eval_datasets=str(folder)))
    with pytest.raises(DataError, match=r"no query has a relevant document.*empty, split 'dev'|empty, split 'dev'"):
        describe_datasets(config, open_dataset(tiny_dataset, ["dev"]))


def test_choosing_by_the_measured_split_is_logged(config: Config, own: RetrievalDataset) -> None:
    events: list[str] = []
    config = replace(config, validation=ValidationConfig(eval_datasets="own#test"))
    open_dev_sets(config, own, in_this_process, events.append)
    assert [line for line in events if "chosen on the test split 'test'" in line]
    # Nothing is opened or logged if nothing is validated.
    plain = replace(config, training=TrainingConfig(), validation=ValidationConfig())
    assert open_dev_sets(plain, own, in_this_process, events.append) == ()
    assert json.dumps(digest_of((), plain)) == '""'
