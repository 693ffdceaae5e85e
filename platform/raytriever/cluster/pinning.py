"""A hub model is pinned to the commit that its name stood for when the run began.

The name of a repository, a tag or a branch may stand for other weights tomorrow; a commit does not. So it is resolved
once, recorded in the run's configuration, and a continued run takes it from there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from raytriever.config import Config, Curriculum, read_settings
from raytriever.errors import ConfigError
from raytriever.models.source import commit_of
from raytriever.training.run_directory import CONFIG


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
