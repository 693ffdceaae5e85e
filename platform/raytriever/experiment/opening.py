"""Open and check everything a user may get wrong before anything is written: settings, data sets, model, directory.

All stages are opened here, so that an error in the last stage is found before the first stage trains. A hub model is
pinned to the commit that its name referred to at the start of the run; a resumed run reads the commit from its
configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from raytriever.cluster.ingest import choose_runner
from raytriever.cluster.train.dev_sets import DevSet, open_dev_sets
from raytriever.config import STAGES, Config, Curriculum, Stage, read_settings, stage_difference, stage_errors, to_dict
from raytriever.data.config import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import lent_dev_line, open_dataset
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.data.pydocs import PYDOCS
from raytriever.data.sampling.examples import check_positives
from raytriever.data.sampling.spread import shared
from raytriever.data.statistics import check_overlap, overlaps
from raytriever.encoding.loading import load_for_encoding
from raytriever.encoding.shards import tokenisation_of
from raytriever.errors import DataError, flag_of
from raytriever.experiment.directory import CONFIG, RunDirectory, recorded_settings, refuse_difference
from raytriever.losses.loss import check_widths
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.description import Description, describe, prompt_table, used_settings
from raytriever.models.precision import choose_precision, default_device
from raytriever.models.resolution import commit_of, read_files
from raytriever.models.retriever import Retriever
from raytriever.prompts import SIDES, Prompts, PromptTable, merge_prompts
from raytriever.training.config import check_refresh
from raytriever.training.guide import Guide
from raytriever.training.training_data import TrainingData

Log = Callable[[str], None]


def pin_sources(curriculum: Curriculum, output: Path, fresh: bool) -> Curriculum:
    """Return the settings with the encoder's revision as a commit, and losses in files with the digests of the files.

    An encoder on this machine has no commit. Without a revision in the command, that of the run in `output` is used.
    """
    model = curriculum.base.model
    recorded = None if fresh or model.revision else _recorded_commit(output, model.model)
    commit = recorded or commit_of(model.model, model.revision)

    def pinned(config: Config) -> Config:
        model, loss = config.model, config.loss
        revision = commit or model.revision
        return replace(config, model=replace(model, revision=revision), loss=loss.pinned())

    stages = tuple(replace(stage, config=pinned(stage.config)) for stage in curriculum.stages)
    return Curriculum(pinned(curriculum.base), stages)


def _recorded_commit(folder: Path, model: str) -> str | None:
    recorded = recorded_settings(folder).get("model")
    if not isinstance(recorded, dict) or recorded.get("model") != model or recorded.get("revision") is None:
        return None
    return str(recorded["revision"])


@dataclass(frozen=True)
class OpenStage:
    """One stage of training with its prepared data.

    Args:
        description: prompts and lengths of the encoder in this stage.
        total_steps: the stage ends after at most this many steps.
        dev_sets: data sets on which its checkpoints are evaluated.
        named_prompts: prompts by name that the trained model must store for the data sets of the run.
    """

    stage: Stage
    description: Description
    training_data: TrainingData
    total_steps: int
    dev_sets: tuple[DevSet, ...] = ()
    prompts: PromptTable = field(default_factory=PromptTable)
    named_prompts: Mapping[str, str] = field(default_factory=dict)

    def model(self, config: ModelConfig) -> ModelConfig:
        """Return the model settings with which workers train: the trained model stores their prompts."""
        prompts = merge_prompts(config.dataset_prompts or {}, self.named_prompts)
        return replace(config, dataset_prompts=prompts or None)

    def model_after(self, previous: Path) -> ModelConfig:
        """Return the model settings that load a previous stage's model with the prompts and lengths of this stage."""
        read = self.description.flags() | {"query_prompt_name": None, "passage_prompt_name": None}
        return self.model(replace(self.stage.config.model, model=str(previous), revision=None, **read))


@dataclass(frozen=True)
class OpenRun:
    """A run whose settings, data and model have been checked; `dataset` is measured, with its test split."""

    curriculum: Curriculum
    dataset: RetrievalDataset
    stages: tuple[OpenStage, ...]

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings for the tracker, including values from the model and the machine."""
        stages = self.curriculum.to_dict().get(STAGES, [])
        for settings, stage in zip(stages, self.stages if stages else (), strict=True):
            settings["model"] = used_settings(stage.stage.config.model, stage.description)
        used = resolved_config(self.curriculum.base, self.stages[0].description)
        return used | ({STAGES: stages} if stages else {})


def resolved_config(config: Config, description: Description) -> dict[str, dict[str, Any]]:
    """Return the resolved settings of one training, without settings that have no value.

    The workers of a joined cluster may have other devices than this process. Then device and precision are only
    included if the settings name them.
    """
    settings = to_dict(config)
    settings["model"] = used_settings(config.model, description)
    if torch.cuda.is_available() or not os.environ.get("RAY_ADDRESS"):
        device = default_device()
        precision = choose_precision(config.training.precision, device)
        settings["training"] |= {"precision": precision, "device": device.type}
    return {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in settings.items()
    }


def open_run_directory(output: Path, curriculum: Curriculum, fresh: bool) -> RunDirectory:
    """Check the run's directory, including its stages, as `RunDirectory.open` does. Nothing is written."""
    run = RunDirectory.open(output, to_dict(curriculum.base), fresh)
    if run.state != "new":
        refuse_difference(output, stage_difference(read_settings(output / CONFIG).get(STAGES), curriculum))
    return run


def open_run(curriculum: Curriculum, log: Log) -> tuple[OpenRun, Retriever]:
    """Open and check the data and the encoder of a run; the encoder is on the CPU, to evaluate it before training."""
    base = curriculum.base
    for part in curriculum.all_stages:
        with stage_errors(part):
            build_loss(part.config.loss)  # only for its checks
    names = {base.data.dataset, *(name for part in curriculum.all_stages for name in part.config.data.datasets)}
    if PYDOCS in names:
        log(f"{PYDOCS}: the docstrings of Python's standard library, read once for each version")
    cpu = torch.device("cpu")  # the memory of a GPU belongs to the processes that evaluate and train
    retriever = load_for_encoding(base.model, choose_precision(base.training.precision, cpu), cpu)
    for part in curriculum.all_stages:
        with stage_errors(part):
            check_widths(part.config.loss.widths, retriever.width)
            if part.config.loss.guide:
                Guide.load(part.config.loss.guide, choose_precision(base.training.precision, cpu), cpu).check()
    measured = _open_measured(base, retriever, log) if curriculum.stages else None
    stages = []
    for part in curriculum.all_stages:
        with stage_errors(part):
            stages.append(_open_stage(part, base.data, retriever, log))
    datasets = [dataset for stage in stages for dataset in stage.training_data.datasets]
    if measured is None:
        measured = datasets[0]
    else:
        datasets.insert(0, measured)
    check_positives(measured.positives(base.data.test_split), measured, base.data.test_split)
    for stage in stages:
        with stage_errors(stage.stage):
            _check_overlaps(stage, measured, base.data, log)
    stages = _with_prompts(stages, measured.name, retriever, log)
    lines = [line for each in datasets if (line := lent_dev_line(each))]
    lines += [f"{each.name}: " + ", ".join(f"{k} {n:,}" for k, n in each.counts().items()) for each in datasets]
    for line in dict.fromkeys(lines):
        log(line)
    return OpenRun(curriculum=curriculum, dataset=measured, stages=tuple(stages)), retriever


def _with_prompts(stages: list[OpenStage], measured: str, retriever: Retriever, log: Log) -> list[OpenStage]:
    """Check and log the prompts of the data sets of a run, and return the stages with the prompts to store."""
    names = [
        [*(each.name for each in stage.training_data.datasets), *(each.name for each in stage.dev_sets), measured]
        for stage in stages
    ]
    lines, checked = [], []
    for stage, own in zip(stages, names, strict=True):
        with stage_errors(stage.stage):
            stage.prompts.check([each for every in names for each in every], every=True)
            lines += [line for name in own if (line := _check_prompts(stage.prompts.of(name), name, retriever))]
            lines += [line for each in stage.training_data.datasets if (line := _check_rows(each, retriever))]
        named = [stage.prompts.named(name) for name in own]
        checked.append(replace(stage, named_prompts={key: text for each in named for key, text in each.items()}))
    for line in dict.fromkeys(lines):
        log(line)
    return checked


def _check_prompts(prompts: Prompts, name: str, retriever: Retriever) -> str:
    """Check the prompts of a data set, and return a line about them if it has its own."""
    for side in SIDES:
        retriever.check_prompt(prompts[side], side)
    return f"{name}: {prompts}" if prompts.query_name or prompts.passage_name else ""


def _check_rows(dataset: RetrievalDataset, retriever: Retriever) -> str:
    """Check the prompts of single queries, and return a line about them if there are any."""
    if dataset.prompts is None:
        return ""
    for text in dataset.prompts.distinct():
        retriever.check_prompt(text, "query")
    count, total = len(dataset.prompts.queries), len(dataset.queries)
    return f"{dataset.name}: {count:,} of {total:,} queries begin with the prompts of their rows"


def _check_overlaps(stage: OpenStage, measured: RetrievalDataset, run: DataConfig, log: Log) -> None:
    """Log the number of dev and test queries that a stage trains on.

    Dev queries make training stop too late, which the dev curve shows, and the calibration too confident. Test queries
    make the results too good, which nothing shows.

    Raises:
        DataError: too many test queries are among the training queries.
    """
    data, datasets = stage.stage.config.data, stage.training_data.datasets
    trained = [(dataset, data.train_split) for dataset in datasets]
    checked = [(datasets[0], data.dev_split), (measured, run.test_split)]
    if run.dev_split in measured.judgements:
        checked.insert(1, (measured, run.dev_split))
    distinct = {(dataset.name, split): (dataset, split) for dataset, split in checked}
    for overlap in overlaps(trained, list(distinct.values())):
        if overlap.split == run.test_split:
            check_overlap(overlap, data.allow_split_overlap)
        if overlap.shared:
            log(f"{overlap.dataset}: {overlap}")


def _open_measured(config: Config, retriever: Retriever, log: Log) -> RetrievalDataset:
    """Open the data set of the evaluation, for a run whose stages have data sets of their own.

    The dev split, if there is one, calibrates the trained model.
    """
    options: dict[str, Any] = {
        "max_bad_rows": config.data.max_bad_rows,
        "bm25_language": config.data.bm25_language,
        "tokenisation": tokenisation_of(retriever),
        "run": choose_runner(config.training.workers[1]),
        "report": log,
    }
    try:
        return open_dataset(config.data.dataset, [config.data.test_split, config.data.dev_split], **options)
    except DataError as error:  # a data set with a test split alone can be measured
        dataset = open_dataset(config.data.dataset, [config.data.test_split], **options)
        log(f"the trained model gets no calibration.json: {error}")
        return dataset


def _open_stage(stage: Stage, measured: DataConfig, retriever: Retriever, log: Log) -> OpenStage:
    config = stage.config
    data, training = config.data, config.training
    description = describe(read_files(config.model), config.model)
    prompts = prompt_table(description, config.model)
    tokenisation: Tokenisation = replace(
        tokenisation_of(retriever), query_prompt=prompts.query, passage_prompt=prompts.passage, table=prompts
    )
    training_data = TrainingData.open(
        data.datasets,
        data,
        tokenisation,
        training.batch_size,
        training.seed,
        # A passage that the test split marks as relevant must not be a hard negative of its query.
        also=[measured.test_split] if data.dataset == measured.dataset else [],
        run=choose_runner(training.workers[1]),
        report=log,
    )
    dev = training_data.datasets[0]
    check_positives(dev.positives(data.dev_split), dev, data.dev_split)
    source = training_data.train(None)
    order = source.order
    if not data.duplicates:
        left = shared(order, source.examples.positives, range(order.steps(1)))
        log(
            f"{flag_of('duplicates', False)}: {left:,} of {len(source.examples):,} queries share a positive in their "
            "batch"
        )
    total_steps = training.max_steps or order.steps(training.epochs or 1.0)
    if training.warmup_steps >= total_steps:
        reached = training.learning_rate * total_steps / (training.warmup_steps + 1)
        log(
            f"{flag_of('warmup_steps')} {training.warmup_steps} is not below the {total_steps:,} steps of this "
            f"training: the learning rate reaches {reached:.2g} of {training.learning_rate:.2g}"
        )
    check_refresh(config.refresh, data, total_steps)
    dev_sets = open_dev_sets(config, training_data.datasets[0], choose_runner(training.workers[1]), log)
    return OpenStage(
        stage=stage,
        description=description,
        training_data=training_data,
        total_steps=total_steps,
        dev_sets=dev_sets,
        prompts=prompts,
    )
