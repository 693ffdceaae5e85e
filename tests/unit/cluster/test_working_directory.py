"""Working directory of submitted jobs, their environment and their numba cache."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path, PurePath

import pytest

from raytriever.cluster import numba_cache
from raytriever.cluster.numba_cache import PackageLocator
from raytriever.cluster.ray_session import _runtime_env
from raytriever.cluster.working_directory import describe_largest, enter_lasting_folder
from raytriever.core.errors import StorageError
from raytriever.losses.mw import cpu_kernel as kernels


@pytest.fixture
def upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder in which Ray would start a submitted job."""
    folder = tmp_path / "session" / "working_dir_files" / "_ray_pkg_0123"
    folder.mkdir(parents=True)
    (folder / "settings.yaml").write_text("x" * 1000)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "made_here.nbi").write_text("x" * 9000)
    monkeypatch.chdir(folder)
    for name in ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES"):
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {"working_dir": "gcs://x.zip"}}))
    monkeypatch.setenv("RAYTRIEVER_HOME", str(tmp_path / "home"))
    return folder


def test_a_submitted_job_changes_its_folder_and_reads_files_of_its_upload(upload: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    words = [
        *["--config", "settings.yaml", "--output", "settings.yaml", "--table=settings.yaml", "--dataset", "mine"],
        "a query",
    ]
    resolved = enter_lasting_folder(words, lines.append)
    file = str(upload / "settings.yaml")
    assert resolved == ["--config", file, "--output", "settings.yaml", f"--table={file}", *words[5:]]
    assert Path.cwd() == tmp_path / "home"
    assert lines[0] == "upload: 1 files, 0.0 MB"
    assert str(tmp_path / "home") in lines[1]


def test_a_long_query_is_no_path(upload: Path) -> None:
    assert enter_lasting_folder(["q" * 5000], print) == ["q" * 5000]


def test_a_large_upload_is_reported(upload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raytriever.cluster.working_directory.LARGE_UPLOAD", 500)
    lines: list[str] = []
    enter_lasting_folder([], lines.append)
    assert "settings.yaml 0.0 MB; .rayignore" in lines[1]


def test_the_largest_files_and_folders_of_an_upload_are_named() -> None:
    sizes = {PurePath(f"data/raw/{number}.txt"): 50_000 for number in range(6_000)}
    sizes |= {PurePath("model/weights.bin"): 90_000_000, PurePath("notes.txt"): 900_000, PurePath("a.py"): 10}
    assert describe_largest(sizes) == "data/ 300.0 MB, model/ 90.0 MB, notes.txt 0.9 MB"


def test_a_relative_home_is_refused(upload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRIEVER_HOME", "runs")
    with pytest.raises(StorageError, match="RAYTRIEVER_HOME=runs: is a relative path"):
        enter_lasting_folder([], print)
    assert Path.cwd() == upload


def test_any_other_process_stays_where_it_is(upload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR")
    assert enter_lasting_folder(["--config", "settings.yaml"], print) == ["--config", "settings.yaml"]
    assert Path.cwd() == upload


def test_a_job_in_a_folder_of_the_cluster_itself_stays_there(
    upload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    enter_lasting_folder([], print)
    assert Path.cwd() == tmp_path


def test_workers_get_the_path_of_code_that_is_not_installed(upload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert _runtime_env() is None
    code = str(Path(numba_cache.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([code, "/elsewhere"]))
    enter_lasting_folder([], print)
    assert _runtime_env() == {
        "env_vars": {
            "PYTHONPATH": code,
            "NUMBA_CACHE_DIR": str(Path.cwd() / ".compiled"),
            "NUMBA_CACHE_LOCATOR_CLASSES": "raytriever.cluster.numba_cache.PackageLocator,UserProvidedCacheLocator",
        }
    }
    # Ray refuses a variable that is set twice.
    named = {"runtime_env": {"env_vars": {"PYTHONPATH": "platform", "NUMBA_CACHE_DIR": "/x"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(named))
    assert _runtime_env()["env_vars"].keys() == {"NUMBA_CACHE_LOCATOR_CLASSES"}


def test_compiled_code_is_stored_by_its_path_in_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    function = kernels._walk.py_func
    locator = PackageLocator.from_function(function, inspect.getfile(function))
    assert locator.get_cache_path() == str(tmp_path / "raytriever" / "losses" / "mw")
    assert PackageLocator.from_function(json.dumps, json.__file__) is None
