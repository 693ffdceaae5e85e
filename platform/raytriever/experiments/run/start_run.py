"""Start of a training: steps that the command and `rt.train` share, before anything heavy is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytriever.core.errors import ConfigError, setting
from raytriever.core.setting_declarations import needs_of, without_effect
from raytriever.experiments.run.run_directory import RunDirectory, recorded_settings
from raytriever.training.run_config import (
    NAME,
    SECTIONS,
    Config,
    check_config,
    check_config_paths,
    differences,
    in_all,
    settings_of,
    to_dict,
)
from raytriever.training.training_settings import MAY_CHANGE

if TYPE_CHECKING:
    from raytriever.experiments.run.whole_run import RunResult

# Settings that are part of every run name, and settings with the same meaning as one of them.
_NAMED = ("dataset", "model", "loss", "seed", "revision")
_MOST_SHOWN, _LONGEST_NAME = 6, 200  # maximum number of settings and characters in a run's name at a tracker


def check_run(
    config: Config, explicit: Iterable[str], run_name: str | None, search: Any = None, varied: Collection[str] = ()
) -> str:
    """Check the settings of a run or a sweep and return its name: `run_name`, or the default name of a run. Raises
    `ConfigError`; see `check_explicit_settings`."""
    check_config(config)
    check_explicit_settings(config, explicit, search, varied)
    name = default_run_name(config) if run_name is None else run_name
    check_run_name(name)
    check_config_paths(config)
    return name


def start_run(
    config: Config,
    base: Config,
    output: Path,
    run_name: str | None,
    fresh: bool,
    log: Callable[[str], None],
    trackers: Sequence[str],
    notes: Iterable[str] = (),
) -> RunResult:
    """Train and evaluate with checked settings, in a directory that this process has locked.

    `base` are the settings that the user's settings override; see `shown_run_name`. `notes` are logged after the
    directory is checked."""
    shown = shown_run_name(config, base) if run_name is None else run_name
    config = pin_sources(config, output, fresh)
    run = RunDirectory.open(output, to_dict(config), fresh)

    from raytriever.experiments.run.whole_run import run_experiment

    for line in notes:
        log(line)
    return run_experiment(config, run, shown, log, trackers)


def pin_sources(config: Config, output: Path, fresh: bool) -> Config:
    """Return the settings with the commit of the encoder as its revision, and with the digests of loss files.

    A resumed run reads the commit of a hub model from its configuration, unless the settings have a revision. An
    encoder on this machine has no commit."""
    model = config.model
    recorded = {} if fresh or model.revision else recorded_settings(output).get("model")
    revision = recorded.get("revision") if isinstance(recorded, dict) and recorded.get("model") == model.model else None
    if revision is None:
        from raytriever.models.resolve_model import commit_of

        revision = commit_of(model.model, model.revision) or model.revision

    def pinned(training: Config) -> Config:
        return replace(
            training, model=replace(training.model, revision=revision and str(revision)), loss=training.loss.pinned()
        )

    return in_all(config, pinned)


def check_explicit_settings(
    config: Config, explicit: Iterable[str], search: Any = None, varied: Collection[str] = ()
) -> None:
    """Raise `ConfigError` for an explicit setting that has no effect in any training of a run.

    `varied` are the names of settings that a search varies. They must have an effect in at least one trial."""
    kinds = [*SECTIONS.values(), *([type(search)] if search else [])]
    needs = {
        name: conditions
        for name, conditions in needs_of(*kinds).items()
        if not any(need.name in varied for need in conditions)
    }
    extra = vars(search) if search else {}
    errors = [without_effect(settings_of(training) | extra, sorted(explicit), needs) for training in config.trainings]
    for name, error in errors[0].items():
        if all(name in error for error in errors):
            raise error


def check_run_name(name: str) -> None:
    """Raise `ConfigError` unless a name is valid for a run."""
    if not NAME.fullmatch(name):
        remedy = "use letters, digits, '.', '_' and '-'"
        raise ConfigError(f"{name!r} is not a valid run name", setting("run_name"), remedy)


def default_run_name(config: Config) -> str:
    """Return a run name that consists of the data set, the encoder, the losses or stages, and the seed."""
    return "-".join(_names(config))[-100:].lstrip("-._")


def _names(config: Config) -> list[str]:
    losses = "-".join(training.name or training.loss.title for training in config.trainings)
    names = Path(config.data.dataset).name, Path(config.model.model).name, losses, f"seed{config.training.seed}"
    return [re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") for name in names]


def shown_run_name(config: Config, base: Config) -> str:
    """Return the default name of a run at a tracker. It begins with what differs between runs: the losses or stages,
    the seed, and the settings that differ from `base` (the defaults, or a recipe). Data set and encoder follow. This
    order is useful because a list of runs shows only about twenty characters of a name."""
    texts = [
        f"{name}={value}"
        for settings in differences(to_dict(config), to_dict(base)).values()
        for name, value in settings.items()
        if name not in (*_NAMED, *MAY_CHANGE) and value is not None
    ]
    more = f" and {len(texts) - _MOST_SHOWN} more" if len(texts) > _MOST_SHOWN else ""
    *data, losses, seed = _names(config)
    return " ".join([losses, seed, *texts[:_MOST_SHOWN]])[:_LONGEST_NAME] + more + " " + "-".join(filter(None, data))
