"""Every stage puts the prompts of a data set in front of its texts: the token ids that reach the encoder begin so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from saved_checkpoint import save_checkpoint
from tiny_models import embed
from torch import Tensor

from raytriever.cluster.encode_on_cluster import run_encoding
from raytriever.cluster.ingest import run_preparation
from raytriever.cluster.train.mining_round import MiningRounds
from raytriever.core.errors import UserError
from raytriever.data.data_settings import DataConfig
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.requested_models import build_evaluation_job, read_models
from raytriever.evaluation.results import Results
from raytriever.evaluation.run_evaluation import run_evaluation
from raytriever.experiments.run.open_run import open_run
from raytriever.losses.distributed import ALONE
from raytriever.models.encoder import Encoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encoding_settings import EncodeConfig
from raytriever.retrieval.index.approximate.index_settings import IndexConfig
from raytriever.retrieval.mining.mining_job import run_mining
from raytriever.retrieval.mining.mining_settings import MiningConfig
from raytriever.retrieval.search.approximate_search import format_answers, run_index
from raytriever.retrieval.search.exact_search import search_dataset
from raytriever.tracking.tracker import Tracker
from raytriever.training.run_config import Config
from raytriever.training.training_settings import RefreshConfig, TrainingConfig

pytestmark = pytest.mark.usefixtures("own_cache")

QUERY, PASSAGE, OTHER = "Ask: ", "Tell: ", "Else: "


@pytest.fixture(scope="module")
def instructed(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers directory with prompts for the data set `letters`, in other letter case."""
    folder = tmp_path_factory.mktemp("instructed") / "model"
    folder.mkdir()
    write_model(load_retriever(ModelConfig(str(tiny_encoder))), folder)
    (folder / "raytriever.json").unlink()
    file = folder / "config_sentence_transformers.json"
    prompts = {"query": OTHER, "document": "", "Letters-query": QUERY, "letters-document": PASSAGE, "s2s": "Same: "}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"prompts": prompts}))
    return folder


class Begins:
    """Inputs of the encoder: the tokens behind the first special token, as texts."""

    def __init__(self, tokenizer: object) -> None:
        self.rows: list[str] = []
        self._tokenizer = tokenizer

    def add(self, tokens: dict[str, Tensor]) -> None:
        for ids, mask in zip(tokens["input_ids"].tolist(), tokens["attention_mask"].tolist(), strict=True):
            row = [token for token, is_there in zip(ids, mask, strict=True) if is_there]
            self.rows.append(self._tokenizer.decode(row[1:-1]).replace(" ", "").replace("##", ""))  # type: ignore[attr-defined]

    def take(self) -> set[str]:
        """Return the prompts that the texts since the last call began with."""
        results = {row[: row.index(":") + 1].capitalize() if ":" in row else "" for row in self.rows}
        self.rows.clear()
        return results


@pytest.fixture
def begins(instructed: Path, monkeypatch: pytest.MonkeyPatch) -> Begins:
    seen = Begins(load_retriever(ModelConfig(str(instructed))).tokenizer)
    forward = Encoder.forward

    def spy(self: Encoder, tokens: dict[str, Tensor], left_out: int) -> Tensor:
        seen.add(tokens)
        return forward(self, tokens, left_out)

    monkeypatch.setattr(Encoder, "forward", spy)
    return seen


BOTH = {"Ask:", "Tell:"}


def test_search_and_index(instructed: Path, tiny_dataset: Path, tmp_path: Path, begins: Begins) -> None:
    model = ModelConfig(str(instructed))
    search_dataset(model, str(tiny_dataset), "what is abc", 2)
    assert begins.take() == BOTH
    lines: list[str] = []
    data, config = DataConfig(str(tiny_dataset)), IndexConfig(index="hnsw")
    index = run_index(config, model, data, tmp_path / "index", lines.append, split="test")
    format_answers(index, "what is abc", 2)
    assert begins.take() == {"Ask:"}  # the passages are in the cache
    index.search(["what is abc"], 2)
    assert begins.take() == {"Ask:"}
    assert "letters: queries begin with 'Ask: ' (prompt 'Letters-query'), passages begin with" in "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["query", "passage"])
def test_encode(instructed: Path, tiny_dataset: Path, tmp_path: Path, begins: Begins, side: str) -> None:
    settings = EncodeConfig(side=side)
    model, data = ModelConfig(str(instructed)), DataConfig(str(tiny_dataset))
    run_encoding(settings, model, data, tmp_path / "s", print, precision="fp32")
    assert begins.take() == {"Ask:" if side == "query" else "Tell:"}


def test_mine(instructed: Path, tiny_dataset: Path, tmp_path: Path, begins: Begins) -> None:
    model, data = ModelConfig(str(instructed)), DataConfig(str(tiny_dataset))
    run_mining(MiningConfig(method="dense"), model, data, tmp_path / "table", print, precision="fp32")
    assert begins.take() == BOTH


@pytest.mark.slow
def test_evaluate(instructed: Path, tiny_dataset: Path, tmp_path: Path, begins: Begins) -> None:
    shutil.copytree(tiny_dataset, tmp_path / "others")
    sets = [str(tiny_dataset), str(tmp_path / "others")]

    def evaluated(name: str, settings: ModelConfig) -> tuple[list[str], dict[str, object]]:
        models = read_models([f"a={instructed}", "bm25"], settings)
        job = build_evaluation_job(models, sets, EvaluationConfig(), [], [], [], "fp32", 0.01, print)
        lines: list[str] = []
        run_evaluation(job, tmp_path / name, False, Tracker, lines.append)
        return lines, Results.read(tmp_path / name)

    lines, results = evaluated("stored", ModelConfig())
    assert begins.take() == {*BOTH, "Else:", ""}
    assert "letters: a: queries begin with 'Ask: ' (prompt 'Letters-query')" in "\n".join(lines)
    assert "Ask: " in results.about["letters"].prompts["a"]
    assert not results.about["others"].prompts
    evaluated("flag", ModelConfig(query_prompt="Flag: "))
    assert begins.take() == {"Flag:"}  # the passages are in the cache
    evaluated("named", ModelConfig(query_prompt_name="s2s"))
    assert begins.take() == {"Same:"}
    evaluated("own", ModelConfig(query_prompt="Flag: ", dataset_prompts={"others-query": "Own: "}))
    assert begins.take() == {"Flag:", "Own:"}


def test_a_task_of_mteb(instructed: Path, tiny_dataset: Path, tmp_path: Path, begins: Begins) -> None:
    shutil.copytree(tiny_dataset, tmp_path / "fiqa")
    settings = ModelConfig(dataset_prompts={"FiQA2018-query": "Own: "})
    models = read_models([f"a={instructed}"], settings)
    job = build_evaluation_job(models, [str(tmp_path / "fiqa")], EvaluationConfig(), [], [], [], "fp32", 0.01, print)
    run_evaluation(job, tmp_path / "results", False, Tracker, print)
    assert begins.take() == {"Own:", ""}


def test_prepare_writes_the_prompts_into_the_tokens(instructed: Path, tiny_dataset: Path, tmp_path: Path) -> None:
    model = ModelConfig(str(instructed))
    prepared = run_preparation(str(tiny_dataset), None, model, 0.01, tmp_path / "prepared", print)
    retriever = load_retriever(model)
    from raytriever.data.prepare.open_dataset import open_all_splits

    dataset = open_all_splits(prepared.path)
    assert dataset.tokens is not None
    for side, column, texts in (
        ("query", dataset.tokens.queries, dataset.queries.texts),
        ("passage", dataset.tokens.documents, dataset.passages()),
    ):
        prompt = QUERY if side == "query" else PASSAGE
        expected = retriever.contents(list(texts), side, prompt)
        rows = column.take(np.arange(len(column)))
        assert all((row == other).all() for row, other in zip(rows, expected, strict=True))


def config_of(model: Path, dataset: Path, **settings: object) -> Config:
    return Config(
        data=DataConfig(dataset=str(dataset), extra_datasets=str(settings.pop("extra", ""))),
        model=ModelConfig(str(model), **settings),
        training=TrainingConfig(max_steps=2, batch_size=16, precision="fp32"),
    )


def test_training_refresh_validation_and_the_saved_model(
    instructed: Path, tiny_dataset: Path, tmp_path: Path, begins: Begins
) -> None:
    """Two data sets with prompts of their own in one batch, one by the model and one by the user."""
    extra = tmp_path / "more"
    shutil.copytree(tiny_dataset, extra)
    own = {"more-query": "Own: "}
    lines: list[str] = []
    opened = open_run(config_of(instructed, tiny_dataset, extra=extra, dataset_prompts=own), lines.append)
    assert any(line.startswith("more: queries begin with 'Own: ' (prompt 'more-query')") for line in lines)
    [training] = opened.trainings
    model = training.config.model

    trained = load_retriever(model)
    source = training.data.train(None)
    batch = source.batch(0, trained, ALONE)
    embed(trained, batch.queries, batch.passages)
    assert begins.take() == {"Ask:", "Own:", "Tell:", ""}
    batch = training.data.dev().batch(0, trained, ALONE)
    embed(trained, batch.queries, batch.passages)
    assert begins.take() == BOTH

    config = Config(
        data=DataConfig(negatives_per_query=1),
        model=model,
        training=TrainingConfig(precision="fp32"),
        refresh=RefreshConfig(refresh_every=5, refresh_negatives=4),
    )

    paths = [str(dataset.location) for dataset in training.data.datasets]
    checkpoint = save_checkpoint(trained, model, tmp_path / "checkpoints", 5)
    MiningRounds(config, paths, tmp_path / "negatives").run(1, checkpoint)
    assert begins.take() == {"Ask:", "Own:", "Tell:", ""}

    folder = tmp_path / "saved"
    folder.mkdir()
    write_model(trained, folder)
    for name in ("config_sentence_transformers.json", "raytriever.json"):
        stored = json.loads((folder / name).read_text())["prompts"]
        assert stored["more-query"] == "Own: "
        assert stored["Letters-query"] == QUERY
        assert stored["s2s"] == "Same: "
    (folder / "raytriever.json").unlink()  # as another library would save it
    for dataset, prompt in (("letters", QUERY), ("more", "Own: "), ("third", OTHER)):
        assert load_retriever(ModelConfig(str(folder))).prompts_of(dataset).query == prompt


def test_a_flag_of_training_is_stored_for_its_data_sets(instructed: Path, tiny_dataset: Path, tmp_path: Path) -> None:
    opened = open_run(config_of(instructed, tiny_dataset, query_prompt="Flag: "), lambda line: None)
    [training] = opened.trainings
    trained = load_retriever(training.config.model)
    write_model(trained, tmp_path)
    saved = load_retriever(ModelConfig(str(tmp_path)))
    assert saved.prompts_of("letters").query == "Flag: "
    assert saved.prompts_of("letters").passage == PASSAGE
    assert saved.prompts_of("third").query == "Flag: "


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"query_prompt_name": "s2p"}, "query_prompt_name: the model stores no prompt 's2p'; did you mean 's2s'"),
        ({"query_prompt_name": "s2s", "query_prompt": "x"}, "query_prompt_name: contradicts query_prompt"),
        (
            {"dataset_prompts": {"leters-query": "x"}},
            "dataset_prompts: 'leters-query' is a prompt for none of the data sets in use; did you mean",
        ),
        ({"query_prompt": "many words " * 20}, "and leaves none for the text; give a larger query_length"),
    ],
)
def test_wrong_prompts_end_in_one_line(
    instructed: Path, tiny_dataset: Path, tmp_path: Path, settings: dict[str, object], error: str
) -> None:
    model = ModelConfig(str(instructed), **settings)
    calls: list[Callable[[], object]] = [
        lambda: open_run(config_of(instructed, tiny_dataset, **settings), print),
        lambda: search_dataset(model, str(tiny_dataset), "what", 1),
        lambda: run_encoding(
            EncodeConfig(), model, DataConfig(str(tiny_dataset)), tmp_path / "store", print, precision="fp32"
        ),
        lambda: run_preparation(str(tiny_dataset), None, model, 0.01, tmp_path / "prepared", print),
        lambda: run_evaluation(
            build_evaluation_job(
                read_models([str(instructed)], model),
                [str(tiny_dataset)],
                EvaluationConfig(),
                [],
                [],
                [],
                None,
                0.01,
                print,
            ),
            tmp_path / "results",
            False,
            Tracker,
            print,
        ),
    ]
    # Each stage refuses the first; of the other mistakes training and preparation are the examples.
    for call in calls if settings == {"query_prompt_name": "s2p"} else (calls[0], calls[3]):
        with pytest.raises(UserError) as raised:
            call()
        assert error in str(raised.value)
        assert "\n" not in str(raised.value)
