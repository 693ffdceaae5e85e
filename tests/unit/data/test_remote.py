from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytriever.data.prepare.open import fetch_dataset, open_dataset
from raytriever.data.prepare.pipeline import Request, prepare
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.errors import StorageError


@pytest.fixture
def uri(
    small: Path, words: Tokenisation, objects: dict[str, bytes], bucket: str, tmp_path: Path, monkeypatch: object
) -> str:
    """A prepared data set in an object store, and a node that has nothing."""
    own = prepare(Request(str(small), words), output=tmp_path / "own")
    for file in own.rglob("*"):
        if file.is_file():
            objects[f"sets/own/{file.relative_to(own).as_posix()}"] = file.read_bytes()
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "node"))  # type: ignore[attr-defined]
    return "s3://bucket/sets/own" + bucket


def test_a_prepared_data_set_is_fetched_once(uri: str, small: Path, words: Tokenisation, objects: dict) -> None:
    dataset = open_dataset(uri, ["train"], tokenisation=words)
    assert dataset.digest == open_dataset(small, ["train"]).digest
    assert dataset.location == uri
    assert dataset.tokens is not None
    assert dataset.passage_text(3) == "title 3 text 3 of many"
    for name in [name for name in objects if not name.endswith("manifest.json")]:
        del objects[name]
    assert open_dataset(uri, ["train"], tokenisation=words).digest == dataset.digest


@pytest.mark.parametrize("content", [None, "{"])
def test_a_copy_without_its_manifest_is_fetched_again(
    uri: str, objects: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    digest = open_dataset(uri, ["train"]).digest
    [copy] = (path for path in (tmp_path / "node" / "datasets").iterdir() if path.is_dir())
    (copy / "manifest.json").unlink()
    if content:
        (copy / "manifest.json").write_text(content)
    assert open_dataset(uri, ["train"]).digest == digest
    assert f"{copy}: is damaged or has no manifest; making it again" in capsys.readouterr().err


def test_a_file_that_is_not_the_manifests_is_not_kept(uri: str, objects: dict, tmp_path: Path) -> None:
    name = next(name for name in objects if name.endswith(".arrow"))
    objects[name] = objects[name][:-1] + b"!"
    with pytest.raises(StorageError, match=r"s3://bucket/sets/own/documents/.*differs from its manifest"):
        fetch_dataset(uri)
    assert not [path for path in (tmp_path / "node" / "datasets").iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize("name", ["../../own.sh", "/etc/own", "documents/../../x", "a//b", "", "..\\x"])
def test_a_manifest_that_leads_elsewhere_is_refused(uri: str, objects: dict, tmp_path: Path, name: str) -> None:
    manifest = json.loads(objects["sets/own/manifest.json"])
    entry = next(iter(manifest["files"].values()))
    for message in ({"files": {name: entry}}, {"meta": {**manifest["meta"], "name": name}}):
        objects["sets/own/manifest.json"] = json.dumps({**manifest, **message}).encode()
        with pytest.raises(StorageError, match="which is none below it"):
            fetch_dataset(uri)
    assert not (tmp_path / "node").exists()


def test_a_file_is_copied_no_further_than_its_size(uri: str, objects: dict, tmp_path: Path) -> None:
    name = next(name for name in objects if name.endswith(".arrow"))
    for content in (objects[name] + b"more", objects[name][:-1]):
        objects[name] = content
        with pytest.raises(StorageError, match="differs from its manifest"):
            fetch_dataset(uri)


def test_other_locations_are_left_to_the_reader_of_sources(uri: str, objects: dict, small: Path) -> None:
    assert fetch_dataset(str(small)) is None
    objects["sets/own/manifest.json"] = b'{"files": {}, "meta": {"kind": "model"}}'
    assert fetch_dataset(uri) is None
    del objects["sets/own/manifest.json"]
    assert fetch_dataset(uri) is None
