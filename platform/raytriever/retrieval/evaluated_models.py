"""The models of an evaluation: by which name they stand in tables, and what reads texts how."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raytriever.errors import ConfigError
from raytriever.models.config import ModelConfig
from raytriever.models.source import check_revision, commit_of
from raytriever.options import did_you_mean
from raytriever.retrieval.file_names import distinct_names, safe_name, unique_names

BM25 = "bm25"


@dataclass(frozen=True)
class EvaluatedModel:
    """One model: its name in tables and files, and its settings; None for BM25, which has none."""

    name: str
    config: ModelConfig | None


def evaluated_models(given: Sequence[str], settings: ModelConfig) -> list[EvaluatedModel]:
    """Models as the command line names them: `bm25`, a place, or `NAME=PLACE`.

    Args:
        given: at least one.
        settings: what is said of how texts are read, for all of them; what it leaves open each model's own files say.

    Raises:
        ConfigError: two of them have the same name.
    """
    labels, places = [], []
    for one in given:
        label, equals, place = one.partition("=")
        named = bool(equals and label and place) and not Path(one).exists()
        labels.append(safe_name(label) if named else None)
        places.append(place if named else one)
    names = [label or name for label, name in zip(labels, distinct_names(places), strict=True)]
    for row, name in enumerate(names):
        for other in range(row):
            if name == names[other] and (labels[row] or labels[other] or places[row] == places[other]):
                raise ConfigError(f"two models are called {name!r}", "--model", f"call one otherwise: OTHER={name}")
    names = unique_names(names)
    return [
        EvaluatedModel(name, None if place == BM25 else dataclasses.replace(settings, model=place))
        for name, place in zip(names, places, strict=True)
    ]


def pinned_models(models: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """The same with hub models' revisions as commits, so that results say what was measured.

    Raises:
        ModelError: see `models.source.resolve_model`.
    """
    configs = [model.config for model in models if model.config is not None]
    if configs:
        check_revision([config.model for config in configs], configs[0].revision)
    return [
        model
        if model.config is None
        else EvaluatedModel(
            model.name,
            dataclasses.replace(model.config, revision=commit_of(model.config.model, model.config.revision)),
        )
        for model in models
    ]


def baselines_of(given: Sequence[str], models: Sequence[EvaluatedModel]) -> list[str]:
    """The names of the models that the others are compared with; the first model where none is given.

    Raises:
        ConfigError: there is no such model, there are more than two, or one is given twice.
    """
    names = [model.name for model in models]
    by_place = {model.config.model if model.config else BM25: model.name for model in models}
    if not given:
        return names[:1]
    for one in given:
        if one not in names and one not in by_place:
            raise ConfigError(f"{one!r} is none of the models", "--baseline", did_you_mean(one, names))
    found = [one if one in names else by_place[one] for one in given]
    if len(found) > 2 or len(set(found)) < len(found):
        raise ConfigError(f"{' '.join(given)}", "--baseline", "give one model or two, which have marks of their own")
    return found
