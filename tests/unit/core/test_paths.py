"""Paths as settings and flags take them: `~` expanded, empty ones refused, missing ones reported, names left alone."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from raytriever.core.errors import ConfigError, DataError, ModelError, StorageError, disk_errors
from raytriever.core.paths import (
    DATASET,
    DATASETS,
    DEV_DATASETS,
    FOLDER,
    MODEL,
    NEGATIVES,
    PATH,
    SEARCH_SPACE,
    PathKind,
    runs_folder,
)
from raytriever.evaluation.system_names import SYSTEM


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "squad").mkdir()
    (tmp_path / "model").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        (PATH, "~/runs/a", "HOME/runs/a"),
        (PATH, "~", "HOME"),
        (PATH, "a/~/b", "a/~/b"),
        (PATH, "~nobody-of-this-name/x", "~nobody-of-this-name/x"),
        (DATASETS, "pydocs,~/squad, ~/other", "pydocs,HOME/squad, HOME/other"),
        (DEV_DATASETS, "own,~/squad#test", "own,HOME/squad#test"),
        (SYSTEM, "mine=~/model", "mine=HOME/model"),
        (MODEL, "intfloat/e5-base-v2", "intfloat/e5-base-v2"),
    ],
)
def test_the_home_folder_is_expanded(home: Path, kind: PathKind, given: str, wanted: str) -> None:
    assert kind(given) == wanted.replace("HOME", str(home))


def test_the_home_folder_of_a_user_is_expanded() -> None:
    assert not PATH(f"~{getpass.getuser()}/x").startswith("~")


@pytest.mark.parametrize("given", ["", " "])
def test_an_empty_flag_is_refused_and_an_empty_field_means_nothing(given: str) -> None:
    for kind in (PATH, NEGATIVES, DATASET):
        with pytest.raises(ConfigError, match="flag: the path is empty; give a path, or leave the flag out"):
            kind.read_flag(given, "flag")
    assert NEGATIVES("") == ""
    with pytest.raises(ValueError, match="the path is empty"):
        DATASET(given)
    with pytest.raises(ValueError, match="give a path"):
        NEGATIVES(3)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (DATASET, "pydocs"),
        (DATASET, "squad"),
        (DATASET, "hf://datasets/mteb/scifact"),
        (DATASET, "http://host/data?region=x"),
        (DATASET, "ir_datasets:beir/scifact"),
        (DATASETS, "squad,,pydocs"),
        (DEV_DATASETS, "own,squad#dev"),
        (MODEL, "minilm"),
        (MODEL, "model"),
        (MODEL, "bert-base-uncased"),
        (MODEL, "intfloat/e5-base-v2"),
        (SYSTEM, "bm25"),
        (SYSTEM, "own=./model"),
        (PATH, "not/there/yet"),
        (SEARCH_SPACE, "loss,temperature"),
        (FOLDER, "squad"),
    ],
)
def test_names_and_what_is_there_pass(kind: PathKind, given: str) -> None:
    kind.check(kind(given), "flag")


@pytest.mark.parametrize(
    ("kind", "given", "line"),
    [
        (DATASET, "none", "flag none: no data set of this name and no such folder; give 'pydocs', or"),
        (DATASET, "squat", "flag squat: no data set of this name and no such folder; did you mean 'squad'?"),
        (DATASET, "file:///none", "flag file:///none: no data set of this name"),
        (DATASETS, "squad,none", "flag none: no data set"),
        (DEV_DATASETS, "own,none#dev", "flag none: no data set"),
        (MODEL, "./none", "flag ./none: no such directory; give a model directory"),
        (MODEL, "../none", "flag ../none: no such directory"),
        (MODEL, "/none", "flag /none: no such directory"),
        (MODEL, "~/none", "flag HOME/none: no such directory"),
        (MODEL, "a/b/c", "flag a/b/c: no such directory"),
        (SYSTEM, "own=./none", "flag ./none: no such directory"),
        (SEARCH_SPACE, "none.yaml", "flag none.yaml: no such file"),
        (FOLDER, "none", "flag none: no such folder"),
        (NEGATIVES, "x" * 300, "the name is too long"),
        (NEGATIVES, "nul\0", "there is no negatives table"),
    ],
)
def test_a_missing_path_is_reported_with_its_flag(home: Path, kind: PathKind, given: str, line: str) -> None:
    (home / "file").touch()
    with pytest.raises((DataError, ModelError, ConfigError, StorageError)) as caught, disk_errors("a command"):
        kind.check(kind(given), "flag")
    assert line.replace("HOME", str(home)) in str(caught.value)


def test_the_folder_of_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYTRIEVER_RUNS", raising=False)
    assert runs_folder() == Path("runs")
    monkeypatch.setenv("RAYTRIEVER_RUNS", "~/experiments")
    assert runs_folder() == home / "experiments"
