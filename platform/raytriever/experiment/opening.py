"""Open and check everything a user may get wrong before anything is written: settings, data sets, model, directory.

All stages are opened here, so that the last one cannot fail for what could have been seen before the first. A hub model
is pinned to the commit that its name referred to when the run began; a resumed run reads the commit from its
configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from raytriever.cluster.ingest import choose_runner
from raytriever.cluster.train.dev_sets import DevSet, open_dev_sets
from raytriever.config import STAGES, Config, Curriculum, Stage, read_settings, stage_difference, stage_errors, to_dict
from raytriever.data.config import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.data.pydocs.builder import PYDOCS
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.spread import shared
from raytriever.data.statistics import check_overlap, overlaps
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import ConfigError
from raytriever.experiment.directory import CONFIG, RunDirectory
from raytriever.losses.nested import narrower_widths
from raytriever.losses.registry import build_loss
from raytriever.models.config import ModelConfig
from raytriever.models.description import Description, describe, used_settings
from raytriever.models.precision import choose_precision
from raytriever.models.retriever import Retriever
from raytriever.models.source import commit_of, resolve_model
from raytriever.training.refresh.config import check_refresh
from raytriever.training.training_data import Material, tokenisation_of


def pin_model(curriculum: Curriculum, output: Path, fresh: bool) -> Curriculum:
    """The settings with the encoder's revision as a commit; unchanged where the encoder lies on this machine.

    Args:
        curriculum: as the command gives it.
        output: the run directory, whose recorded commit counts where the command names no revision.
        fresh: whether what stands there counts no more.

    Raises:
        ModelError: see `resolve_model`.
    """
    model = curriculum.base.model
    recorded = None if fresh or model.revision else _recorded(output / CONFIG, model.model)
    commit = recorded or commit_of(model.model, model.revision)
    if commit is None:
        return curriculum

    def pinned(config: Config) -> Config:
        return replace(config, model=replace(config.model, revision=commit))

    stages = tuple(replace(stage, config=pinned(stage.config)) for stage in curriculum.stages)
    return Curriculum(pinned(curriculum.base), stages)


def _recorded(file: Path, model: str) -> str | None:
    there = None
    if file.is_file():
        with suppress(ConfigError):  # the run directory refuses it in its own words
            there = read_settings(file).get("model")
    if not isinstance(there, dict) or there.get("model") != model or there.get("revision") is None:
        return None
    return str(there["revision"])


Say = Callable[[str], None]


@dataclass(frozen=True)
class OpenStage:
    """A stretch of training whose data stands prepared.

    Args:
        stage: its name and settings.
        description: the encoder as this stage sees it.
        material: what it learns from.
        total_steps: after which it ends at the latest.
        dev_sets: what its checkpoints are evaluated on.
    """

    stage: Stage
    description: Description
    material: Material
    total_steps: int
    dev_sets: tuple[DevSet, ...] = ()

    def model_after(self, previous: Path) -> ModelConfig:
        """This stage's settings of the encoder for another stage's model, whose own prefixes and lengths give way."""
        return replace(self.stage.config.model, model=str(previous), revision=None, **asdict(self.description))


@dataclass(frozen=True)
class OpenRun:
    """A run of which everything has been looked at.

    Args:
        curriculum: its settings.
        dataset: what is measured, with the test split.
        stages: the stretches of training, in their order; one where the run has no stages.
        precision, device: of measuring.
    """

    curriculum: Curriculum
    dataset: RetrievalDataset
    stages: tuple[OpenStage, ...]
    precision: str
    device: torch.device

    def settings(self) -> dict[str, Any]:
        """Return the settings as they are used, for the tracker: nothing that is left to the model or the machine."""
        stages = self.curriculum.to_dict().get(STAGES, [])
        for settings, stage in zip(stages, self.stages if stages else (), strict=True):
            settings["model"] = used_settings(stage.stage.config.model, stage.description)
        used = resolved_config(self.curriculum.base, self.stages[0].description)
        return used | ({STAGES: stages} if stages else {})


def resolved_config(config: Config, description: Description) -> dict[str, dict[str, Any]]:
    """Return the settings of one training as they are used; one that stays without a value is left out.

    The workers of a cluster that is joined may have devices that this process has not; device and precision are then
    known only where they are given.

    Args:
        config: the settings.
        description: the encoder as it reads texts.
    """
    settings = to_dict(config)
    settings["model"] = used_settings(config.model, description)
    if torch.cuda.is_available() or not os.environ.get("RAY_ADDRESS"):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        precision = choose_precision(config.training.precision, device)
        settings["training"] |= {"precision": precision, "device": device.type}
    return {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in settings.items()
    }


def open_run_directory(output: Path, curriculum: Curriculum, fresh: bool) -> RunDirectory:
    """The run's directory; see `RunDirectory.open`, which knows no stages. Nothing is written."""
    run = RunDirectory.open(output, to_dict(curriculum.base), fresh)
    if run.state == "new":
        return run
    different = stage_difference(read_settings(output / CONFIG).get(STAGES), curriculum)
    if different:
        raise ConfigError(
            f"holds a run with other settings ({different})",
            f"--output {output}",
            "give another --output, or --fresh to remove that run",
        )
    return run


def open_run(curriculum: Curriculum, say: Say) -> tuple[OpenRun, Retriever]:
    """Open what a run needs, and load its encoder for measuring; `say` hears of data sets.

    Raises:
        UserError: something a user can mend, and in which stage it is.
    """
    base = curriculum.base
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = choose_precision(base.training.precision, device)
    for part in curriculum.all_stages:
        with stage_errors(part):
            build_loss(part.config.loss)  # here only to be refused before anything is done
    if PYDOCS in (base.data.dataset, *(name for part in curriculum.all_stages for name in part.config.data.datasets)):
        say("pydocs: the docstrings of this Python, read once for as long as its packages stay the same")
    retriever = load_for_encoding(base.model, precision, device)
    for part in curriculum.all_stages:
        with stage_errors(part):
            narrower_widths(part.config.loss, retriever.width)  # here only to be refused
    measured = _open_measured(base, retriever, say) if curriculum.stages else None
    stages = []
    for part in curriculum.all_stages:
        with stage_errors(part):
            stages.append(_open_stage(part, base.data, retriever, say))
    datasets = [dataset for stage in stages for dataset in stage.material.datasets]
    if measured is None:
        measured = datasets[0]
    else:
        datasets.insert(0, measured)
    Examples.of(measured, base.data.test_split, base.training.seed)  # here only to be refused
    for stage in stages:
        with stage_errors(stage.stage):
            _check_overlaps(stage, measured, base.data.test_split, say)
    lines = [f"{each.name}: " + ", ".join(f"{k} {n:,}" for k, n in each.counts().items()) for each in datasets]
    for line in dict.fromkeys(lines):
        say(line)
    return OpenRun(curriculum, measured, tuple(stages), precision, device), retriever


def _check_overlaps(stage: OpenStage, measured: RetrievalDataset, test_split: str, say: Say) -> None:
    """Report the queries of the dev and the test split that a stage trains on.

    Those of the dev split make training stop too late, which its dev curve shows; those of the test split make the
    figures too good, which nothing shows.

    Raises:
        DataError: they are too many of the test split's.
    """
    data, datasets = stage.stage.config.data, stage.material.datasets
    trained = [(dataset, data.train_split) for dataset in datasets]
    for overlap in overlaps(trained, [(datasets[0], data.dev_split), (measured, test_split)]):
        if overlap.split == test_split:
            check_overlap(overlap, data.allow_split_overlap)
        if overlap.shared:
            say(f"{overlap.dataset}: {overlap}")


def _open_measured(config: Config, retriever: Retriever, say: Say) -> RetrievalDataset:
    """The data set of the run itself, where no stage's splits of it stand for it."""
    return open_dataset(
        config.data.dataset,
        [config.data.test_split],
        max_bad_rows=config.data.max_bad_rows,
        tokenisation=tokenisation_of(retriever),
        run=choose_runner(config.training.workers[1]),
        say=say,
    )


def _open_stage(stage: Stage, measured: DataConfig, retriever: Retriever, say: Say) -> OpenStage:
    config = stage.config
    data, training = config.data, config.training
    description = describe(resolve_model(config.model.model, config.model.revision), config.model)
    tokenisation: Tokenisation = replace(
        tokenisation_of(retriever), query_prefix=description.query_prefix, passage_prefix=description.passage_prefix
    )
    material = Material.open(
        data.datasets,
        data,
        tokenisation,
        training.batch_size,
        training.seed,
        # A positive of the test split is no hard negative of its query.
        also=[measured.test_split] if data.dataset == measured.dataset else [],
        run=choose_runner(training.workers[1]),
        say=say,
    )
    material.dev()  # here only to be refused
    source = material.train(None)
    order = source.order
    if not data.duplicates:
        left = shared(order, source.examples.positives, range(order.steps(1)))
        say(f"--no-duplicates: {left:,} of {len(source.examples):,} queries share a positive with one of their batch")
    total_steps = training.max_steps or order.steps(training.epochs or 1.0)
    check_refresh(config.refresh, data, total_steps)
    dev_sets = open_dev_sets(config, material.datasets[0], choose_runner(training.workers[1]), say)
    return OpenStage(stage, description, material, total_steps, dev_sets)
